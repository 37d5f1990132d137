"""What may reach a terminal, and the summary lines that do."""

from __future__ import annotations

import io

import pytest

from mesh import Completion
from mesh.cli import terminal
from mesh.cli.batch.tally import Tally
from mesh.cli.record import slim_record, summary
from mesh.client.results import Choice, Usage


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def completion(num_choices: int = 1, logprobs: tuple[float, ...] | None = None, attempts: int = 1) -> Completion:
    usage = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=0)
    return Completion.of(
        tuple(
            Choice(index, "hi", (1, 2), "stop", usage, None, logprobs, "m", "node-a", 0.5, 2.0, attempts)
            for index in range(num_choices)
        )
    )


def test_a_model_cannot_drive_the_terminal() -> None:
    assert terminal.harmless("a\x1b]0;title\x07\x9b31m\r\tb\n") == "a]0;title31m\tb\n"


def test_colours_go_to_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    assert terminal.dim("x", Screen()) == "\x1b[2mx\x1b[0m"
    assert terminal.dim("x", io.StringIO()) == "x"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    assert terminal.dim("x", Screen()) == "x"


def test_the_summary_is_one_line() -> None:
    assert summary(completion()) == "node-a · 2 tokens in 2.00 s · 1.0 tok/s · first after 0.50 s · stop"
    assert summary(completion(attempts=3)).endswith(" · 3 attempts")


def test_a_record_has_token_ids_only_with_their_logprobs() -> None:
    assert "token_ids" not in slim_record(completion())
    assert slim_record(completion(logprobs=(-0.1, -0.2)))["token_ids"] == (1, 2)


def test_a_record_has_choices_only_if_there_are_several() -> None:
    assert "choices" not in slim_record(completion())
    assert [choice["index"] for choice in slim_record(completion(2))["choices"]] == [0, 1]


def test_the_tally_tells_what_failed_and_what_can_be_retried() -> None:
    tally = Tally(num_lines=10, num_kept=3, num_failed_before=1)
    tally.num_answered, tally.num_tokens = 4, 400
    tally.failed.update({"node_lost": 2, "invalid_request": 1})

    told = tally.summary(2.0)

    assert told[0] == "4 answered, 400 tokens in 2.0 s (200 tok/s); 10 of 10 lines are done"
    assert told[1] == "3 failed: 2 node_lost, 1 invalid_request"
    assert told[-1] == "run the same command again to retry 2 of them"
    assert tally.num_failed == 4
