"""The status table: fits the terminal, shows what matters, reads well."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from broker import format
from broker.status import render
from mesh.report import DeviceReport, ModelReport, NodeReport, StatusReport


def node(name: str, state: str = "ready", **facts: Any) -> NodeReport:
    fields: dict[str, Any] = {
        "name": name, "node_id": f"id-{name}", "address": "tcp://192.168.10.21:5560", "state": state,
        "models": (ModelReport(name="microsoft/Phi-3-mini-4k-instruct"),), "device": "NVIDIA A100-SXM4-80GB",
        "slots_total": 64, "num_running": 12, "num_queued": 3, "tokens_per_s": 1834.0, "ttft_p50_s": 0.042,
        "ttft_p99_s": 0.31, "memory_used_bytes": 31 << 30, "memory_total_bytes": 80 << 30, "heartbeat_age_s": 0.2,
        "version": "0.1.0", "itl_p50_s": 0.019,
        "devices": (DeviceReport(name="NVIDIA A100-SXM4-80GB", utilisation=0.871, temperature_c=64.0),),
    }  # fmt: skip
    return NodeReport(**{**fields, **facts})


REPORT = StatusReport(
    kind="broker", name="office", node_id="x", address="tcp://192.168.10.5:5550", version="0.1.0",
    policy="least-connections", uptime_s=7500, num_clients=1, num_queued=7, num_in_flight=24,
    nodes=(
        node("gpu-1"),
        node("gpu-2", "busy", num_running=64),
        NodeReport(name="", address="tcp://192.168.10.99:5560", state="joining", note="connection refused"),
    ),
)  # fmt: skip


def shown(report: StatusReport, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(report, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_every_node_is_one_line_however_narrow_the_terminal(width: int) -> None:
    lines = shown(REPORT, width).splitlines()

    assert max(map(len, lines)) <= width
    for name, state in (("gpu-1", "ready"), ("gpu-2", "busy"), ("192.168.10.99:5560", "joining")):
        (line,) = [line for line in lines if line.split()[:2] == [name, state]]
        assert "…" not in line or width < 200


def test_a_wide_terminal_shows_everything() -> None:
    text = shown(REPORT, 200)

    facts = "office|up 2h 5m|1 client ·|7 queued|24 in flight|least-connections|12/64|1.8k|42ms/310ms|31/80G|200ms|19ms"
    for words in [*facts.split("|"), "87% 64°", "0.1.0", "NVIDIA A100-SXM4-80GB", "Phi-3-mini-4k-instruct"]:
        assert words in text, words


def test_the_last_line_adds_up() -> None:
    (total,) = [line for line in shown(REPORT, 200).splitlines() if line.strip().startswith("total")]

    assert total.split() == ["total", "76/128", "6", "3.7k", "62/160G"]


def test_with_several_devices_the_mean_of_their_load_and_the_warmest_is_shown() -> None:
    devices = (DeviceReport(name="a", utilisation=1.0, temperature_c=60), DeviceReport(name="b", temperature_c=71))
    report = REPORT.model_copy(update={"nodes": (node("gpu-1", devices=devices),)})

    assert " 50% 71° " in shown(report, 200)


def test_a_target_is_shown_beside_the_time_between_tokens_and_explained_below() -> None:
    note = "42 of 128 slots: 19.6 ms, target 20 ms between tokens"
    report = REPORT.model_copy(update={"nodes": (node("gpu-1", target_itl_s=0.02, slots_total=42, note=note),)})

    text = shown(report, 120)
    assert " 12/42 " in text
    assert " 19ms/20ms " in text
    assert f"ready     gpu-1: {note}" in text


def test_what_is_wrong_is_said_in_words() -> None:
    assert "joining   192.168.10.99:5560: connection refused" in shown(REPORT, 100)


def test_a_mesh_without_nodes_says_what_to_do() -> None:
    assert "phi3-node" in shown(StatusReport(kind="broker", name="office", node_id="x"), 80)


def test_a_state_that_a_newer_broker_invented_is_shown_as_it_is() -> None:
    report = REPORT.model_copy(update={"nodes": (node("gpu-1", "sleeping"),)})

    assert "sleeping" in shown(report, 100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format.number(0), "0"),
        (format.number(950.4), "950"),
        (format.number(1834), "1.8k"),
        (format.number(35_210), "35k"),
        (format.latency(0.0421), "42ms"),
        (format.latency(0.9999), "1.0s"),
        (format.latency(12.34), "12.3s"),
        (format.latency(130), "2m"),
        (format.age(59), "59s"),
        (format.age(3_600 * 5 + 240), "5h 4m"),
        (format.age(86_400 * 2 + 3_600 * 7), "2d 7h"),
        (format.bytes_of(0, 0), ""),
        (format.bytes_of(3 << 29, 0), "1.5G"),
        (format.bytes_of(3 << 29, 8 << 30), "1.5/8.0G"),
        (format.bytes_of(31 << 30, 80 << 30), "31/80G"),
        (format.of(3, 8), "3/8"),
        (format.device_load([0.5], [0.0]), "50%"),
        (format.device_load([], []), ""),
        (format.of(0, 0), ""),
    ],
)
def test_numbers_are_short(text: str, expected: str) -> None:
    assert text == expected
