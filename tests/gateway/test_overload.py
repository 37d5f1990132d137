"""A broker that is full: what each API's callers are told, and what keeps alive those who wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")
openai = pytest.importorskip("openai", reason="needs the openai package")
anthropic = pytest.importorskip("anthropic", reason="needs the anthropic package")
grpc = pytest.importorskip("grpc", reason="needs grpcio")

from broker.gateway.grpc_api.phi3_inference_pb2 import TextRequest  # noqa: E402
from broker.gateway.grpc_api.phi3_inference_pb2_grpc import Phi3InferenceStub  # noqa: E402
from mesh import Client  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.gateway.support_grpc import GRPC, grpc_address  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import mesh_in, wait_for_nodes  # noqa: E402

ENDLESS = {"max_tokens": 5000, "ignore_eos": True, "temperature": 0, "stream": True}
KEEP_ALIVE_S = 0.2
NUM_FULL = 4  # one runs, one waits at the node, two at the broker


@dataclass
class Full:
    """`streams` are the answers that fill the mesh, in the order of their asking, each with what it has shown first."""

    gateway: str
    grpc: str
    streams: list[tuple[Iterator[bytes], bytes]]
    open: ExitStack


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Full]:
    folder = tmp_path_factory.mktemp("full")
    options = (*GRPC, "--overload-patience", "0.1", "--keep-alive", str(KEEP_ALIVE_S))
    with mesh_in(folder) as mesh, ExitStack() as streams:
        node = mesh.node("n1", "--synthetic", "step_base_s=0.02", "--slots", "1")
        broker = mesh.broker("b1", node, options=("--max-queued", "2"))
        with Client(broker.address) as client, gateway_for(folder, broker.address, *options) as gateway:
            wait_for_nodes(client, 1)
            wait_until_ready(gateway.address)
            http = streams.enter_context(httpx.Client(base_url=gateway.address, timeout=30))
            shown = []
            for number in range(NUM_FULL):
                asked = http.stream("POST", "/v1/completions", json={"prompt": f"full {number}", **ENDLESS})
                answer = streams.enter_context(asked)
                pieces = answer.iter_raw()  # held: to drop it is to close the connection
                shown.append((pieces, next(pieces)))
                held = number + 1
                eventually(lambda held=held: client.status().num_in_flight + client.status().num_queued >= held)
            yield Full(gateway.address, grpc_address(gateway), shown, streams)


def test_who_waits_is_told_that_the_connection_lives(full: Full) -> None:
    """The answer has begun, and it is a comment: what reads events reads past it."""
    (_, first), *waiting = full.streams
    assert first.startswith(b"data: ")
    assert [shown for _, shown in waiting] == [b": keep-alive\n\n"] * (NUM_FULL - 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openai_s_client_hears_429_and_when_to_come_back(full: Full, stream: bool) -> None:
    with openai.OpenAI(base_url=f"{full.gateway}/v1", api_key="-", max_retries=0) as client:
        began = time.monotonic()
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="", prompt="one more", max_tokens=1, stream=stream)
        assert time.monotonic() - began < 3  # the mesh would have it wait for minutes
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.code == "overloaded"


def test_so_do_anthropic_s_and_grpc_s(full: Full) -> None:
    with anthropic.Anthropic(base_url=full.gateway, api_key="-", max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model="", max_tokens=1, messages=[{"role": "user", "content": "x"}])
        assert caught.value.body["error"]["type"] == "rate_limit_error"
    with grpc.insecure_channel(full.grpc) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            Phi3InferenceStub(channel).GenerateText(TextRequest(prompt="x", max_length=1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(refused.value.trailing_metadata())["grpc-retry-pushback-ms"]) > 0


def test_once_there_is_room_everybody_is_answered_again(full: Full) -> None:
    full.open.close()
    body = {"prompt": "at last", "max_tokens": 3}
    eventually(lambda: httpx.post(f"{full.gateway}/v1/completions", json=body).status_code == 200)
