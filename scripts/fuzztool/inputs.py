"""What a hostile requester may send: frames by kind, from a seed. Pure, so that the tests use it without sockets."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgpack
import zstandard

from mesh import messages as m
from mesh.bodies import PLAIN, ZSTD, pack
from mesh.codec import MAX_PARTS, encode
from mesh.messages import Message, RequestHead
from tests.protocol.test_golden import GOLDEN, GOLDEN_ENTRIES, GOLDEN_REQUEST

Frames = list[bytes]
Input = tuple[str, Frames]
"""Its kind, and all frames behind the route: the delimiter, the header, bodies."""

MODEL = "demo"  # as in the golden messages
HEADERS = [bytes.fromhex(pinned) for _, pinned in GOLDEN]
REQUEST, ENTRIES = bytes.fromhex(GOLDEN_REQUEST), bytes.fromhex(GOLDEN_ENTRIES)
_FOR_REQUESTERS = [header for message, pinned in GOLDEN if message.tag >= 16 for header in [bytes.fromhex(pinned)]]
_BOMB = bytes([ZSTD]) + zstandard.compress(bytes(64 << 20))
_BROAD_BOMB = bytes([ZSTD]) + zstandard.compress(b"\xdd" + (15 << 20).to_bytes(4) + b"\x80" * (15 << 20))
_NUMBERS = (0, 1, 2, 255, 65_536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**31), -(2**63))
_FLOATS = (0.0, -1.0, 1e-300, 1e17, 1e308, float("inf"), float("-inf"), float("nan"))
_NAMES = ("", "a", "é" * 2000, "x" * 4096, "x" * 5000, "line\nforged key=value", "\0", "%s%n{0}", "../../etc", "\u202e")


class Inputs:
    """An endless source. `mesh` is what a good Hello names."""

    def __init__(self, seed: int, mesh: str) -> None:
        self._rng = random.Random(seed)
        self.mesh = mesh
        self._sent: deque[Frames] = deque(maxlen=64)
        self._makers: dict[str, tuple[int, Callable[[], Frames]]] = {  # how often, and what
            "greeting": (6, self._greeting),
            "random bytes": (15, self._random_bytes),
            "mutated golden": (30, self._mutated),
            "extreme values": (15, self._extreme),
            "hostile body": (10, self._hostile_body),
            "wrong count": (6, self._wrong_count),
            "odd route": (6, self._odd_route),
            "for requesters": (4, self._for_requesters),
            "replay": (6, self._replay),
            "deep nesting": (4, self._nested),
            "zstd bomb": (2, self._bomb),
            "huge": (0, self._huge),
            "many frames": (0, self._many_frames),
        }
        self._kinds = list(self._makers)
        self._weights = [weight for weight, _ in self._makers.values()]

    @property
    def kinds(self) -> list[str]:
        return self._kinds

    def next(self) -> Input:
        """One of any kind; those that cost a server milliseconds are rare, for they would hide the others."""
        rare = self._rng.random()
        if rare < 0.0004:
            return self.of("huge" if rare < 0.0002 else "many frames")
        return self.of(self._rng.choices(self._kinds, self._weights)[0])

    def of(self, kind: str) -> Input:
        frames = self._makers[kind][1]()
        self._sent.append(frames)
        return kind, frames

    # --- kinds --------------------------------------------------------------------------------------------------------

    def _greeting(self) -> Frames:
        """Without it the rest would only be refused."""
        rng = self._rng
        role, name, mesh = "client", "fuzz", self.mesh
        if rng.random() < 0.3:
            role, name = rng.choice(("client", "broker", *_NAMES)), rng.choice(_NAMES)
            mesh = rng.choice((self.mesh, self.mesh, *_NAMES))
        return [b"", _packed(1, [role, name, rng.choice((1, 1, 1, 2)), mesh, ["zstd"]])]

    def _random_bytes(self) -> Frames:
        count = self._rng.randint(0, 3)
        return [b"", *[self._rng.randbytes(self._rng.randint(0, 64)) for _ in range(count)]]

    def _mutated(self) -> Frames:
        header = self._mutate(self._rng.choice(HEADERS))
        return [b"", header, *self._rng.choices((REQUEST, self._mutate(REQUEST), ENTRIES), k=self._rng.randint(0, 2))]

    def _extreme(self) -> Frames:
        rng = self._rng
        if rng.random() < 0.5:
            head = [self._number(), self._number(), rng.choice(_NAMES), self._number(), self._number()]
            head += [rng.choice(_NAMES), rng.choice(_NUMBERS), rng.choice(_FLOATS), rng.choice((True, False, 2))]
            return [b"", _packed(3, [[head], []]), REQUEST]
        tag = rng.randint(0, 30)
        fields: list[object] = [
            rng.choice((*_NUMBERS, *_FLOATS, *_NAMES, [], [[1, 1]], {}, None)) for _ in range(rng.randint(0, 9))
        ]
        return [b"", _packed(tag, fields)]

    def _hostile_body(self) -> Frames:
        rng = self._rng
        body: dict[object, object] = {"prompt": rng.choice(_NAMES), "max_tokens": rng.choice((1, 2, *_NUMBERS))}
        for key in rng.sample(
            ["temperature", "top_p", "top_k", "stop", "stop_token_ids", "seed", "resume", "messages", *_NAMES], 2
        ):
            body[key] = rng.choice((*_NUMBERS, *_FLOATS, *_NAMES, None, [], [1] * 50, ["a"] * 20, [{"role": "user"}]))
        return self._submit(bytes([PLAIN]) + msgpack.packb(body, unicode_errors="surrogatepass"))

    def _wrong_count(self) -> Frames:
        heads = tuple(RequestHead(self._id(), 1, MODEL) for _ in range(self._rng.randint(0, 5)))
        return [b"", encode(m.Submit(heads)), *[REQUEST] * self._rng.randint(0, 8)]

    def _odd_route(self) -> Frames:
        """A DEALER may put frames before the delimiter: that is how a broker names its clients."""
        rng = self._rng
        route = [rng.randbytes(rng.choice((1, 5, 5, 255))) for _ in range(rng.choice((1, 1, 2, 7, 8, 9, 100)))]
        header = rng.choice((*HEADERS, encode(m.Submit((RequestHead(self._id(), 1, MODEL),)))))
        if rng.random() < 0.2:
            return route  # no delimiter at all
        return [*route, b"", *[b""] * rng.choice((0, 0, 1, 3)), header, REQUEST]

    def _for_requesters(self) -> Frames:
        return [b"", self._rng.choice(_FOR_REQUESTERS), ENTRIES]

    def _replay(self) -> Frames:
        return list(self._rng.choice(self._sent)) if self._sent else [b""]

    def _nested(self) -> Frames:
        rng = self._rng
        depth = rng.choice((9, 100, 1024, 20_000))
        deep = rng.choice((b"\x91", b"\x81\xa1a", b"\xdc\xff\xff", b"\xdd\x00\x00\xff\xff", b"\xde\xff\xff")) * depth
        return [b"", deep] if rng.random() < 0.5 else self._submit(b"\0" + deep)

    def _bomb(self) -> Frames:
        return self._submit(self._rng.choice((_BOMB, _BOMB[:-5], b"\x01" + self._rng.randbytes(40))))

    def _huge(self) -> Frames:
        rng = self._rng
        broad = rng.choice((b"\xc0", b"\x90", b"\x80", b"\xa1a")) * (1 << 20)
        return rng.choice(
            (
                [b"", b"\x94\x01\x04\xdd" + (1 << 20).to_bytes(4) + broad],
                [b"", rng.randbytes(2 << 20)],
                [b"", encode(m.Submit((RequestHead(1, 1),) * MAX_PARTS)), *[b""] * MAX_PARTS],
                [b"", encode(m.Cancel((1,) * 65_536))],
                self._submit(b"\0\xdd" + (1 << 20).to_bytes(4) + broad),
                self._submit(_BROAD_BOMB),
                self._submit(pack({"messages": [{"role": "user", "content": "x"}] * 60_000})),
                self._submit(pack({"messages": [{"wrong": 1}] * 60_000})),
                self._submit(pack({"prompt": " a" * (1 << 20)}, codec="zstd")),
            )
        )

    def _many_frames(self) -> Frames:
        return [b"", encode(m.Ping(1)), *[b""] * self._rng.choice((1_000, 20_000))]

    # --- parts --------------------------------------------------------------------------------------------------------

    def _submit(self, body: bytes) -> Frames:
        return [b"", encode(m.Submit((RequestHead(self._id(), 1, MODEL),))), body]

    def _id(self) -> int:
        return self._rng.randint(1, 50)

    def _number(self) -> int:
        return self._id() if self._rng.random() < 0.7 else self._rng.choice(_NUMBERS)

    def _mutate(self, frame: bytes) -> bytes:
        rng = self._rng
        changed = bytearray(frame)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed)) if changed else 0
            match rng.randrange(4):
                case 0 if changed:
                    changed[at] = rng.randrange(256)
                case 1:
                    changed[at:at] = rng.randbytes(rng.randint(1, 4))
                case 2:
                    del changed[at : at + rng.randint(1, 4)]
                case _:
                    changed += changed[at : at + 16]
        return bytes(changed)


def _packed(tag: int, fields: list[object]) -> bytes:
    packed: bytes = msgpack.packb([m.PROTOCOL_VERSION, tag, *fields])
    return packed


class NodeInputs:
    """What a hostile node may send to its broker: well-formed words about requests that it never had, and garbage."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._requester = Inputs(seed, "any")

    def well_formed(self) -> Frames:
        """Contradicts nothing in the protocol, so that the connection lives on."""
        rng = self._rng
        pairs = tuple((rng.randint(0, 50), rng.randint(0, 3)) for _ in range(rng.randint(0, 4)))
        request_id, attempt = rng.randint(0, 50), rng.randint(0, 3)
        message: Message = rng.choice(
            (
                m.Tokens(pairs, rng.choice((0, 1, 2**62))),
                m.Lost(pairs, "evil", "because"),
                m.Failed(request_id, attempt, rng.choice(_CODES), "because", "evil"),
                m.Rejected(request_id, attempt, rng.choice(_CODES), "because", rng.choice((0.0, -1.0, 1e17)), "evil"),
                m.Accepted((request_id,)),
                m.Report(1),
                m.Done(1, False, "line\nforged key=value"),
            )
        )
        route = [rng.randbytes(rng.choice((1, 5))) for _ in range(rng.choice((0, 1, 1, 2, 9)))]
        return [*route, b"", encode(message), *rng.choices((ENTRIES, b"", b"\x01garbage"), k=rng.randint(0, 2))]

    def garbage(self) -> Frames:
        return self._requester.next()[1]


_CODES = ("overloaded", "not_ready", "node_lost", "engine_failed", "invalid_request", "invented", "x" * 4000)
