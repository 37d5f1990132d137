"""Each message between agent and worker survives the pipe."""

from __future__ import annotations

from array import array

import pytest

from node.engine import ipc
from node.engine.base import EngineInfo, EngineOptions, EngineRequest, EngineStats, StepOutput

MESSAGES = [
    ipc.Start(EngineOptions(engine="synthetic", slots=3, synthetic={"step_base_s": 0.5}), "/home/of/models"),
    ipc.Submit(
        [
            EngineRequest(2**62, [1, 2], 3, 0.5, 0.9, 40, 2**63 - 1, [2], True, 1),
            EngineRequest(1, [1], 1, stop_token_ids=[]),
            EngineRequest(3, array("I", [7, 2**31 - 1]), 1, stop_token_ids=[], num_prompt=2),
        ]
    ),
    ipc.Cancel([1, 2**62]),
    ipc.Stop(),
    ipc.Progress("loading 模型"),
    ipc.Ready(EngineInfo("demo", "b179", "cpu", "float32", 49152, 8192, 32768, 16, "the default", 1.5)),
    ipc.Outputs([StepOutput(1, [5], [-0.5], "length"), StepOutput(2, [], [], "error", "too long", 7)]),
    ipc.Stats(EngineStats(1, 2, 3, 0.5, 4, 5, 6, 7, 8.5)),
    ipc.Fatal("out of memory"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_pipe(message: ipc.Message) -> None:
    assert ipc.decode(ipc.encode(message)) == message


def test_every_message_is_covered() -> None:
    assert {type(message) for message in MESSAGES} == set(ipc.Message.__args__)


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x91\x63", b"\x92\x02\x01", b"\xff" * 10])
def test_a_frame_that_is_no_message_is_an_error_of_its_own(frame: bytes) -> None:
    with pytest.raises(ipc.BadFrame):
        ipc.decode(frame)
