"""`scripts/bench NAME [--json]`: each benchmark is a module here with `run() -> list[Row]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from scripts.benchmarks.table import machine, print_table

BENCHMARKS = {
    "imports": "CPU time to import the client and to show a command's help",
    "encryption": "what CURVE costs beside plain text",
    "failover": "how long a stream pauses when its node is killed or suspended",
    "engine": "the demo model: engine alone, through a node, through broker and node",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        epilog="\n".join(f"{name:10} {what}" for name, what in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    rows = importlib.import_module(f"scripts.benchmarks.{options.name}").run()
    if options.json:
        json.dump({"benchmark": options.name, "machine": machine(), "rows": rows}, sys.stdout, indent=2)
        print()
    else:
        print_table(f"{options.name}: {BENCHMARKS[options.name]}", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
