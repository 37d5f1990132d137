"""What becomes of a stream when one of its ends goes away: the caller, the node, the gateway. How soon it begins."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from mesh import Client  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import mesh_in, wait_for_nodes  # noqa: E402

ENDLESS = {"max_tokens": 8000, "ignore_eos": True, "temperature": 0}
STEP_S = 0.5


@pytest.fixture(scope="module")
def status(broker: str) -> Iterator[Client]:
    with Client(broker) as client:
        yield client


def texts_of(lines: Iterator[str]) -> Iterator[str]:
    """The pieces of a streamed /v1/completions, until [DONE]."""
    for line in lines:
        if not line:
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        event = json.loads(data)
        assert "error" not in event, event
        yield event["choices"][0]["text"]


def running(client: Client) -> int:
    return sum(node.num_running for node in client.status().nodes)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_closed_connection_frees_the_slot(url: str, status: Client, stream: bool) -> None:
    eventually(lambda: running(status) == 0)
    body = json.dumps({"prompt": "gone", "stream": stream, **ENDLESS}).encode()
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        eventually(lambda: status.status().num_in_flight == 1)
    eventually(lambda: status.status().num_in_flight == 0, within_s=1)
    eventually(lambda: running(status) == 0, within_s=2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Client]]:
    """A gateway before a lone node that takes its time, and what that node says itself."""
    folder = tmp_path_factory.mktemp("slow")
    with mesh_in(folder) as mesh:
        node = mesh.node("slow", "--synthetic", f"step_base_s={STEP_S}")
        with Client(node.address) as client, gateway_for(folder, node.address) as gateway:
            wait_until_ready(gateway.address)
            yield f"{gateway.address}/v1/completions", client


def test_the_first_token_is_not_kept_back(slow: tuple[str, Client]) -> None:
    url, node = slow
    with httpx.stream("POST", url, json={"prompt": "soon", "stream": True, "max_tokens": 2}) as answer:
        pieces = texts_of(answer.iter_lines())
        assert next(pieces)
        assert node.status().num_in_flight == 1  # the second step is still under way
        assert list(pieces)


def test_a_cancel_reaches_the_engine_within_a_step(slow: tuple[str, Client]) -> None:
    url, node = slow
    with httpx.stream("POST", url, json={"prompt": "gone", "stream": True, **ENDLESS}) as answer:
        pieces = texts_of(answer.iter_lines())  # held: to drop it is to close the connection
        next(pieces)
        assert node.status().num_in_flight == 1
    left_at = time.monotonic()
    eventually(lambda: node.status().num_in_flight == 0)
    assert time.monotonic() - left_at < STEP_S


def test_a_node_that_dies_in_mid_stream_is_a_pause(tmp_path: Path) -> None:
    with mesh_in(tmp_path) as mesh:
        nodes = [mesh.node(name, "--synthetic", "step_base_s=0.005") for name in ("n1", "n2")]
        broker = mesh.broker("b1", *nodes)
        with Client(broker.address) as client, gateway_for(tmp_path, broker.address) as gateway:
            wait_for_nodes(client, 2)
            wait_until_ready(gateway.address)
            ask = {"prompt": "resume me", "stream": True, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
            with httpx.stream("POST", f"{gateway.address}/v1/completions", json=ask) as answer:
                pieces = texts_of(answer.iter_lines())
                text = next(pieces)
                (name,) = [node.name for node in client.status().nodes if node.num_running]
                next(node for node in nodes if node.name == name).kill()
                text += "".join(pieces)
            assert text == client.generate("resume me", max_tokens=150, ignore_eos=True).text  # undisturbed
            assert client.status().num_ready == 1
            metrics = httpx.get(f"{gateway.address}/metrics").text
            assert "phi3_gateway_retries_total 1.0" in metrics


def test_running_streams_end_well_when_the_gateway_is_told_to_stop(tmp_path: Path, broker: str, status: Client) -> None:
    with gateway_for(tmp_path, broker) as gateway:
        wait_until_ready(gateway.address)
        body = {"prompt": "last words", "stream": True, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        with httpx.stream("POST", f"{gateway.address}/v1/completions", json=body) as answer:
            pieces = texts_of(answer.iter_lines())
            text = next(pieces)
            gateway.process.terminate()
            text += "".join(pieces)
        assert text == status.generate("last words", max_tokens=100, ignore_eos=True).text
        assert gateway.process.wait(10) == 0
        assert "Traceback" not in gateway.log_text()
