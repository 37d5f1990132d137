"""One mesh of two synthetic nodes and one gateway in front of it, for all tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mesh import Client
from tests.gateway.support import gateway_for, wait_until_ready
from tests.support.processes import Mesh, mesh_in, wait_for_nodes

MODEL = "acme/phi"  # a name with a slash, as most have
NODE = ("--served-name", MODEL, "--synthetic", "step_base_s=0.005")


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with mesh_in(tmp_path_factory.mktemp("mesh")) as mesh:
        broker = mesh.broker("b1", mesh.node("n1", *NODE), mesh.node("n2", *NODE))
        with Client(broker.address) as client:
            wait_for_nodes(client, 2)
        yield mesh


@pytest.fixture(scope="session")
def broker(mesh: Mesh) -> str:
    """Its address."""
    return mesh.members[-1].address


@pytest.fixture(scope="session")
def url(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the gateway."""
    with gateway_for(tmp_path_factory.mktemp("gateway"), broker) as gateway:
        wait_until_ready(gateway.address)
        yield gateway.address
