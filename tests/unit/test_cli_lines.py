"""The input of a batch: what a line asks, what is wrong with it, and when an old answer still belongs to it."""

from __future__ import annotations

import io
import json

import pytest

from mesh.cli.batch.lines import Keys, Line, question_of, read_lines


def line(raw: bytes) -> Line:
    return Line(1, 1, raw)


def test_options_are_defaults_and_the_line_wins() -> None:
    question = question_of(line(b'{"prompt": "hi", "max_tokens": 3, "id": 7}'), {"max_tokens": 9, "top_k": 2})

    assert question.values == {"prompt": "hi", "max_tokens": 3, "top_k": 2}
    assert question.id == 7


def test_a_chat_is_a_list_of_messages() -> None:
    question = question_of(line(b'{"messages": [{"role": "user", "content": "hi"}]}'), {})

    assert question.values == {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"prompt: hi", "not JSON"),
        (b'{"prompt": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"hi"', "must be a JSON object"),
        (b"{}", "exactly one of prompt and messages"),
        (b'{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "exactly one of prompt and messages"),
        (b'{"prompt": "a", "temprature": 1}', "temprature: unknown parameter; known are prompt"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "a", "messages": [{"role": "usr"}]}', "messages"),
        (b'{"prompt": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(raw: bytes, problem: str) -> None:
    question = question_of(line(raw), {})

    assert question.values is None
    assert problem in question.problem


def test_a_bad_line_keeps_its_id() -> None:
    assert question_of(line(b'{"id": "x", "max_tokens": 3}'), {}).id == "x"


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert question_of(line(b'{"prompt": "\\ud83d\\ude42"}'), {}).values == {"prompt": "\N{SLIGHTLY SMILING FACE}"}


def test_lines_are_counted_as_an_editor_counts() -> None:
    file = io.BytesIO(b'{"prompt": "a"}\n\n  \r\n{"prompt": "b"}')

    assert [found.number for found in read_lines(file, Keys({}))] == [1, 4]


def test_line_endings_and_indents_do_not_change_the_key() -> None:
    first, second = read_lines(io.BytesIO(b'{"prompt": "a"}\r\n  {"prompt": "a"}\n'), Keys({}))

    assert first.key == second.key != 0


def test_the_key_follows_what_decides_the_answer() -> None:
    raw = json.dumps({"prompt": "a"}).encode()
    plain = Keys({"max_tokens": 5})

    assert plain.of(raw) != plain.of(raw + b" ")
    assert plain.of(raw) != Keys({"max_tokens": 6}).of(raw)
    assert plain.of(raw) == Keys({"max_tokens": 5, "timeout_s": 9.0}).of(raw)
    assert 0 < plain.of(raw) < 1 << 63
