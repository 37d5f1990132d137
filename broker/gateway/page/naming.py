"""What nodes are called on the page, and by what they are told apart."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.report import NodeReport

MAX_TEXT = 200  # names and notes come from other hosts


def keyed(nodes: Iterable[NodeReport]) -> dict[str, NodeReport]:
    """By something that stays the same from report to report. Two processes may have one id by mistake."""
    found: dict[str, NodeReport] = {}
    for node in nodes:
        key = node.node_id or node.address or node.name
        found[key if key not in found else f"{key} {node.address} {len(found)}"] = node
    return found


def label(node: NodeReport) -> str:
    """Its name, or where it should be."""
    return short(node.name or node.address.removeprefix("tcp://"))


def short(text: str) -> str:
    """One line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
