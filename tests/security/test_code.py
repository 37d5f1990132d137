"""What the code must not do, whatever it is asked: run what came from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import cli
from node.config import NodeConfig
from node.engine.model_files import ModelUnavailable, resolve_model

ROOT = Path(__file__).parent.parent.parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"recv_pyobj", "send_pyobj", "system", "popen"}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("mesh", "node", "broker"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def offences(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                yield node.func.id
            elif isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS:
                yield node.func.attr
            yield from ("shell=True" for word in node.keywords if word.arg == "shell")


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    assert {str(path): found for path, tree in sources() if (found := list(offences(tree)))} == {}
    assert list(offences(ast.parse("import pickle\neval('1')"))) == ["pickle", "eval"]


def test_the_code_of_a_model_runs_only_when_asked_for_and_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert NodeConfig().trust_remote_code is False
    assert not any(options.trust_remote_code for _, options in NodeConfig(engine="synthetic").worker_options())

    class NeverServes:
        def __init__(self, config: NodeConfig) -> None: ...

        async def run(self) -> None: ...

    monkeypatch.setattr(cli, "NodeServer", NeverServes)
    cli.main(["--trust-remote-code"])
    assert "trust_remote_code is on" in caplog.text
    caplog.clear()
    cli.main([])
    assert caplog.text == ""


def test_a_model_in_a_format_that_can_hold_code_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(ModelUnavailable, match="opening them can run"):
        resolve_model(str(tmp_path), tmp_path)
