"""A real Prometheus scrapes a broker, nodes and a gateway at work; all of the dashboard's queries and alerts run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from scripts.chaostool.fleet import free_ports  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import mesh_in  # noqa: E402
from tests.support.prometheus import Prometheus, prometheus_for  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian's package)"),
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's prometheus)"),
]

GRAFANA = Path(__file__).parent.parent.parent / "scripts" / "grafana"
WINDOW = "10s"
NUM_CALLERS = 4
ONLY_GPUS = {f"phi3_node_device_{what}" for what in ("temperature_celsius", "power_watts", "memory_size_bytes")}
NODE = ("--synthetic", "step_base_s=0.01")


@dataclass
class Scene:
    """What the tests look at, after a node has been killed under load."""

    prometheus: Prometheus
    targets: dict[str, str]  # the address of a /metrics, by whose it is


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("prometheus")
    broker_at, n1_at, n2_at, gateway_at = (f"127.0.0.1:{port}" for port in free_ports(4))

    def at(address: str) -> tuple[str, str]:
        return "--metrics-port", address.rpartition(":")[2]

    with mesh_in(folder) as mesh:
        n1, n2 = mesh.node("n1", *NODE, *at(n1_at)), mesh.node("n2", *NODE, *at(n2_at))
        broker = mesh.broker("b1", n1, n2, options=at(broker_at))
        jobs = {"phi3-broker": [broker_at], "phi3-node": [n1_at, n2_at], "phi3-gateway": [gateway_at]}
        with (
            gateway_for(folder, broker.address, *at(gateway_at)) as gateway,
            prometheus_for(folder, jobs, GRAFANA / "alerts.yml") as prometheus,
        ):
            wait_until_ready(gateway.address)
            eventually(lambda: prometheus.value("sum(phi3_broker_ready_nodes)") == 2, within_s=30)
            with Callers(gateway.address) as callers:
                eventually(lambda: prometheus.value('phi3_broker_node_running_requests{node="n2"}') >= 1)
                eventually(lambda: callers.num_answers > 0)
                n2.kill()
                eventually(lambda: prometheus.value("sum(phi3_node_resumed_requests_total)") >= 1, within_s=20)
                eventually(lambda: prometheus.value('phi3_broker_node_state{node="n2",state="lost"}') == 1)
                targets = {"broker": broker_at, "node": n1_at, "gateway": gateway_at}
                yield Scene(prometheus, {whose: f"http://{address}/metrics" for whose, address in targets.items()})


class Callers:
    """People who ask, one stream after another, and now and then for a model that nobody serves."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/completions"
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(NUM_CALLERS)
        self._calls: list[Future[None]] = []
        self.num_answers = 0

    def __enter__(self) -> Callers:
        self._calls = [self._threads.submit(self._call, number) for number in range(NUM_CALLERS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._threads.shutdown()
        for call in self._calls:
            call.result()  # raises what went wrong: a killed node must be a pause and no more

    def _call(self, number: int) -> None:
        with httpx.Client(timeout=30) as http:
            while not self._is_over.is_set():
                body = {"prompt": f"caller {number}", "max_tokens": 40, "stream": True}
                assert "[DONE]" in http.post(self._url, json=body).text
                self.num_answers += 1
                assert http.post(self._url, json={"prompt": "x", "model": "nobody/has-it"}).status_code == 404


def dashboard_queries() -> list[tuple[str, str]]:
    """Title of the panel, and query as Grafana would send it."""
    dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
    return [
        (panel["title"], re.sub(r"\$(broker|node)\b", ".*", target["expr"].replace("$__rate_interval", WINDOW)))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def test_every_query_of_the_dashboard_gives_data(scene: Scene) -> None:
    queries = [query for _, query in dashboard_queries()]
    assert len(queries) > 50
    for query in queries:
        scene.prometheus.query(query)  # raises if it does not parse, also where there is no GPU to give data
    waiting = [query for query in queries if not any(name in query for name in ONLY_GPUS)]

    def all_have_data() -> bool:
        waiting[:] = [query for query in waiting if not scene.prometheus.query(query)]
        return not waiting

    with suppress(AssertionError):
        eventually(all_have_data)  # rates need two samples, and some things have happened only just now
    assert waiting == []


def test_every_metric_that_is_asked_for_exists(scene: Scene) -> None:
    asked = [query for _, query in dashboard_queries()] + [rule["query"] for rule in scene.prometheus.rules]
    named = set(re.findall(r"\bphi3_[a-z0-9_]+", " ".join(asked))) - ONLY_GPUS - {"phi3_"}
    assert len(named) > 30
    assert named - scene.prometheus.names == set()


def test_every_alert_is_evaluated_and_the_lost_node_is_noticed(scene: Scene) -> None:
    def rules() -> dict[str, str]:
        """Name and state of each; empty while one has not been evaluated, or cannot be."""
        told = scene.prometheus.rules
        return {rule["name"]: rule["state"] for rule in told} if all(rule["health"] == "ok" for rule in told) else {}

    states = eventually(rules)
    assert len(states) == (GRAFANA / "alerts.yml").read_text().count("- alert:")
    eventually(lambda: rules().get("Phi3NodeLost") in ("pending", "firing"))
    assert states["Phi3BrokerAbsent"] == states["Phi3NoNodeReady"] == states["Phi3NoProgress"] == "inactive"


@pytest.mark.parametrize("whose", ["broker", "node", "gateway"])
def test_names_and_units_are_after_prometheus_own_rules(scene: Scene, whose: str) -> None:
    with urllib.request.urlopen(scene.targets[whose], timeout=10) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_what_the_members_say_agrees(scene: Scene) -> None:
    """The callers have at most the tokens that the broker relayed, and nodes resumed at most what it handed over."""
    prometheus = scene.prometheus
    at_gateway = "sum(phi3_gateway_generated_tokens_total offset 1s)"  # they are scraped in turn, not all at once
    eventually(lambda: prometheus.value(at_gateway) > 0)
    assert prometheus.query(f"{at_gateway} <= sum(phi3_broker_tokens_total)")
    resumed = prometheus.value('sum(phi3_node_resumed_requests_total{job="phi3-node"})')
    assert 1 <= resumed <= prometheus.value("sum(phi3_broker_failovers_total)")


def test_the_alerts_fire_when_they_should() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ran = subprocess.run(["promtool", *command], cwd=GRAFANA, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
