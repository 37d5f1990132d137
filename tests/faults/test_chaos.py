"""A minute of everything at once: the command that people run, with a schedule that any seed would be as good for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.chaostool.faults import COMES_BROKEN, ROLLING
from scripts.chaostool.schedule import schedule

NODES, BROKERS = ["n0", "n1", "n2", "n3"], ["b0", "b1"]


def test_the_same_seed_gives_the_same_schedule_and_another_one_another() -> None:
    first = schedule(7, 300, NODES, BROKERS)
    assert first == schedule(7, 300, NODES, BROKERS)
    assert first != schedule(8, 300, NODES, BROKERS)


@pytest.mark.parametrize("seed", range(20))
def test_there_is_always_a_node_and_a_broker_left(seed: int) -> None:
    faults = schedule(seed, 1200, NODES, BROKERS, is_netns=True)
    assert len(faults) >= 150
    assert any(fault.kind == ROLLING for fault in faults)
    faults = [fault for fault in faults if fault.kind not in COMES_BROKEN]
    for moment in (fault.at_s for fault in faults):
        hit = {fault.target for fault in faults if fault.at_s <= moment <= fault.at_s + fault.lasts_s}
        assert len(hit & set(NODES)) <= 2
        assert len(hit & set(BROKERS)) <= 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_minute_of_faults_under_load_loses_doubles_and_changes_nothing(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    command = [sys.executable, "-m", "scripts.chaostool", "--minutes", "0.9", "--seed", "1735", "--json", report_file]
    done = subprocess.run(
        [*command, "--logs", tmp_path / "logs"], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_file.read_text())
    assert report["faults"] >= 10
    assert report["streams"] >= 500
    assert report["interrupted"] >= 10
