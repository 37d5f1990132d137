"""A client that shares no code with this repository: written for Node from PROTOCOL.md alone, and as reliable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mesh import Client
from node.engine.synthetic_vocab import encode, expected_text
from tests.support.eventually import eventually
from tests.support.node_packages import require_node_packages
from tests.support.processes import Member, Mesh, mesh_in, wait_for_nodes

NODE = ("--synthetic", "step_base_s=0.01")


def token_for(name: str) -> str:
    command = [sys.executable, "-m", "broker.cli", "token", "--client", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Setting:
    """An encrypted mesh, as any is, and the key of one client of it."""

    mesh: Mesh
    nodes: list[Member]
    broker: Member
    client: Client  # Python's, which knows what is right and what is going on
    token: str

    def start(self, *words: str, token: str = "") -> subprocess.Popen[str]:
        script = require_node_packages() / "mesh_client.js"
        return subprocess.Popen(
            ["node", script, "--address", self.broker.address, *words],
            env={**os.environ, "PHI3_MESH_TOKEN": token or self.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, token: str = "") -> tuple[int, str, str]:
        process = self.start(*words, token=token)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def answers(self, *words: str) -> list[dict[str, Any]]:
        status, out, err = self.run("--json", *words)
        assert status == 0, err
        return [json.loads(line) for line in out.splitlines()]

    @property
    def running_on(self) -> list[str]:
        return [node.name for node in self.client.status().nodes if node.num_running]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    require_node_packages()
    with mesh_in(tmp_path_factory.mktemp("mesh")) as mesh:
        nodes = [mesh.node("n1", *NODE), mesh.node("n2", *NODE)]
        broker = mesh.broker("b1", *nodes)
        with Client(broker.address) as client:
            wait_for_nodes(client, 2)
            yield Setting(mesh, nodes, broker, client, token_for("node-js"))


def test_a_streamed_answer_is_python_s(setting: Setting) -> None:
    prompt = "Süßwaren 第三"
    status, out, err = setting.run("--max-tokens", "60", "--ignore-eos", prompt)
    assert (status, out) == (0, setting.client.generate(prompt, max_tokens=60, ignore_eos=True).text + "\n"), err


def test_so_is_a_sampled_one_with_a_stop_string_and_logprobs(setting: Setting) -> None:
    ask = {"max_tokens": 80, "temperature": 0.8, "seed": 7, "ignore_eos": True}
    stop = setting.client.generate("sampled", **ask).text[40:46]
    right = setting.client.generate("sampled", **ask, stop=[stop], logprobs=True)
    words = ("--max-tokens", "80", "--temperature", "0.8", "--seed", "7", "--ignore-eos", "--stop", stop, "--logprobs")
    (answer,) = setting.answers(*words, "sampled")
    assert (answer["text"], answer["finishReason"], answer["stopString"]) == (right.text, "stop", stop)
    assert (tuple(answer["tokenIds"]), tuple(answer["logprobs"])) == (right.token_ids, right.logprobs)
    assert answer["usage"]["completionTokens"] == right.usage.completion_tokens


def test_a_batch_goes_to_all_nodes_and_comes_back_in_order(setting: Setting) -> None:
    prompts = [f"text {number}" for number in range(100)]
    answers = setting.answers("--max-tokens", "8", *prompts)
    assert [answer["text"] for answer in answers] == [expected_text(encode(prompt), 8) for prompt in prompts]
    assert {answer["node"] for answer in answers} == {"n1", "n2"}


def test_errors_have_their_codes_and_a_deadline_is_kept(setting: Setting) -> None:
    status, _, err = setting.run("--max-tokens=0", "x")
    assert (status, err.split(":")[:2]) == (1, ["invalid_request", " max_tokens"])
    assert setting.run("--model", "nobody/has-this", "x")[2].startswith("no_such_model: ")
    assert setting.run("--timeout", "0.2", "--max-tokens", "5000", "--ignore-eos", "x")[2].startswith("deadline_")
    eventually(lambda: setting.client.status().num_in_flight == 0)


def test_a_key_that_does_not_fit_is_refused_with_words(setting: Setting) -> None:
    token = setting.token
    damaged = token[:40] + ("B" if token[40] == "A" else "A") + token[41:]
    assert "the token is damaged" in setting.run("x", token=damaged)[2]
    revoked = token_for("gone")
    subprocess.run([sys.executable, "-m", "broker.cli", "revoke", "gone"], check=True, capture_output=True)
    began = time.monotonic()
    assert "this token was revoked" in setting.run("x", token=revoked)[2]
    assert time.monotonic() - began < 10  # an answer that will not change: no half minute of trying


def test_who_leaves_frees_the_slot(setting: Setting) -> None:
    process = setting.start("--max-tokens", "5000", "--ignore-eos", "gone")
    eventually(lambda: setting.running_on, within_s=10)
    process.send_signal(signal.SIGINT)
    eventually(lambda: setting.client.status().num_in_flight == 0, within_s=1)
    assert process.communicate(timeout=10)[1].startswith("cancelled: ")


def test_heartbeats_keep_a_quiet_client(setting: Setting, tmp_path: Path) -> None:
    """One node that says nothing for longer than a lease, in which a client without heartbeats would be cut off."""
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("slow", "--synthetic", "step_base_s=1.2")
        broker = mesh.broker("b2", node, options=("--heartbeat", "0.2"))  # a lease of 0.6 s
        with Client(broker.address) as client:
            wait_for_nodes(client, 1)
            quiet = Setting(mesh, [node], broker, client, setting.token)
            (answer,) = quiet.answers("--max-tokens", "1", "quiet")
            assert answer["attempts"] == 1


def test_a_node_and_a_broker_that_are_killed_in_mid_stream_are_pauses(setting: Setting) -> None:
    """The last of this file, as little is left afterwards. Each token once, by its index; the text is the undisturbed
    one."""
    right = setting.client.generate("resume me", max_tokens=300, ignore_eos=True)
    other = setting.mesh.broker("b2", *setting.nodes)
    addresses = f"{setting.broker.address},{other.address}"
    process = setting.start("--address", addresses, "--max-tokens", "300", "--ignore-eos", "--json", "resume me")
    with Client(other.address) as client:
        eventually(lambda: setting.running_on, within_s=10)
        (name,) = setting.running_on
        next(node for node in setting.nodes if node.name == name).kill()
        eventually(lambda: setting.running_on not in ([], [name]))
        setting.broker.kill()
        eventually(lambda: client.status().num_in_flight == 1)
    answer = json.loads(process.communicate(timeout=30)[0])
    assert answer["attempts"] == 3
    assert tuple(answer["tokenIds"]) == right.token_ids
    assert answer["text"] == right.text
