"""A short run of `scripts/fuzz`, so that neither it nor what it tests decays."""

from __future__ import annotations

from pathlib import Path

from scripts.fuzztool.run import run


def test_a_broker_and_a_node_take_hostile_input_and_nobody_notices(home: Path, tmp_path: Path) -> None:
    report = run(num_inputs=20_000, seed=1, max_seconds=20, folder=tmp_path)
    assert report.problems == [], "seed 1"
    assert report.good_answers > 5
    assert report.num_inputs >= 5_000
    assert {"Refused bad_message", "Rejected invalid_request", "Welcome", "Tokens"} <= report.answers.keys()
