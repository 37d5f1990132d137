"""The core decides and does nothing else: what it is made of knows no socket, loop, clock or thread."""

from __future__ import annotations

import ast
from pathlib import Path

import broker.core

IMPURE = {"zmq", "asyncio", "time", "socket", "threading", "os", "uvloop", "zeroconf", "torch", "node"}
FOLDER = Path(broker.core.__file__).parent


def imports_of(module: str) -> set[str]:
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def reachable(module: str) -> set[str]:
    found, todo = set(), [module]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += [name.removeprefix("broker.") for name in imports_of(module) if name.startswith("broker.")]
    return found


def test_nothing_below_the_core_does_input_or_output() -> None:
    modules = reachable("core") - {"config"}  # options look up the host's name once

    assert len(modules) > 12
    for module in modules:
        impure = {name.partition(".")[0] for name in imports_of(module)} & IMPURE
        assert not impure, f"broker.{module} imports {impure}"


def test_the_broker_never_imports_the_node() -> None:
    for path in FOLDER.glob("*.py"):
        assert not any(name.partition(".")[0] in ("node", "torch") for name in imports_of(path.stem)), path.name
