"""The last two minutes of a few numbers, so that a page that opens now draws its lines at once. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from broker.gateway.page.view import MeshView

NUM_SAMPLES = 120  # one for each report: two minutes
MAX_NODES = 64  # with lines from before the page was opened
_CALLERS_OVER = 60  # reports over which the tokens of a caller are counted

Line = deque[float | None]


class History:
    """One line for each number: of the mesh, and of each of the first nodes. None where the mesh did not answer."""

    def __init__(self) -> None:
        self._mesh: dict[str, Line] = {}
        self._nodes: dict[str, dict[str, Line]] = {}
        self._num_samples = 0

    def add(self, view: MeshView | None) -> None:
        self._num_samples = min(self._num_samples + 1, NUM_SAMPLES)
        totals = view["totals"] if view is not None else dict.fromkeys(self._mesh)
        self._extend(self._mesh, totals)
        shown = {node["key"]: node for node in view["nodes"][:MAX_NODES]} if view is not None else {}
        if view is not None:
            self._nodes = {key: self._nodes.get(key, {}) for key in shown}
        for key, lines in self._nodes.items():
            node = shown.get(key, {})
            serves = node.get("slots", 0) > 0
            self._extend(lines, {name: node[name] if serves else None for name in ("tokens_per_s", "ttft_s")})

    def lines(self) -> dict[str, Any]:
        """For a page that opens. Every line has the same length and ends now."""
        return {
            "mesh": {name: list(line) for name, line in self._mesh.items()},
            "nodes": {key: {name: list(line) for name, line in lines.items()} for key, lines in self._nodes.items()},
        }

    def _extend(self, lines: dict[str, Line], values: dict[str, Any]) -> None:
        for name, value in values.items():
            line = lines.get(name)
            if line is None:
                blanks = [None] * (self._num_samples - 1)
                line = lines[name] = deque(blanks, maxlen=NUM_SAMPLES)
            line.append(value)


class Shares:
    """How many tokens each caller got over the last minute."""

    def __init__(self) -> None:
        self._totals: deque[dict[str, int]] = deque(maxlen=_CALLERS_OVER + 1)

    def add(self, totals: dict[str, int]) -> dict[str, int]:
        """From what each has got so far, which begins at nothing again when it connects anew."""
        self._totals.append(totals)
        got = dict.fromkeys(totals, 0)
        last: dict[str, int] = self._totals[0]
        for now in list(self._totals)[1:]:
            for name in got:
                if name in now and name in last:
                    got[name] += now[name] - last[name] if now[name] >= last[name] else now[name]
                elif name in now:
                    got[name] += now[name]
            last = now
        return got
