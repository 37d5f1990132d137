"""`scripts/bench NAME [--json]`: each benchmark is a module here with `run(options) -> list[Row]`.

A module with options of its own has `add_options(parser)` as well.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys

from scripts.benchmarks.table import machine, print_table

BENCHMARKS = {
    "imports": "CPU time to import the client and to show a command's help",
    "encryption": "what CURVE costs beside plain text",
    "failover": "how long a stream pauses when its node is killed or suspended",
    "engine": "the demo model: engine alone, through a node, through broker and node",
    "tune": "throughput and latency of a node by batch size, and where --target-itl puts it",
    "scale": "1 to 64 synthetic nodes behind one broker: tokens/s over the sum of what they could do alone",
    "source-table": "the source documents' table: one card, four cards without balancing, the mesh on four",
    "policies": "latency and throughput of every dispatch policy on mixed lengths over mixed GPUs",
    "client": "what one Python client process can drive: requests/s, CPU per request and per streamed token",
    "batch": "generate_batch of 10,000 prompts: time, memory, the largest message",
    "long": "prompts of 128K tokens: how late the agent's heartbeats get, and its memory",
    "dispatch": "what one request costs the broker, and zmq.proxy in its place; other routers with --peers",
    "stream": "what one relayed token costs the broker, and how much later it comes; other routers with --peers",
    "gateway": "what a request and a streamed token cost the gateway; other routers with --peers",
    "compression": "bytes and CPU with zstd and without, and from which bandwidth on it pays",
}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended with it
    parser = argparse.ArgumentParser(prog="scripts/bench")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME", title="benchmarks")
    for name, what in BENCHMARKS.items():
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--json", action="store_true", help="one JSON object instead of a table")
        if name in sys.argv[1:2] and hasattr(_module(name), "add_options"):
            _module(name).add_options(command)
    options = parser.parse_args()
    rows = _module(options.name).run(options)
    if options.json:
        json.dump({"benchmark": options.name, "machine": machine(), "rows": rows}, sys.stdout, indent=2)
        print()
    else:
        print_table(f"{options.name}: {BENCHMARKS[options.name]}", rows)
    return 0


def _module(name: str):  # type: ignore[no-untyped-def]  # a benchmark, as described above
    return importlib.import_module(f"scripts.benchmarks.{name.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
