"""The public surface, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import mesh


def test_every_public_name_is_there_and_nothing_else_is_promised() -> None:
    assert all(getattr(mesh, name) is not None for name in mesh.__all__)
    assert {name for names in mesh._NAMES.values() for name in names} | {"__version__"} == set(mesh.__all__)


def test_the_client_and_the_broker_need_neither_torch_nor_the_node() -> None:
    """With torch, transformers and the node package made impossible to import."""
    program = """
import sys
for name in ("torch", "transformers", "tokenizers", "node"):
    sys.modules[name] = None
import mesh, mesh.cli.main, broker.cli, broker.server, broker.status
mesh.Client
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_node_agent_never_imports_torch() -> None:
    program = """
import sys
import node.cli, node.server, node.agent
assert not {"torch", "transformers"} & set(sys.modules), "torch in the agent"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_the_package_alone_loads_no_client() -> None:
    program = "import sys, mesh, mesh.errors; assert not {'pydantic', 'zmq', 'asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
