"""`scripts/chaos`: see `--help`. The exit status is 0 if every answer was right and nothing was left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from scripts.chaostool.options import Options, parse
from scripts.chaostool.report import print_report
from scripts.chaostool.run import Run, StartFailed


def main() -> int:
    options = parse()
    print(f"seed {options.seed}", file=sys.stderr)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
        return _run(options, options.logs)
    with tempfile.TemporaryDirectory(prefix="phi3-chaos-") as folder:
        return _run(options, Path(folder))


def _run(options: Options, logs: Path) -> int:
    try:
        report = asyncio.run(Run(options, logs).perform())
    except StartFailed as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    print_report(report)
    if options.json_path is not None:
        values = {"is_good": report.is_good, **dataclasses.asdict(report)}
        options.json_path.write_text(json.dumps(values, indent=2) + "\n")
    if not report.is_complete:
        return 130  # as a shell says it of Ctrl-C
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
