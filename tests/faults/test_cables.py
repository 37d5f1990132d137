"""A cable is pulled, and put back: hosts in network namespaces, found over mDNS alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(180)]


def test_cut_cables_and_lost_packets_lose_nothing(tmp_path: Path) -> None:
    """The faults that need a network of their own, out of the schedule of a short run."""
    report_file = tmp_path / "report.json"
    command = ["-m", "scripts.chaostool", "--netns", "--minutes", "0.5", "--seed", "240", "--json", str(report_file)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    faults = json.loads(report_file.read_text())["faults_by_kind"]
    assert {"cut node's cable", "cut broker's cable", "lose 30 % of a node's packets"} <= faults.keys()
