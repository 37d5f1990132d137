"""`scripts/fuzz`: see `--help`. The exit status is 0 if nothing crashed, failed or grew."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from scripts.fuzztool.run import Report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz")
    parser.description = "Send hostile input of every kind to a real broker and node, while a good client goes on."
    parser.add_argument("--inputs", type=int, default=100_000, metavar="N", help="how many messages (default: 100000)")
    parser.add_argument("--seed", type=int, help="of the inputs (default: a new one, printed)")
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="T", help="stop after so long in any case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="phi3-fuzz-") as folder:
        os.environ["PHI3_MESH_HOME"] = f"{folder}/home"
        report = run(given.inputs, seed, given.seconds, Path(folder))
    _show(report)
    if given.json is not None:
        given.json.write_text(json.dumps(dataclasses.asdict(report), indent=2) + "\n")
    return 1 if report.problems else 0


def _show(report: Report) -> None:
    print(f"{report.num_inputs} inputs in {report.seconds:.0f} s (seed {report.seed})")
    for title, counts in (("inputs", report.inputs), ("answers", report.answers)):
        print(f"\n{title}")
        for name, count in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"  {count:>10}  {name}")
    print(
        f"\ngood client: {report.good_answers} right answers; "
        f"p50 {report.good_p50_ms:.0f} ms, p99 {report.good_p99_ms:.0f} ms, worst {report.good_max_ms:.0f} ms"
    )
    for name, noted in report.memory_bytes.items():
        print(f"memory of {name}: " + ", ".join(f"{when} {size / 2**20:.1f} MiB" for when, size in noted.items()))
    print("\n" + "\n".join([f"PROBLEM {problem}" for problem in report.problems] or ["no problem"]))


if __name__ == "__main__":
    sys.exit(main())
