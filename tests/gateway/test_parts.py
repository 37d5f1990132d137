"""The gateway's pure parts: admission, keys, options, tensors, frames."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from broker.gateway.anthropic_api.frames import AnthropicFrames
from broker.gateway.cli import ENV_PREFIX, main
from broker.gateway.clients import OWN
from broker.gateway.config import GatewayConfig
from broker.gateway.door import Door
from broker.gateway.gateway import Gateway
from broker.gateway.keys import KeyRing
from broker.gateway.kserve_api.tensors import pack_texts, tensors_of
from broker.gateway.openai_api.frames import OpenAIFrames
from broker.gateway.origins import is_local
from broker.gateway.problems import Problem, problem_of
from broker.gateway.watch import STALE_S, Watch
from mesh import Chunk, StatusReport
from mesh.errors import BrokerUnreachable, ConfigError, InvalidRequest, NodeLost, Overloaded
from mesh.options import load_options


def test_the_door_counts_what_waits_and_opens_again() -> None:
    door = Door(max_waiting=4)
    tickets = [door.enter("a", 1, now=0.0) for _ in range(3)]
    with pytest.raises(Problem, match="waiting") as caught:
        door.enter("a", 2, now=0.0)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    tickets[0].first_token(now=1.0)
    assert (door.num_waiting, door.num_inside) == (2, 3)
    door.enter("a", 2, now=1.0).leave()
    for ticket in tickets:
        ticket.leave()
        ticket.leave()
    assert (door.num_waiting, door.num_inside) == (0, 0)


def test_with_keys_the_key_is_the_share_and_users_have_none(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice secret\n")
    assert Gateway(GatewayConfig(api_key_file=tmp_path / "keys")).fair_share("alice", "anybody") == "alice"
    gateway = Gateway(GatewayConfig())
    assert gateway.fair_share(OWN, "") == OWN
    assert len({gateway.fair_share(OWN, f"user {number}") for number in range(10_000)}) == 32


def test_one_share_cannot_take_every_place() -> None:
    door = Door(max_waiting=100)
    for _ in range(80):
        door.enter("greedy", 1, now=0.0)
    with pytest.raises(Problem):
        door.enter("greedy", 1, now=0.0)
    door.enter("modest", 5, now=0.0)


@pytest.mark.parametrize("text", ["", "# only this\n", "name\n", "name key more\n", "a same\nb same\n"])
def test_a_wrong_key_file_is_an_error_that_shows_no_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        KeyRing(file)
    assert "same" not in str(caught.value)


def test_two_keys_may_have_one_name(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice old\nalice new\n")
    ring = KeyRing(file)
    assert [ring.name_of(key) for key in ("old", "new", "other", "")] == ["alice", "alice", None, None]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"bind": "0.0.0.0:8000"}, "--api-key-file"),
        ({"bind": "*"}, "--api-key-file"),
        ({"bind": "nonsense:x"}, "--bind"),
        ({"tls_cert": Path("/none")}, "--tls-key"),
        ({"api_key_file": Path("/none")}, "no file"),
        ({"max_waiting": 0}, "--max-waiting"),
        ({"metrics_port": 70_000}, "--metrics-port"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        GatewayConfig(**options)  # type: ignore[arg-type]


def test_the_command_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bind", "0.0.0.0:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_errors_of_the_mesh_have_their_status() -> None:
    assert problem_of(InvalidRequest("top_p: too large")).param == "top_p"
    assert problem_of(Overloaded("full", retry_after_s=7)).retry_after_s == 7
    assert problem_of(BrokerUnreachable("nobody")).status == 503
    assert problem_of(NodeLost("given up")).status == 502


def test_binary_tensors_are_read_and_written() -> None:
    blob = pack_texts(["é", ""])
    told = {"name": "t", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(blob)}}
    assert tensors_of([told], blob)[0].values == ("é", "")


@pytest.mark.parametrize(
    ("told", "blob"),
    [
        ({"parameters": {"binary_data_size": 9}}, b"1234"),
        ({"parameters": {"binary_data_size": 3}}, b"123"),
        ({"parameters": {"binary_data_size": 5}}, b"\xff\xff\xff\xff1"),
        ({"parameters": {"binary_data_size": 5}}, b"\x01\0\0\0\xff"),
        ({"parameters": {"binary_data_size": -1}}, b""),
        ({"data": ["a"]}, b"rest"),
        ({"data": ["a", "b"]}, b""),
        ({"data": [1]}, b""),
        ({"shape": [10**12], "data": []}, b""),
        ({"datatype": "INT32", "data": [True]}, b""),
    ],
)
def test_broken_tensors_are_a_400(told: dict[str, object], blob: bytes) -> None:
    with pytest.raises(Problem) as caught:
        tensors_of([{"name": "t", "datatype": "BYTES", "shape": [1], **told}], blob)
    assert caught.value.status == 400


def chunk(text: str, choice: int = 0) -> Chunk:
    return Chunk(text, (1,), None, choice)


def test_what_has_come_together_goes_out_together() -> None:
    frames = OpenAIFrames({"id": "x", "created": 1}, "m", include_usage=False, num_top=0)
    events = frames.tokens([chunk("a"), chunk('"b\n'), chunk("c", choice=1), chunk("", choice=1)]).split(b"\n\n")
    told = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events if event]
    assert [(one["index"], one["delta"].get("role"), one["delta"]["content"]) for one in told] == [
        (0, "assistant", ""), (0, None, 'a"b\n'), (1, "assistant", ""), (1, None, "c"),
    ]  # fmt: skip
    assert frames.tokens([chunk("")]) == b""


def test_anthropic_s_opening_comes_once() -> None:
    frames = AnthropicFrames("msg_1", "m")
    assert frames.tokens([chunk("")]).count(b"event: ") == 3
    assert frames.tokens([chunk("100 %")]).count(b"event: ") == 1
    assert frames.idle() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert AnthropicFrames("msg_2", "m").idle().startswith(b"event: message_start\n")  # a ping alone begins no message


def test_tokens_of_a_node_that_tells_no_text_are_named_by_their_ids() -> None:
    frames = OpenAIFrames({"id": "x", "created": 1}, "m", include_usage=False, num_top=1)
    events = frames.tokens([Chunk("a", (7, 8), (-0.5, -1.0))]).split(b"\n\n")
    (first, second) = json.loads(events[1].removeprefix(b"data: "))["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["bytes"], second["token"]) == ("token_id:7", None, "token_id:8")
    assert second["top_logprobs"] == [{"token": "token_id:8", "logprob": -1.0, "bytes": None}]


def test_the_gateway_s_variables_are_its_own(tmp_path: Path) -> None:
    """A host may run `phi3-broker serve` with its variables set as well."""
    (tmp_path / "gateway.toml").write_text('max_waiting = 7\nbind = "0.0.0.0:1"\n')
    env = {"PHI3_BROKER_CONFIG": "/none", "PHI3_BROKER_BIND": "*:5550", "PHI3_GATEWAY_BIND": "127.0.0.1:9"}
    env |= {"PHI3_GATEWAY_CONFIG": str(tmp_path / "gateway.toml"), "PHI3_MESH_BROKER": "h:1"}
    config = load_options(GatewayConfig, [], "phi3-broker gateway", env, env_prefix=ENV_PREFIX)
    assert (config.bind, config.max_waiting, config.broker) == ("127.0.0.1:9", 7, "h:1")


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8000", "https://[::1]"])
def test_pages_of_this_host_are_local(origin: str) -> None:
    assert is_local(origin)


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://127.0.0.1.evil.example", "http://[", ""])
def test_other_pages_are_not(origin: str) -> None:
    assert not is_local(origin)


def test_what_the_mesh_said_is_forgotten_when_it_falls_silent() -> None:
    now = 100.0

    async def ask() -> StatusReport:
        return StatusReport(kind="broker", name="b", node_id="1")

    async def scenario() -> None:
        nonlocal now
        watch = Watch(ask, clock=lambda: now)
        await watch.refresh()
        assert watch.report is not None
        now += STALE_S
        assert watch.report is None

    asyncio.run(scenario())


def test_the_gateway_is_a_client_and_nothing_more() -> None:
    """It imports the mesh, never the broker's other parts or the node."""
    folder = Path(main.__code__.co_filename).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith("node"), file
                assert not module.startswith("broker") or module.startswith("broker.gateway"), file
