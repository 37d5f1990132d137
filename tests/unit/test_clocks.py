"""A machine whose wall clock jumps changes nothing: no timer, lease or deadline looks at it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# Dates for people and file times, which the system itself takes from the wall clock.
MAY_LOOK = {"mesh/security/registry.py", "node/text/chat.py"}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}


def looks_at_the_wall_clock(source: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and f"{node.value.id}.{node.attr}" in WALL_CLOCK
        for node in ast.walk(ast.parse(source))
    )


def test_the_check_itself_sees_a_wall_clock() -> None:
    assert looks_at_the_wall_clock("import time\ndeadline = time.time() + 5")
    assert not looks_at_the_wall_clock("import time\ndeadline = time.monotonic() + 5")


def test_nothing_that_runs_looks_at_the_wall_clock() -> None:
    looking = {
        str(path.relative_to(ROOT))
        for folder in ("mesh", "node", "broker")
        for path in (ROOT / folder).rglob("*.py")
        if looks_at_the_wall_clock(path.read_text())
    }
    allowed = {path for path in looking if path in MAY_LOOK or path.startswith("broker/gateway/")}
    assert looking == allowed
