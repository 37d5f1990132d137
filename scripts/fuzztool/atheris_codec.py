"""Coverage-guided fuzzing of what reads hostile bytes, with `atheris` (no dependency: install it beside).

    python -m scripts.fuzztool.atheris_codec codec|bodies|broker|node -max_total_time=120

The target must never raise anything but what its contract names, and the books of a core must agree afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

with atheris.instrument_imports(include=["mesh", "broker", "node"]):
    from mesh import bodies
    from mesh.codec import decode, encode
    from mesh.errors import BadMessage, ProtocolError, RequestError
    from mesh.messages import Hello
    from mesh.report import StatusReport
    from node.prepare import parse
    from scripts.fuzztool.inputs import ENTRIES, HEADERS, REQUEST
    from tests.support.broker_harness import BrokerHarness
    from tests.support.node_harness import NodeHarness

Target = Callable[[bytes], None]
_FRESH_AFTER = 2000  # inputs: a core that lives for ever would make failures hard to repeat


def _codec(data: bytes) -> None:
    with suppress(ProtocolError):
        message = decode(data)
        assert decode(encode(message)) == message


def _bodies(data: bytes) -> None:
    with suppress(BadMessage):
        bodies.unpack_entries(data)
    with suppress(BadMessage):
        StatusReport.from_body(data)
    with suppress(RequestError):
        parse(data, 1 << 20)


def _frames(data: bytes) -> list[bytes]:
    """A message from one string: a byte of length before each frame but the last; 255 stands for an empty one."""
    frames: list[bytes] = []
    while data and len(frames) < 12:
        length = data[0] % 200 if data[0] < 255 else 0
        frames.append(data[1 : 1 + length])
        data = data[1 + length :]
    return [*frames, data]


class _Cores:
    """A core that is made anew now and then."""

    def __init__(self) -> None:
        self.count = 0

    def is_due(self) -> bool:
        self.count += 1
        return self.count % _FRESH_AFTER == 1


def _broker_target() -> Target:
    cores, harness = _Cores(), BrokerHarness()

    def target(data: bytes) -> None:
        nonlocal harness
        if cores.is_due():
            harness = BrokerHarness()
            harness.joins("a")
            harness.greets("client")
        harness.core.from_client([b"client", *_frames(data)], harness.now, "client:fuzz")
        harness.core.from_client([b"client", b"", data], harness.now, "client:fuzz")
        harness.core.take_actions(harness.now)
        harness.core.check_invariants()

    return target


def _node_target() -> Target:
    cores, harness = _Cores(), NodeHarness()

    def target(data: bytes) -> None:
        nonlocal harness
        if cores.is_due():
            harness = NodeHarness()
            harness.receives(Hello("client", "fuzz", 1, "default"))
        header, *parts = _frames(data)
        harness.agent.receive("client:fuzz", (b"client",), header, parts, harness.now)
        harness.agent.receive("client:fuzz", (b"client",), data, [REQUEST], harness.now)
        harness.sent.clear()
        for work, then in harness.in_thread:
            then(work())
        harness.in_thread.clear()

    return target


TARGETS: dict[str, Callable[[], Target]] = {
    "codec": lambda: _codec,
    "bodies": lambda: _bodies,
    "broker": _broker_target,
    "node": _node_target,
}


def main() -> None:
    name, options = sys.argv[1], sys.argv[2:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name]())
    atheris.Fuzz()


def seeds() -> list[bytes]:
    """What a corpus begins with."""
    return [*HEADERS, REQUEST, ENTRIES]


if __name__ == "__main__":
    main()
