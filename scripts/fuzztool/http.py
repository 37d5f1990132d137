"""`scripts/fuzz-http`: schemathesis over a gateway in front of a synthetic mesh. The exit status is 0 if no answer was
a 5xx (but 504, a deadline that passed), nothing was logged that should not be, and the gateway still serves."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from mesh import Client
from tests.gateway.support import gateway_for, wait_until_ready
from tests.support.processes import mesh_in, wait_for_nodes

MODEL = "demo"
_QUICK = ("--timeout", "0.5", "--default-max-tokens", "8")  # most of the time for requests, not for answers
# Random names would be answered with 404 and tell nothing. A generation may outlive the time that it is given: 504.
_CONFIG = f"""
[parameters]
"path.name" = "{MODEL}"
"path.version" = "1"

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz-http", description=__doc__)
    parser.add_argument("schemathesis", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=60, metavar="T", help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="of the requests (default: a new one, which is printed)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="phi3-fuzz-http-") as name:
        folder = Path(name)
        os.environ["PHI3_MESH_HOME"] = f"{name}/home"
        with mesh_in(folder) as mesh:
            broker = mesh.broker("b", mesh.node("n", "--served-name", MODEL))
            with Client(broker.address) as client:
                wait_for_nodes(client, 1)
            with gateway_for(folder, broker.address, *_QUICK) as gateway:
                wait_until_ready(gateway.address)
                status = _fuzz(given.schemathesis, gateway.address, folder, given.seconds, given.seed)
                problems = _problems(gateway.address, gateway.log_text())
                print("\n".join(_outcomes(gateway.address)))
    print("\n".join([f"PROBLEM {problem}" for problem in problems] or ["the gateway is well"]))
    return status or int(bool(problems))


def _fuzz(program: str, url: str, folder: Path, seconds: int, seed: int | None) -> int:
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    command = [Path(program).absolute(), "--config-file", config, "run", "--checks", "not_a_server_error"]
    command += ["--continue-on-failure", "--max-time", str(seconds), "--request-timeout", "10", "--warnings", "off"]
    command += [] if seed is None else ["--seed", str(seed)]
    return subprocess.run([*command, f"{url}/openapi.json"], cwd=folder).returncode


def _outcomes(url: str) -> list[str]:
    """How many of the requests got how far, by API: one that only ever hears 400 is hardly tested."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sorted(line for line in lines if line.startswith("phi3_gateway_requests_total{"))


def _problems(url: str, log: str) -> list[str]:
    problems = [line for line in log.splitlines() if "Traceback" in line or " E " in line[:12]]
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5):
            return problems
    except OSError as error:
        return [*problems, f"the gateway does not serve any more: {error}"]


if __name__ == "__main__":
    sys.exit(main())
