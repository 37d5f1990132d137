"""Every message on the wire. PROTOCOL.md is the contract; a golden-bytes test pins each one.

Fields are positional: append with a default, never reorder, never reuse a tag. No logic lives here.

Parts that travel by the hundred are NamedTuples: MessagePack writes and reads those as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

PROTOCOL_VERSION = 1
ROLES = ("client", "broker")  # of a requester
MAX_HELLO_BYTES = 16 << 10  # a longer header from somebody who has not said Hello is not even read

MESSAGES: dict[int, type[Message]] = {}


@dataclass(frozen=True, slots=True)
class Message:
    """Base of the header messages. `tag` is the second element of the header array."""

    tag: ClassVar[int] = 0


def message(tag: int):  # type: ignore[no-untyped-def]  # a decorator: the class goes in and comes out
    """Register a message class under its tag."""

    def register(cls):  # type: ignore[no-untyped-def]
        if tag in MESSAGES:
            raise ValueError(f"tag {tag} is taken by {MESSAGES[tag].__name__}")
        cls.tag = tag
        MESSAGES[tag] = cls
        return cls

    return register


# --- parts of messages ------------------------------------------------------------------------------------------------


class RequestHead(NamedTuple):
    """What a broker needs to know of a request; the rest is in the body frame, which no broker reads."""

    request_id: int  # chosen by the client, unique among its unfinished requests
    attempt: int  # from 1
    model: str = ""  # "" = whatever is served, if that is one model
    prompt_tokens: int = 0  # estimate; 0 = unknown
    max_tokens: int = 0  # still to generate; 0 = unknown
    affinity: str = ""  # requests with one key go to one node where the policy heeds it
    priority: int = 0  # higher goes first within one client
    deadline_s: float = 0.0  # seconds left when this was sent; 0 = none
    stream: bool = True  # False: tokens may be gathered longer before they are sent


class ModelLoad(NamedTuple):
    """One served model: what it offers and what it holds now."""

    name: str
    max_model_len: int  # prompt + generated tokens of one request
    slots_total: int  # sequences that run at the same time
    num_running: int = 0  # taken in and not finished, from all requesters
    num_waiting: int = 0  # of those, not yet in a slot
    num_yours: int = 0  # of num_running, those that came over this connection


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU, or the CPU, as its driver or the system reports it. Zero: unknown."""

    name: str
    utilisation: float = 0.0  # share of time in which it computed, from 0 to 1, over the last seconds
    memory_used_bytes: int = 0  # by all processes
    memory_total_bytes: int = 0
    temperature_c: float = 0.0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a person wants to see in `status`. A broker passes these on; it decides nothing by them."""

    engine: str = ""
    device: str = ""
    dtype: str = ""
    version: str = ""  # of the software
    tokens_per_s: float = 0.0  # generated, over the last seconds
    ttft_p50_s: float = 0.0  # engine_ttft: taken in -> first token
    ttft_p99_s: float = 0.0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    busy_fraction: float = 0.0  # share of time inside engine steps, over the last seconds
    uptime_s: float = 0.0
    note: str = ""  # why it is not ready, in words
    itl_p50_s: float = 0.0  # between two steps that gave a request tokens
    itl_p99_s: float = 0.0
    target_itl_s: float = 0.0  # what adaptive concurrency holds it to; 0: the number of slots is fixed
    devices: tuple[DeviceFacts, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()  # since start: requests by outcome, tokens, resumed and recomputed ones


# --- requester -> server ----------------------------------------------------------------------------------------------


@message(1)
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First on every connection. Answered with Welcome or Refused."""

    role: str  # "client" or "broker"
    name: str
    epoch: int  # this process start
    mesh: str  # must equal the server's
    codecs: tuple[str, ...] = ()  # beside plain: "zstd"


@message(2)
@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Every heartbeat_s. Answered with Pong."""

    sequence: int


@message(3)
@dataclass(frozen=True, slots=True)
class Submit(Message):
    """A batch of requests: one body frame for each head, in the same order."""

    requests: tuple[RequestHead, ...]
    codecs: tuple[str, ...] = ()  # what the client accepts in answers, beside plain


@message(4)
@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """Forget these. No answer comes; frames already under way may still arrive."""

    request_ids: tuple[int, ...]


@message(5)
@dataclass(frozen=True, slots=True)
class Query(Message):
    """Ask for a report. Answered with Report."""

    query_id: int
    what: str = "status"


@message(6)
@dataclass(frozen=True, slots=True)
class Admin(Message):
    """Ask for a change. Answered with Done."""

    query_id: int
    action: str  # "drain" or "undrain"
    target: str  # node name or node id


@message(7)
@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The requester leaves: cancel all it has here."""


# --- server -> requester ----------------------------------------------------------------------------------------------


@message(16)
@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answers Hello. The requester follows the timers given here."""

    kind: str  # "node" or "broker"
    name: str
    node_id: str  # who it is for life
    epoch: int  # this process start
    mesh: str
    heartbeat_s: float
    liveness: int  # heartbeats that may be missed
    max_batch: int  # requests in one Submit
    max_body_bytes: int  # one body frame, after decompression
    codecs: tuple[str, ...] = ()
    models: tuple[ModelLoad, ...] = ()


@message(17)
@dataclass(frozen=True, slots=True)
class Pong(Message):
    """Answers Ping. Facts, not opinions: the broker decides."""

    sequence: int
    epoch: int
    state: str  # "joining", "ready", "draining"
    num_steps: int  # engine steps so far, all workers
    last_step_age_s: float  # of the worker whose work waits longest; 0 when no work waits
    models: tuple[ModelLoad, ...] = ()
    facts: NodeFacts = NodeFacts()


@message(18)
@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """These were taken in and wait. May be left out for those that go to an engine at once, whose tokens say as much;
    is not said to a broker, which has told its clients already."""

    request_ids: tuple[int, ...]


@message(19)
@dataclass(frozen=True, slots=True)
class Tokens(Message):
    """New tokens of one or more requests of one client, in one body frame (see mesh.bodies)."""

    finished: tuple[tuple[int, int], ...] = ()  # (request_id, attempt) of those that end in this frame
    num_tokens: int = 0  # in the body, all requests together


@message(20)
@dataclass(frozen=True, slots=True)
class Rejected(Message):
    """Nothing ran."""

    request_id: int
    attempt: int
    code: str
    text: str
    retry_after_s: float = 0.0
    node: str = ""


@message(21)
@dataclass(frozen=True, slots=True)
class Lost(Message):
    """Their node died, hung or is leaving: resubmit with what you have, as the next attempt."""

    requests: tuple[tuple[int, int], ...]  # (request_id, attempt)
    node: str
    reason: str


@message(22)
@dataclass(frozen=True, slots=True)
class Failed(Message):
    """It ran and went wrong."""

    request_id: int
    attempt: int
    code: str
    text: str
    node: str = ""


@message(23)
@dataclass(frozen=True, slots=True)
class Report(Message):
    """Answers Query; the report is in the body frame."""

    query_id: int


@message(24)
@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answers Admin."""

    query_id: int
    ok: bool
    text: str = ""


@message(25)
@dataclass(frozen=True, slots=True)
class Refused(Message):
    """This connection, or a message on it, is not acceptable."""

    code: str  # "version_mismatch", "wrong_mesh", "bad_message", "forbidden", "no_hello", "revoked_key", …
    text: str
