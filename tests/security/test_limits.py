"""Each limit has a name in the answer, and one caller's excess is that caller's alone."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from typing import Any

import msgpack
import pytest
import zmq
import zstandard
from tokenizers import Tokenizer

from broker.config import BrokerConfig
from mesh import bodies, messages
from mesh.bodies import PLAIN, ZSTD
from mesh.codec import MAX_HEADER_BYTES, MAX_PARTS, MAX_TEXT, decode, encode
from mesh.errors import BadMessage, ConfigError, RequestError
from mesh.file_limit import raise_file_limit
from mesh.link import BURST, MAX_FRAMES, Link
from mesh.messages import Hello, Refused, Rejected, RequestHead, Submit
from mesh.shape import MAX_CONTAINERS, MAX_DEPTH, MAX_ITEMS
from node.config import NodeConfig
from node.prepare import INLINE_BYTES, Limits, prepare_or_refuse
from node.text.synthetic import SyntheticTextCodec
from node.text.tokenizer import FolderTextCodec
from tests.support.broker_harness import Asked, BrokerHarness
from tests.support.node_harness import NodeHarness, engine_info
from tests.support.tiny_tokenizers import byte_level_json

ALICE, BOB = "client:alice", "client:bob"


def greeted(broker: BrokerHarness, name: str, user: str) -> None:
    hello = Hello("client", name, 1, broker.config.mesh)
    broker._hops.add(name)  # or the harness greets once more, as a member
    broker.core.from_client([name.encode(), b"", encode(hello)], broker.now, user)
    broker.settle()


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\xc0" * (MAX_HEADER_BYTES + 1), "bytes, at most"),
        (b"\xdc\xff\xff" * 1000, "nested more than"),
        (encode(Submit((RequestHead(1, 1),) * (MAX_PARTS + 1))), "of them, at most"),
        (msgpack.packb([1, 2, "x" * (MAX_TEXT + 1)]), "within the limits"),
    ],
    ids=["size", "nesting", "batch", "text"],
)
def test_a_header_past_a_limit_is_refused_by_name(frame: bytes, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode(frame)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x91" * (MAX_DEPTH + 20_000), f"nested more than {MAX_DEPTH} deep"),
        (b"\xdd" + (2 * MAX_ITEMS).to_bytes(4) + b"\xc0" * 2 * MAX_ITEMS, f"more than {MAX_ITEMS} values"),
        (b"\xdd" + (1 << 18).to_bytes(4) + b"\x80" * (1 << 18), f"more than {MAX_CONTAINERS} arrays and maps"),
        (b"\xdd\x00\xff\xff\xff" * 50, "nested more than"),
    ],
    ids=["nesting", "values", "containers", "claims"],
)
def test_a_body_that_would_fill_the_memory_is_refused_before_it_is_built(payload: bytes, words: str) -> None:
    """A map takes eighty times its byte: 16 MiB of them, which compress to a few hundred bytes, took 1.3 GB."""
    for frame in (bytes([PLAIN]) + payload, bytes([ZSTD]) + zstandard.compress(payload)):
        with pytest.raises(BadMessage, match=words):
            bodies.unpack(frame)


def test_the_longest_honest_bodies_are_within_the_limits() -> None:
    resume = {"prompt": "x", "resume": list(range(1_000_000))}
    assert len(bodies.unpack(bodies.pack(resume))["resume"]) == 1_000_000
    chat = {"messages": [{"role": "user", "content": "x"}] * 60_000}
    assert len(bodies.unpack(bodies.pack(chat))["messages"]) == 60_000


def test_no_text_is_longer_than_the_other_side_reads() -> None:
    """A node repeated an unknown parameter of 5,000 characters in its answer; its broker took that for a broken message
    and hung up on the node, with everybody's requests."""
    for text in ("x" * 5000, "é" * 4000, "🙂" * 2000, "x" * MAX_TEXT):
        rejected = decode(encode(Rejected(1, 1, "invalid_request", text, 0.0, "n")))
        assert isinstance(rejected, Rejected)
        assert text.startswith(rejected.text.rstrip("…"))
    node = NodeHarness()
    node.hello()
    unknown: dict[str, Any] = {"x" * 5000: 1}
    node.submits(1, **unknown)
    node.submits(2, messages=[{"wrong": 1}] * 50_000)
    for work, then in node.in_thread:
        then(work())
    told = node.said(Rejected)
    assert [one.code for one in told] == ["invalid_request"] * 2
    assert all(len(one.text) < 1000 for one in told)


def test_a_batch_option_that_could_not_be_used_is_refused_at_the_start() -> None:
    for config in (BrokerConfig, NodeConfig):
        with pytest.raises(ConfigError, match="--max-batch: must be at most"):
            config(max_batch=MAX_PARTS + 1)


# --- the loop ---------------------------------------------------------------------------------------------------------


def _linked(messages_to_send: list[list[bytes]], on_frames: object, until: object) -> None:
    async def run() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        left.bind("inproc://limits")
        right.connect("inproc://limits")
        for frames in messages_to_send:
            right.send_multipart(frames)
        link = Link(left, on_frames)  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while not until():  # type: ignore[operator]  # noqa: ASYNC110 - each round is one turn of the loop
                await asyncio.sleep(0)
        link.close()
        right.close(0)
        context.term()

    asyncio.run(run())


def test_a_burst_of_costly_messages_leaves_the_loop_its_turns() -> None:
    """256 of them in one turn, of 20 ms each, were five seconds without a heartbeat."""
    turns: list[int] = []
    received: list[list[bytes]] = []

    def costs_5_ms(frames: list[bytes]) -> None:
        received.append(frames)
        until = time.monotonic() + 0.005
        while time.monotonic() < until:
            pass

    def other_work() -> bool:
        turns.append(len(received))
        return len(received) == 60

    _linked([[b"x"]] * 60, costs_5_ms, other_work)
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= 6 < BURST


def test_a_message_of_endless_frames_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []
    _linked([[b""] * 3 * MAX_FRAMES], lambda frames: received.append(len(frames)), lambda: received)
    assert received == [MAX_FRAMES + 1]


def test_tokenising_leaves_the_loop_its_turns() -> None:
    """The plain `encode` keeps Python's lock for as long as it takes: seconds, for the longest prompt."""
    codec = FolderTextCodec(Tokenizer.from_str(byte_level_json()), None, ())
    working = threading.Thread(target=codec.encode, args=("hello world " * 60_000,))
    began = last = time.perf_counter()
    longest = 0.0
    working.start()
    while working.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < max(0.05, (last - began) / 2)


# --- the node ---------------------------------------------------------------------------------------------------------


def test_a_small_message_with_a_large_body_in_it_does_not_hold_the_loop_up() -> None:
    node = NodeHarness()
    node.hello()
    packed = bodies.pack({"prompt": "x" * (1 << 20)}, codec="zstd")
    assert packed[0] == ZSTD
    assert len(packed) < 1000
    node.receives(Submit((RequestHead(1, 1),)), packed)
    assert len(node.in_thread) == 1


def test_many_short_bodies_in_one_message_do_not_either() -> None:
    node = NodeHarness()
    node.hello()
    body = bodies.pack({"prompt": "x" * 3000})
    node.receives(Submit(tuple(RequestHead(i, 1) for i in range(1, 101))), *[body] * 100)
    assert len(node.in_thread) == 100 - INLINE_BYTES // len(body)


def test_what_is_still_being_prepared_counts_as_waiting() -> None:
    """It did not, so that a client could have any number of large bodies waiting for the one thread."""
    node = NodeHarness(max_waiting=3)
    node.hello()
    for request_id in range(1, 6):
        node.submits(request_id, prompt="x" * 5000)
    told = node.said(Rejected)
    assert [(one.request_id, one.code) for one in told] == [(4, "overloaded"), (5, "overloaded")]
    assert "3 requests waiting" in told[0].text


def test_the_bytes_of_what_waits_are_limited_and_freed_again() -> None:
    node = NodeHarness(max_waiting_bytes=12_000)
    node.hello()
    for request_id in range(1, 4):
        node.submits(request_id, prompt="x" * 5000)
    assert [(one.request_id, one.code) for one in node.said(Rejected)] == [(3, "overloaded")]
    assert "bytes held at n1" in node.said(Rejected)[0].text
    node.receives(messages.Cancel((1, 2)))
    assert node.agent.work.requests.num_bytes == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"max_requests_per_client": 2}, "unfinished requests of this client"),
        ({"max_bytes_per_client": 12_000}, "bytes held for this client"),
    ],
)
def test_one_client_of_a_node_cannot_fill_it(option: dict[str, Any], words: str) -> None:
    node = NodeHarness(**option)
    node.hello()
    node.hello((b"other",))
    for request_id in range(1, 4):
        node.submits(request_id, prompt="x" * 5000)
    assert [(one.request_id, one.code) for one in node.said(Rejected)] == [(3, "overloaded")]
    assert words in node.said(Rejected)[0].text
    node.submits(1, prompt="x" * 5000, route=(b"other",))
    assert node.said(messages.Accepted, (b"other",))


def test_a_broker_is_not_one_client() -> None:
    node = NodeHarness(max_requests_per_client=2)
    node.hello(role="broker")
    for request_id in range(1, 6):
        node.submits(request_id, route=(b"client", b"%d" % request_id))
    assert node.said(Rejected) == []
    assert len(node.agent.work.requests) == 5


def test_connections_to_a_node_are_limited() -> None:
    node = NodeHarness(max_connections=2)
    for name in (b"a", b"b", b"c"):
        node.hello((name,))
    assert [one.code for one in node.said(Refused, (b"c",))] == ["too_many_connections"]
    node.hello((b"a",))
    assert node.said(Refused, (b"a",)) == []  # it is here already
    node.receives(messages.Bye(), route=(b"b",))
    node.hello((b"c",))
    assert node.said(messages.Welcome, (b"c",))


def test_only_a_broker_may_speak_for_others() -> None:
    """Each made-up route was a client of its own, with a fair share and limits of its own."""
    node = NodeHarness()
    node.hello(user=ALICE)
    node.submits(1, route=(b"client", b"another"))
    assert [one.code for one in node.said(Refused, (b"client", b"another"))] == ["bad_message"]
    broker = BrokerHarness()
    broker.joins("a")
    greeted(broker, "alice", ALICE)
    broker.submits("alice/made-up", 1)
    assert [one.code for one in broker.heard_by("alice/made-up", Refused)] == ["bad_message"]
    assert broker.core.status(broker.now).num_in_flight == 0


def test_a_prompt_that_cannot_fit_is_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeHarness()
    node.workers[0].info = engine_info(max_model_len=10)
    codec = node.agent.work.codec
    assert codec is not None
    node.agent.work.worker_ready(codec, node.now)
    monkeypatch.setattr(codec, "encode", lambda text: pytest.fail("it was tokenised"))
    node.hello()
    node.submits(1, prompt="x" * 3000)
    assert [one.code for one in node.said(Rejected)] == ["prompt_too_long"]


def test_whatever_a_library_makes_of_a_prompt_concerns_that_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        """As those of Rust libraries."""

    def encode_badly(text: str) -> list[int]:
        raise Panic(text)

    node = NodeHarness()
    monkeypatch.setattr(node.agent.work.codec, "encode", encode_badly)
    node.hello()
    node.submits(1, prompt="the secret words")
    assert [one.code for one in node.said(Rejected)] == ["invalid_request"]
    assert "secret words" not in caplog.text + node.said(Rejected)[0].text


def test_a_refused_body_is_not_kept_by_the_error_about_it() -> None:
    """Through its traceback: seven times the body, for as long as anybody had the error."""
    codec, limits = SyntheticTextCodec(), Limits.of([engine_info()])
    for body in ({"prompt": "x" * 2000}, {"messages": [{"wrong": 1}]}, {"prompt": 1}):
        refused = prepare_or_refuse(bodies.pack(body), codec, limits, 1 << 20)
        assert isinstance(refused, RequestError)
        assert [refused.__traceback__, refused.__context__, refused.__cause__] == [None] * 3


def test_a_cancelled_request_leaves_nothing_due() -> None:
    """Its client was due for a message without entries, which ended the turn, and other clients' tokens with it."""
    node = NodeHarness()
    node.hello()
    node.submits(1)
    request = node.workers[0].submitted[0]
    node.step(request)
    node.step(request, after=1)  # gathered, not sent yet
    node.receives(messages.Cancel((1,)))
    node.time_passes(0.1)
    assert len(node.said(messages.Tokens)) == 1


# --- the broker -------------------------------------------------------------------------------------------------------


def test_connections_to_a_broker_are_limited() -> None:
    broker = BrokerHarness(max_connections=3, max_connections_per_client=2)
    for name, user in (("a1", ALICE), ("a2", ALICE), ("a3", ALICE), ("b1", BOB), ("b2", BOB)):
        greeted(broker, name, user)
    refused = {name: [one.code for one in broker.heard_by(name, Refused)] for name in ("a3", "b1", "b2")}
    assert refused == {"a3": ["too_many_connections"], "b1": [], "b2": ["too_many_connections"]}
    broker.core.client_unreachable(b"a1")
    greeted(broker, "a3", ALICE)
    assert broker.heard_by("a3", messages.Welcome)


@pytest.mark.parametrize(
    ("option", "words"),
    [({"max_requests_per_client": 3}, "unfinished"), ({"max_bytes_per_client": 12}, "bytes of this client")],
)
def test_one_client_cannot_fill_a_broker_not_even_over_many_connections(option: dict[str, int], words: str) -> None:
    broker = BrokerHarness(**option)
    broker.joins("a", slots=1)
    for name, user in (("a1", ALICE), ("a2", ALICE), ("b1", BOB)):
        greeted(broker, name, user)
    asked = [*broker.submits("a1", 3), *broker.submits("a2", 3)]
    told = [one for name in ("a1", "a2") for one in broker.heard_by(name, Rejected)]
    assert told
    assert {one.code for one in told} == {"overloaded"}
    assert words in told[0].text
    assert broker.where_is(broker.submits("b1", 1)[0])
    for one in asked:
        broker.cancels(Asked(one.client, one.request_id))
    assert broker.where_is(broker.submits("a2", 1)[0])


def test_a_stranger_s_long_message_is_not_even_read() -> None:
    broker, node = BrokerHarness(), NodeHarness()
    long = encode(messages.Cancel(tuple(range(60_000))))
    broker.core.from_client([b"who", b"", long], broker.now, ALICE)
    broker.settle()
    node.agent.receive(ALICE, (b"who",), long, [], node.now)
    refused = [*broker.heard_by("who", Refused), *node.said(Refused, (b"who",))]
    assert [one.code for one in refused] == ["no_hello", "no_hello"]


def test_a_node_with_endless_models_is_not_used() -> None:
    broker = BrokerHarness()
    node = broker.joins("a", models={f"m{i}": 1 for i in range(1000)})
    assert "more than 256 models" in broker.hung_up[node.peer][0]


# --- logs and files ---------------------------------------------------------------------------------------------------


def test_a_name_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    forged = "x\n00:00:00 I serving address=tcp://evil"
    broker, node = BrokerHarness(), NodeHarness()
    broker.core.from_client([b"a", b"", encode(Hello("client", forged, 1, "default"))], broker.now, ALICE)
    node.receives(Hello("client", forged, 1, "default"), route=(b"a",))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert not any("\n" in line for line in told)


def test_who_comes_and_goes_a_thousand_times_does_not_fill_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broker, node = BrokerHarness(), NodeHarness()
    for number in range(2000):
        name = f"c{number}"
        greeted(broker, name, ALICE)
        broker.from_client(name, messages.Bye())
        node.hello((name.encode(),))
        node.receives(messages.Bye(), route=(name.encode(),))
    assert len(caplog.records) == 2 * 2 * 200


def test_a_server_takes_as_many_file_descriptors_as_it_may() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_file_limit() > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
