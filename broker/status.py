"""The table of `phi3-broker status`: one line for each node, as wide as the terminal allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker.format import age, bytes_of, device_load, latency, number, of
from broker.states import NodeState
from mesh import AsyncClient
from mesh.report import NodeReport, StatusReport

_STYLES: dict[str, str] = {
    NodeState.READY: "green",
    NodeState.BUSY: "cyan",
    NodeState.JOINING: "blue",
    NodeState.SUSPECT: "yellow",
    NodeState.DRAINING: "magenta",
    NodeState.STALLED: "red",
    NodeState.LOST: "bold red",
}
_MAX_CELL = 26
_GAP = 2  # between columns


@dataclass(frozen=True)
class Column:
    """`rank` says what goes first when the terminal is narrow: the highest. `total` is the cell of the last line."""

    title: str
    cell: Callable[[NodeReport], str]
    rank: int
    is_number: bool = True
    total: Callable[[list[NodeReport]], str] = lambda nodes: ""


def _sum(field: str) -> Callable[[list[NodeReport]], float]:
    return lambda nodes: sum(getattr(node, field) for node in nodes)


def _numbers(title: str, field: str, rank: int) -> Column:
    """A plain number that can be added up; a node that serves nothing has none."""
    total = _sum(field)
    return Column(
        title,
        lambda node: number(getattr(node, field)) if node.models else "",
        rank,
        total=lambda nodes: number(total(nodes)),
    )


def _ttft(node: NodeReport) -> str:
    return f"{latency(node.ttft_p50_s)}/{latency(node.ttft_p99_s)}" if node.ttft_p99_s else ""


def _itl(node: NodeReport) -> str:
    """With the target beside it, where the node has one."""
    target = f"/{latency(node.target_itl_s)}" if node.target_itl_s else ""
    return f"{latency(node.itl_p50_s)}{target}" if node.itl_p50_s else ""


def _load(node: NodeReport) -> str:
    return device_load([d.utilisation for d in node.devices], [d.temperature_c for d in node.devices])


COLUMNS = (
    Column("node", lambda n: n.name or n.address.removeprefix("tcp://"), 0, False, lambda nodes: "total"),
    Column("state", lambda n: n.state, 0, False),
    Column("address", lambda n: n.address.removeprefix("tcp://"), 8, False),
    Column("model", lambda n: ", ".join(model.name.rpartition("/")[2] for model in n.models), 3, False),
    Column("device", lambda n: n.device, 7, False),
    Column(
        "run", lambda n: of(n.num_running, n.slots_total), 1, True,
        lambda nodes: of(_sum("num_running")(nodes), _sum("slots_total")(nodes)),
    ),
    _numbers("queued", "num_queued", 2),
    _numbers("tok/s", "tokens_per_s", 1),
    Column("TTFT 50/99", _ttft, 4),
    Column("ITL", _itl, 6),
    Column("load", _load, 5),
    Column(
        "memory", lambda n: bytes_of(n.memory_used_bytes, n.memory_total_bytes), 9, True,
        lambda nodes: bytes_of(_sum("memory_used_bytes")(nodes), _sum("memory_total_bytes")(nodes)),
    ),
    Column("beat", lambda n: latency(n.heartbeat_age_s) if n.models else "", 10),
    Column("version", lambda n: n.version, 11, False),
)  # fmt: skip


def show(report: StatusReport) -> None:
    """Print it once."""
    console = Console(highlight=False)
    console.print(render(report, console.width))


async def watching(client: AsyncClient, report: StatusReport, refresh_s: float) -> None:
    """Refresh in place until cancelled."""
    console = Console(highlight=False)
    with Live(render(report, console.width), console=console, auto_refresh=False, screen=False) as live:
        while True:
            await asyncio.sleep(refresh_s)
            live.update(render(await client.status(), console.width), refresh=True)


def render(report: StatusReport, width: int) -> RenderableType:
    """Head line, table, and a line for each thing that needs a person's attention."""
    parts: list[RenderableType] = [_head(report, width)]
    if report.nodes:
        parts.append(_table(list(report.nodes), width))
    else:
        parts.append(
            Text("\n  No node is known. Start `phi3-node` on a GPU host, or name one with --node.\n", "yellow")
        )
    parts += [
        Text.assemble((f"  {node.state:<9}", _STYLES.get(node.state, "")), f" {_label(node)}: {node.note}")
        for node in report.nodes
        if node.note
    ]
    return Group(*parts)


def _head(report: StatusReport, width: int) -> Text:
    name = f"{report.kind} {report.name}"
    facts = [
        f"at {report.address.removeprefix('tcp://')}" if report.address else "",
        f"up {age(report.uptime_s)}",
        f"{report.num_clients} client{'' if report.num_clients == 1 else 's'}",
        f"{report.num_queued} queued",
        f"{report.num_in_flight} in flight",
        report.policy,
        f"v{report.version}" if report.version else "",
    ]
    facts = [fact for fact in facts if fact]
    while len(name) + sum(len(fact) + 3 for fact in facts) > width and len(facts) > 1:
        facts.pop()
    return Text.assemble((name, "bold"), *[f" · {fact}" for fact in facts])


def _table(nodes: list[NodeReport], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_footer=len(nodes) > 1, padding=(0, 1, 0, 0))
    for column in _fitting(nodes, width):
        table.add_column(
            column.title,
            footer=column.total(nodes),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    columns = _fitting(nodes, width)
    for node in nodes:
        table.add_row(*[_cell(column, node) for column in columns])
    return table


def _cell(column: Column, node: NodeReport) -> Text:
    text = column.cell(node)
    style = _STYLES.get(node.state, "") if column.title == "state" else ""
    return Text(text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…", style)


def _fitting(nodes: list[NodeReport], width: int) -> list[Column]:
    """Columns that have something to say, without the least important ones that do not fit."""
    columns = [column for column in COLUMNS if column.rank == 0 or any(column.cell(node) for node in nodes)]
    while len(columns) > 2 and sum(_width(column, nodes) + _GAP for column in columns) + _GAP > width:
        columns.remove(max(columns, key=lambda column: column.rank))
    return columns


def _width(column: Column, nodes: list[NodeReport]) -> int:
    cells = [column.title, column.total(nodes), *(column.cell(node) for node in nodes)]
    return min(_MAX_CELL, max(len(cell) for cell in cells))


def _label(node: NodeReport) -> str:
    return node.name or node.address.removeprefix("tcp://")
