"""One run: a broker, a node, a hostile node, attackers with both kinds of keys, strangers, and a witness."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from mesh import Client
from mesh.link import Context
from mesh.security.loading import member_credentials
from mesh.security.registry import ClientRegistry
from mesh.security.sockets import secure_client
from mesh.security.tokens import parse_token
from scripts.chaostool.member import memory_of
from scripts.fuzztool.attacker import Attacker
from scripts.fuzztool.hostile_node import HostileNode
from scripts.fuzztool.inputs import MODEL, Inputs
from scripts.fuzztool.strangers import Strangers
from scripts.fuzztool.witness import Witness
from tests.support.processes import Member, mesh_in, wait_for_nodes

MAX_GROWTH_BYTES = 128 << 20  # after a warm-up: two of the worst bodies in the threads that prepare them, and gaps
_WARM_UP = 0.2  # of the run
_KNOCK_EVERY = 200  # inputs
_SETTLE_S = 60.0
_MESH = "default"


@dataclass
class Report:
    """What came of a run."""

    seed: int
    seconds: float = 0.0
    inputs: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    good_answers: int = 0
    good_p50_ms: float = 0.0
    good_p99_ms: float = 0.0
    good_max_ms: float = 0.0
    memory_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # by process: at the start, warm, most, end
    problems: list[str] = field(default_factory=list)

    @property
    def num_inputs(self) -> int:
        return sum(self.inputs.values())


def run(num_inputs: int, seed: int, max_seconds: float, folder: Path) -> Report:
    """Needs PHI3_MESH_HOME: keys are made there."""
    report = Report(seed)
    with ExitStack() as stack:
        stage = _Stage(stack, folder, seed)
        _attack(stage, num_inputs, max_seconds, report)
        stage.judge(report)
    return report


class _Stage:
    """Everybody who takes part, and the memory of those who are watched."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        rng = random.Random(seed)
        credentials = member_credentials()
        token = ClientRegistry().add(f"fuzz-{os.getpid()}-{rng.randrange(10**9)}", credentials)
        named = parse_token(token)
        mesh = stack.enter_context(mesh_in(folder))
        self.node = mesh.node("n", "--direct", "--served-name", MODEL)
        self.evil = stack.enter_context(closing(HostileNode(credentials, credentials.mesh_id(_MESH), seed)))
        self.broker = mesh.broker("b", self.node, options=("--node", self.evil.address))
        context: Context = zmq.Context()
        stack.callback(context.destroy, 0)
        self.attackers = [
            stack.enter_context(closing(Attacker(context, server.address, secure_client(key), inputs)))
            for number, (server, key) in enumerate(
                (s, k) for s in (self.broker, self.node) for k in (named, credentials)
            )
            for inputs in [Inputs(seed + number, credentials.mesh_id(_MESH))]
        ]
        ports = [int(server.address.rpartition(":")[2]) for server in self.watched]
        self.strangers = stack.enter_context(closing(Strangers(context, ports, secure_client(named), rng)))
        with Client(self.broker.address) as client:
            wait_for_nodes(client, 1)
        self.witness = stack.enter_context(closing(Witness(self.broker.address)))
        self.memory = {server.name: {"start": memory_of(server.pid)} for server in self.watched}

    @property
    def watched(self) -> list[Member]:
        return [self.broker, self.node]

    def is_alive(self) -> bool:
        return all(server.process.poll() is None for server in self.watched)

    def note_memory(self, when: str) -> None:
        for server in self.watched:
            noted, now = self.memory[server.name], memory_of(server.pid)
            noted.setdefault("warm" if when == "warm" else "most", now)
            noted["most"] = max(noted.get("most", 0), now)
            noted["end"] = now

    def judge(self, report: Report) -> None:
        self.witness.close()
        self.note_memory("end")
        report.inputs = dict(sum((a.sent for a in self.attackers), Counter()) + self.strangers.sent + self.evil.sent)
        report.answers = dict(sum((a.answers for a in self.attackers), Counter[str]()).most_common())
        report.memory_bytes = self.memory
        took = sorted(self.witness.answered_s)
        report.good_answers = len(took)
        if took:
            report.good_p50_ms, report.good_p99_ms, report.good_max_ms = (
                1000 * took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99, 1.0)
            )
        report.problems += [f"good client: {failure}" for failure in self.witness.failures[:20]]
        if not took:
            report.problems.append("the good client got no answer at all")
        if report.answers.get("UNREADABLE"):
            report.problems.append(f"{report.answers['UNREADABLE']} answers could not be read")
        for server in self.watched:
            if server.process.poll() is not None:
                report.problems.append(f"{server.name} ended with status {server.process.returncode}")
            if "Traceback" in server.log_text():
                report.problems.append(f"{server.name} logged an exception:\n{_last_traceback(server.log_text())}")
            noted = self.memory[server.name]
            if noted["end"] - noted.get("warm", noted["start"]) > MAX_GROWTH_BYTES:
                report.problems.append(f"{server.name} grew from {noted['warm']} to {noted['end']} bytes")


def _attack(stage: _Stage, num_inputs: int, max_seconds: float, report: Report) -> None:
    began = told_at = time.monotonic()
    is_warm = False
    while stage.is_alive():
        num_sent = sum(attacker.num_sent for attacker in stage.attackers)
        now = time.monotonic()
        if num_sent >= num_inputs or now - began > max_seconds:
            break
        if not is_warm and (num_sent > _WARM_UP * num_inputs or now - began > _WARM_UP * max_seconds):
            is_warm = True
            stage.note_memory("warm")
        if now - told_at > 5:
            told_at = now
            stage.note_memory("during")
            sys.stderr.write(f"{num_sent} inputs, {len(stage.witness.answered_s)} good answers\n")
        if not sum([attacker.attack() for attacker in stage.attackers]):
            zmq.select([attacker.socket for attacker in stage.attackers], [], [], 0.005)
        if sum(stage.strangers.sent.values()) * _KNOCK_EVERY < num_sent:
            stage.strangers.knock()
    _settle(stage, report)
    report.seconds = time.monotonic() - began


def _settle(stage: _Stage, report: Report) -> None:
    """Until each server has digested all that was sent to it."""
    give_up_at = time.monotonic() + _SETTLE_S
    waiting, sequence = list(stage.attackers), 1_000_000
    while waiting and stage.is_alive():
        sequence += 1
        waiting = [attacker for attacker in waiting if not attacker.is_done(sequence)]
        if time.monotonic() > give_up_at:
            report.problems.append(f"{len(waiting)} connections got no answer within {_SETTLE_S:g} s after the run")
            return


def _last_traceback(log: str) -> str:
    return log[log.rindex("Traceback") :][:2000]
