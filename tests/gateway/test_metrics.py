"""What Prometheus reads: true numbers, and names after its rules."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from tests.gateway.conftest import MODEL  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402

API = 'api="openai_completions"'


def series(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_requests_are_counted_by_outcome_and_timed(tmp_path: Path, broker: str) -> None:
    with gateway_for(tmp_path, broker) as gateway:
        wait_until_ready(gateway.address)
        url = f"{gateway.address}/v1/completions"
        assert httpx.post(url, json={"prompt": "one", "max_tokens": 40}).status_code == 200
        assert httpx.post(url, json={"prompt": "two", "max_tokens": 40, "stream": True}).status_code == 200
        assert httpx.post(url, json={"prompt": "three", "nonsense": 1}).status_code == 400
        counted = series(gateway.address)
    assert counted[f'phi3_gateway_requests_total{{{API},outcome="finished"}}'] == 2
    assert counted[f'phi3_gateway_requests_total{{{API},outcome="invalid"}}'] == 1
    assert counted[f"phi3_gateway_time_to_first_token_seconds_count{{{API}}}"] == 2
    assert counted[f"phi3_gateway_request_duration_seconds_count{{{API}}}"] == 2
    assert counted[f"phi3_gateway_inter_token_seconds_count{{{API}}}"] >= 1
    assert counted["phi3_gateway_prompt_tokens_total"] == 6
    assert 0 < counted["phi3_gateway_generated_tokens_total"] <= 80
    assert counted["phi3_gateway_in_flight_requests"] == counted["phi3_gateway_waiting_requests"] == 0


def test_the_mesh_is_told_node_by_node(url: str) -> None:
    eventually(lambda: series(url).get("phi3_mesh_ready_nodes") == 2)
    told = series(url)
    assert told["phi3_mesh_up"] == 1
    for name in ("n1", "n2"):
        assert told[f'phi3_mesh_node_slots{{model="{MODEL}",node="{name}"}}'] >= 64
        states = [value for key, value in told.items() if re.match(rf'phi3_mesh_node_state{{node="{name}"', key)]
        assert sum(states) == 1
    assert told["phi3_mesh_tokens_total"] >= 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's prometheus)")
def test_names_and_units_are_after_prometheus_own_rules(url: str) -> None:
    text = httpx.get(f"{url}/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_port_of_its_own_for_the_scraper(tmp_path: Path, broker: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with gateway_for(tmp_path, broker, "--metrics-port", str(port)):
        answer = eventually(lambda: httpx.get(f"http://127.0.0.1:{port}/metrics"))
        assert "phi3_mesh_up" in answer.text
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 404
