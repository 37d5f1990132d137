"""The output file of a batch: whatever ended the last run, the next one finds each line once, and loses none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.batch.ledger import Ledger
from mesh.errors import ConfigError

Records = list[dict[str, Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@contextmanager
def opened(path: Path, is_retried: Callable[[str], bool] = lambda code: False, **options: bool) -> Iterator[Ledger]:
    with closing(Ledger(path, is_retried, **options)) as ledger:
        yield ledger


def wrote(path: Path, *lines: tuple[int, dict[str, Any]]) -> None:
    with opened(path) as ledger:
        for number, record in lines:
            ledger.write(number, number * 10, record)


def records(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_was_written_is_known_to_the_next_run(path: Path) -> None:
    wrote(path, (3, {"text": "c"}), (1, {"text": "a"}))

    with opened(path) as ledger:
        assert [ledger.key_of(number) for number in range(5)] == [0, 10, 0, 30, 0]
        assert (ledger.num_kept, ledger.last_line) == (2, 3)


def test_a_torn_last_line_is_cut_off_and_the_line_counts_as_not_done(path: Path) -> None:
    wrote(path, (1, {"text": "a"}), (2, {"text": "b"}))
    path.write_bytes(path.read_bytes()[:-9])

    with opened(path) as ledger:
        assert ledger.key_of(2) == 0
        ledger.write(2, 20, {"text": "again"})

    assert [record["text"] for record in records(path)] == ["a", "again"]


def test_an_error_that_is_retried_leaves_the_file_and_others_stay(path: Path) -> None:
    wrote(path, (1, {"text": "a"}), (2, {"error": {"code": "node_lost"}}), (3, {"error": {"code": "invalid_request"}}))

    with opened(path, lambda code: code == "node_lost") as ledger:
        assert (ledger.num_kept, ledger.num_failed, ledger.num_retried) == (2, 1, 1)
        ledger.write(2, 20, {"text": "b"})

    assert [record["line"] for record in records(path)] == [1, 3, 2]
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_a_symbolic_link_stays_one_when_errors_are_dropped(path: Path, tmp_path: Path) -> None:
    wrote(path, (1, {"error": {"code": "node_lost"}}))
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)

    with opened(link, lambda code: True):
        pass

    assert link.is_symlink()
    assert records(path) == []


@pytest.mark.parametrize(
    "content",
    ["not json\n", "[1]\n", '{"line": 1}\n', '{"line": "1", "key": "0a"}\n', '{"line": 1, "key": "zz"}\n'],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(path: Path, content: str) -> None:
    path.write_text(content)

    with pytest.raises(ConfigError, match=r"line 1 was not written by this command.*--restart"):
        Ledger(path, lambda code: False)

    assert path.read_text() == content


def test_restart_begins_anew(path: Path) -> None:
    path.write_text("anything")

    with opened(path, restart=True) as ledger:
        assert ledger.num_kept == 0

    assert path.read_bytes() == b""


def test_two_runs_cannot_write_one_file(path: Path) -> None:
    with opened(path), pytest.raises(ConfigError, match="another run is writing this file"):
        Ledger(path, lambda code: False)


def test_the_lock_survives_the_dropping_of_errors(path: Path) -> None:
    wrote(path, (1, {"error": {"code": "node_lost"}}))

    with opened(path, lambda code: True), pytest.raises(ConfigError, match="another run"):
        Ledger(path, lambda code: True)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        Ledger(tmp_path / "no" / "out.jsonl", lambda code: False)


def test_text_with_half_a_character_does_not_break_the_file(path: Path) -> None:
    wrote(path, (1, {"text": "x\ud800"}))

    assert records(path)[0]["text"] == "x?"
