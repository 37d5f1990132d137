"""What members show to Prometheus, without one: names, bounds, and a server that strangers cannot keep busy."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from prometheus_client.core import Metric

from broker.config import BrokerConfig
from mesh.errors import ConfigError
from mesh.metrics import from_loop
from mesh.metrics.buckets import Buckets
from mesh.metrics.counters import BROKER, MAX_EVENTS, NODE, counter_families
from mesh.metrics.exporter import MAX_CONNECTIONS, Exporter
from mesh.metrics.from_loop import FromLoop, Unavailable
from mesh.metrics.loop_lag import EVERY_S, LoopLag
from mesh.metrics.mesh_view import mesh_families
from mesh.metrics.samples import MAX_LABEL_CHARS, MAX_VALUES, gauge
from mesh.report import DeviceReport, ModelReport, NodeReport, StatusReport
from node.config import NodeConfig
from tests.support.eventually import eventually

Series = dict[str, float]


def series(families: Iterable[Metric]) -> Series:
    """Value by name and labels. No series may occur twice."""
    samples = [sample for family in families for sample in family.samples]
    written = [sample.name + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())) for sample in samples]
    assert [name for name, count in Counter(written).items() if count > 1] == []
    return dict(zip(written, [sample.value for sample in samples], strict=True))


def node(name: str, **facts: object) -> NodeReport:
    values = {"state": "ready", "version": "1", "models": (ModelReport(name="phi", slots_total=8),), **facts}
    return NodeReport(name=name, **values)


def report(*nodes: NodeReport, **values: object) -> StatusReport:
    return StatusReport(**{"kind": "broker", "name": "b", "node_id": "b", "nodes": nodes, **values})


# --- histograms -------------------------------------------------------------------------------------------------------


def test_a_value_belongs_to_the_bucket_whose_bound_it_equals() -> None:
    buckets = Buckets((0.1, 1, 10))
    for value in (0.05, 0.1, 0.5, 10, 11):
        buckets.add(value)
    assert buckets.cumulative() == [("0.1", 2), ("1.0", 3), ("10.0", 4), ("+Inf", 5)]
    assert (buckets.count, buckets.total) == (5, pytest.approx(21.65))


def test_a_copy_does_not_change_any_more() -> None:
    buckets = Buckets((1,))
    copy = buckets.copy()
    buckets.add(0.5)
    assert (copy.count, copy.total, buckets.count) == (0, 0.0, 1)


def test_a_loop_that_stands_still_is_seen() -> None:
    async def stand_still() -> LoopLag:
        lag = LoopLag()
        lag.start()
        time.sleep(3 * EVERY_S)  # noqa: ASYNC251 - this is what is to be seen
        await asyncio.sleep(0.001)  # now it runs what is due
        lag.stop()
        return lag

    lag = asyncio.run(stand_still())
    assert lag.buckets.count == 1
    assert lag.buckets.total >= 1.5 * EVERY_S


# --- counters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "plan"), [("phi3_broker", BROKER), ("phi3_node", NODE)])
def test_what_has_never_happened_is_zero_and_not_missing(prefix: str, plan: object) -> None:
    shown = series(counter_families(prefix, plan, {}))  # type: ignore[arg-type]
    assert shown[f"{prefix}_requests_total outcome=finished"] == 0
    assert shown[f"{prefix}_rejections_total reason=overloaded"] == 0
    assert shown[f"{prefix}_malformed_messages_total"] == 0


def test_counters_go_where_they_belong_and_a_new_one_is_an_event() -> None:
    counted = {"finished": 3, "rejected_overloaded": 2, "rejected_by_magic": 1, "refused_no_hello": 4, "tokens": 50}
    shown = series(counter_families("x", BROKER, {**counted, "invented_today": 7}))
    assert shown["x_requests_total outcome=finished"] == 3
    assert shown["x_rejections_total reason=overloaded"] == 2
    assert shown["x_rejections_total reason=by_magic"] == 1
    assert shown["x_refusals_total reason=no_hello"] == 4
    assert shown["x_tokens_total"] == 50
    assert shown["x_events_total event=invented_today"] == 7


def test_invented_counters_are_limited() -> None:
    shown = series(counter_families("x", NODE, {f"e{i}": 1 for i in range(10 * MAX_EVENTS)}))
    assert sum(name.startswith("x_events_total") for name in shown) == MAX_EVENTS


# --- the mesh ---------------------------------------------------------------------------------------------------------


def test_a_node_is_in_one_state_and_one_that_is_lost_leaves_no_other_series() -> None:
    shown = series(mesh_families("m", report(node("a"), NodeReport(name="b", state="lost"))))
    assert {name: value for name, value in shown.items() if name.startswith("m_node_state") and value} == {
        "m_node_state node=a state=ready": 1,
        "m_node_state node=b state=lost": 1,
    }
    assert shown["m_node_slots model=phi node=a"] == 8
    assert not [name for name in shown if "node=b" in name and not name.startswith("m_node_state")]
    assert (shown["m_nodes state=ready"], shown["m_nodes state=lost"]) == (1, 1)


def test_nodes_and_devices_that_share_a_name_are_told_apart() -> None:
    cards = (DeviceReport(name="H200", utilisation=0.5, temperature_c=60.0), DeviceReport(name="H200"))
    shown = series(
        mesh_families("m", report(node("gpu", address="tcp://a", devices=cards), node("gpu", address="tcp://b")))
    )
    assert sum(name.startswith("m_node_slots") for name in shown) == 2
    assert shown["m_node_device_utilisation_ratio device=H200 #0 node=gpu"] == 0.5
    assert shown["m_node_device_utilisation_ratio device=H200 #1 node=gpu"] == 0
    # 0 °C is what a driver says that cannot tell.
    assert [name for name in shown if "temperature" in name] == [
        "m_node_device_temperature_celsius device=H200 #0 node=gpu"
    ]


def test_what_nodes_call_themselves_cannot_grow_the_series_without_end() -> None:
    long = "x" * 10_000
    many = [node(f"{long}{i}", models=tuple(ModelReport(name=f"{long}{k}") for k in range(9))) for i in range(700)]
    families = list(mesh_families("m", report(*many, models=tuple(ModelReport(name=f"{i}") for i in range(2000)))))
    series(families)
    assert max(len(family.samples) for family in families) <= 7 * MAX_VALUES
    labels = [value for family in families for sample in family.samples for value in sample.labels.values()]
    assert max(map(len, labels)) == MAX_LABEL_CHARS


def test_what_a_node_has_counted_is_shown_by_known_names_only() -> None:
    counted = {"resumed_requests": 2, "recomputed_tokens": 90, "finished": 5, "m_evil_total{}": 1}
    shown = series(mesh_families("m", report(node("a", counters=counted))))
    assert shown["m_node_resumed_requests_total node=a"] == 2
    assert shown["m_node_recomputed_tokens_total node=a"] == 90
    assert shown["m_node_requests_total node=a outcome=finished"] == 5
    assert not [name for name in shown if "evil" in name]


# --- the server -------------------------------------------------------------------------------------------------------


@contextmanager
def exporting(take: Callable[[], float]) -> Iterator[str]:
    """An exporter beside a loop that runs in a thread. Gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    exporter = Exporter("127.0.0.1", 0)
    exporter.start(FromLoop(loop, take, lambda value: [gauge("taken", "What was taken.", value)]))
    try:
        yield exporter.url
    finally:
        asyncio.run_coroutine_threadsafe(exporter.stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def get(url: str, **options: object) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=5) as answer:  # type: ignore[arg-type]
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_values_are_taken_on_the_loop() -> None:
    def take() -> float:
        asyncio.get_running_loop()  # raises in any other thread
        return 42.0

    with exporting(take) as url:
        status, text = get(url)
        assert (status, "taken 42.0" in text, "process_cpu_seconds_total" in text) == (200, True, True)
        assert get(url.replace("/metrics", "/"))[0] == 404
        assert get(url, data=b"x")[0] == 405


def test_connections_that_say_nothing_do_not_keep_a_scrape_waiting() -> None:
    with exporting(lambda: 1.0) as url, ExitStack() as silent:
        host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
        for _ in range(MAX_CONNECTIONS + 4):
            silent.enter_context(socket.create_connection((host, int(port)))).sendall(b"GET /metr")
        began = time.monotonic()
        assert get(url)[0] == 200
        assert time.monotonic() - began < 3
        named = lambda: [t for t in threading.enumerate() if "process_request_thread" in t.name]  # noqa: E731
        eventually(lambda: len(named()) <= MAX_CONNECTIONS)


def test_a_loop_that_hangs_or_has_ended_is_said_to_be_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_loop, "WITHIN_S", 0.1)
    goes_on = threading.Event()
    with exporting(lambda: float(goes_on.wait(5))) as url:
        status, text = get(url)
        goes_on.set()
    assert (status, "has not answered" in text) == (503, True)
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(Unavailable, match="has ended"):
        list(FromLoop(loop, lambda: 0.0, lambda value: []).collect())


def test_a_bug_in_what_is_taken_reaches_the_scraper_and_not_the_loop(capfd: pytest.CaptureFixture[str]) -> None:
    with exporting(lambda: 1 / 0) as url:
        assert get(url)[0] == 500
        assert get(url)[0] == 500
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_port_in_use_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"--metrics-port: cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            Exporter("127.0.0.1", port)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BrokerConfig, NodeConfig])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metrics_port": 70_000}, "--metrics-port: must be from 0 to 65535, not 70000"),
        ({"metrics_port": 9464, "metrics_host": "10.0.0.1:9"}, "--metrics-host: '10.0.0.1:9' is no host"),
        ({"metrics_port": 9464, "metrics_host": "a b"}, "--metrics-host: 'a b' is no host"),
        ({"metrics_host": "127.0.0.1"}, "--metrics-host: without --metrics-port nothing is shown"),
    ],
)
def test_a_wrong_option_is_named(config: type, options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        config(**options)


@pytest.mark.parametrize("config", [BrokerConfig, NodeConfig])
@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1", "*", "gpu-1.example"])
def test_hosts_that_will_do(config: type, host: str) -> None:
    assert config(metrics_port=9464, metrics_host=host).metrics_host == host


def test_who_does_not_ask_for_metrics_does_not_wait_for_the_library() -> None:
    command = "import sys, mesh.client.aio, broker.serve, node.server; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command]).returncode == 0
