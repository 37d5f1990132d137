"""The judge of the chaos runs can say no: whatever may go wrong with an answer is found, and blamed on its cause."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mesh.client.results import Choice, Chunk, Usage
from scripts.chaostool import oracle
from scripts.chaostool.faults import Fault
from scripts.chaostool.inject import Injected
from scripts.chaostool.records import Pause, Result, Setback, Verdict, from_line, to_line
from scripts.chaostool.tally import SEVERAL, UNEXPLAINED, Blame, Tally, detect_times, pause_times

PARAMS: dict[str, Any] = {
    "prompt": "a prompt", "max_tokens": 40, "temperature": 1.0, "seed": 3, "logprobs": True, "ignore_eos": True,
}  # fmt: skip


def right_answer() -> Choice:
    want = oracle.expected(PARAMS)
    usage = Usage(want.prompt_tokens, len(want.token_ids), 0)
    return Choice(
        0,
        want.text,
        want.token_ids,
        want.finish_reason,
        usage,
        3,
        want.logprobs,
        "m",
        "n",
        0.0,
        0.0,
        1,
        None,
        want.pieces,
    )


def chunks_of(choice: Choice, size: int = 7) -> list[Chunk]:
    parts = [choice.token_ids[start : start + size] for start in range(0, len(choice.token_ids), size)]
    return [Chunk(choice.text if number == 0 else "", part, None) for number, part in enumerate(parts)]


def test_the_right_answer_is_right() -> None:
    assert oracle.difference(PARAMS, right_answer()) == ""
    assert oracle.torn(chunks_of(right_answer()), [right_answer()]) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": right_answer().token_ids[:-1]},
        {"token_ids": (*right_answer().token_ids, 300)},
        {"text": right_answer().text + " "},
        {"finish_reason": "stop"},
        {"logprobs": None},
        {"pieces": None},
        {"stop_string": "x"},
        {"usage": Usage(8, 39, 0)},
        {"index": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_answer_is_named_by_what_is_wrong(wrong: dict[str, Any]) -> None:
    assert oracle.difference(PARAMS, dataclasses.replace(right_answer(), **wrong))


@pytest.mark.parametrize("tear", [lambda chunks: [*chunks, chunks[-1]], lambda chunks: chunks[:2] + chunks[3:]])
def test_a_token_that_is_streamed_twice_or_skipped_is_found(tear: Any) -> None:
    torn = tear(chunks_of(right_answer()))

    assert oracle.torn(torn, [right_answer()])
    assert oracle.torn_prefix(PARAMS, torn)


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    text = oracle.expected({"prompt": "p", "max_tokens": 30, "ignore_eos": True}).text
    long, short = text[10:20], text[14:16]

    got = oracle.expected({"prompt": "p", "max_tokens": 30, "ignore_eos": True, "stop": [long, short]})

    assert got.text == text[: text.find(short)]
    assert (got.finish_reason, got.stop_string) == ("stop", short)


def injected(kind: str, who: str, at: float, ended_at: float) -> Injected:
    return Injected(Fault(0.0, kind, who, 1.0), who, at, ended_at)


def test_setbacks_and_pauses_are_blamed_on_the_fault_that_hit_whom_they_name() -> None:
    faults = [injected("kill agent", "n0", 100.0, 101.0), injected("stop broker", "b0", 100.5, 103.0)]
    blame = Blame(faults, {"b0": "127.0.0.1:5550"})
    of_node, of_broker = Setback(100.2, "n0", "gone"), Setback(102.0, "tcp://127.0.0.1:5550", "silent")
    of_nobody = Setback(100.3, "n1", "why?")

    assert [blame.kind_of(each) for each in (of_node, of_broker, of_nobody)] == [
        "kill agent", "stop broker", UNEXPLAINED,
    ]  # fmt: skip
    assert blame.kind_of(of_node, of_broker) == SEVERAL
    assert detect_times([of_broker, of_node], blame) == {"stop broker": [1.5], "kill agent": [pytest.approx(0.2)]}
    assert pause_times([Pause(100.0, 100.25, (of_node,))], blame) == {"kill agent": [0.25]}


def test_what_a_client_process_tells_is_counted_as_it_was_meant() -> None:
    setback = Setback(1.0, "n0", "gone", 3)
    result = Result("greedy stream", Verdict.TORN, True, 2, 0.5, "twice", (Pause(0.9, 1.1, (setback,)),))
    tally = Tally()

    for record in (setback, result):
        assert from_line(to_line(record).encode()) == record
        tally.add(record)

    assert (tally.num_requests, tally.num_bad, tally.num_interrupted) == (1, 1, 1)
    assert tally.details == ["torn: greedy stream: twice"]
