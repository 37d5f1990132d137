"""A real Prometheus on loopback, with its data in a folder of the test."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.chaostool.fleet import free_ports
from tests.support.eventually import eventually

EVERY = "500ms"


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that the expression gives now. Raises ValueError if it does not parse."""
        return self._get("query", query=expression)["result"]  # type: ignore[no-any-return]

    def value(self, expression: str) -> float:
        """Of the only series; not a number while there is none."""
        series = self.query(expression)
        return float(series[0]["value"][1]) if len(series) == 1 else float("nan")

    @property
    def names(self) -> set[str]:
        """Of all metrics."""
        return set(self._get("label/__name__/values"))

    @property
    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **params: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(params)}", timeout=10) as it:
                return json.load(it)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{params or path}: {json.load(error)['error']}") from None


@contextmanager
def prometheus_for(folder: Path, jobs: Mapping[str, list[str]], rules: Path) -> Iterator[Prometheus]:
    """Scrapes `jobs`, each a list of `host:port`, until the end of the test."""
    config = {
        "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["prometheus", *options], stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    prometheus = Prometheus(f"http://{address}")

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        eventually(is_ready, within_s=30)
        yield prometheus
    finally:
        process.terminate()
        process.wait(10)
