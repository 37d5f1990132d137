"""A real node with --target-itl behind a real broker: it settles, and everybody hears what it admits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mesh import Client
from mesh.report import NodeReport
from tests.support.eventually import eventually
from tests.support.processes import mesh_in, wait_for_nodes

TARGET_S = 0.030
RIGHT = 20  # 10 ms and 1 ms for each sequence
NUM_PROMPTS, NUM_TOKENS = 110, 40


@pytest.mark.slow
def test_a_saturated_node_settles_at_its_target_and_its_broker_follows(tmp_path: Path) -> None:
    timing = ("step_base_s=0.01", "step_per_seq_s=0.001", "slots=40")
    options = [word for number in timing for word in ("--synthetic", number)]
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("n1", *options, "--target-itl", str(TARGET_S))
        broker = mesh.broker("b1", node)
        with Client(broker.address) as client:
            wait_for_nodes(client, 1)
            assert seen(client).slots_total == 10  # a quarter, to begin with
            prompts = [f"prompt {number}" for number in range(NUM_PROMPTS)]
            asking = threading.Thread(
                target=client.generate_batch, args=(prompts,), kwargs={"max_tokens": NUM_TOKENS, "ignore_eos": True}
            )
            asking.start()
            reports: list[NodeReport] = []

            def has_settled() -> bool:
                reports.append(seen(client))
                return 0.8 * RIGHT <= reports[-1].slots_total <= 1.2 * RIGHT

            eventually(has_settled, within_s=20)
            asking.join(60)
            assert not asking.is_alive()
            report = eventually(lambda: busy_no_more(client))

    assert report.counters["finished"] == NUM_PROMPTS
    assert report.counters["generated_tokens"] == NUM_PROMPTS * NUM_TOKENS
    assert report.target_itl_s == TARGET_S
    assert report.itl_p50_s == pytest.approx(TARGET_S, rel=0.3)
    assert "target 30 ms between tokens" in report.note
    (device,) = report.devices
    assert device.name == "synthetic instant"
    assert max(one.devices[0].utilisation for one in reports) > 0.5


def seen(client: Client) -> NodeReport:
    (report,) = client.status().nodes
    return report


def busy_no_more(client: Client) -> NodeReport | None:
    report = seen(client)
    return report if report.counters.get("finished") == NUM_PROMPTS else None
