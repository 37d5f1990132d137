"""All members of a run: nodes, brokers, a place for guests, and the clients. Fixed addresses, so that who restarts
comes back where it was."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.chaostool import options as opts
from scripts.chaostool.member import Member
from scripts.chaostool.options import Options
from tests.support.netns import Host, network

GUEST = "guest"
# A small GPU whose prefill takes next to no time: a pause is then what a failure costs, and nothing else.
_TIMING = (
    "step_base_s=0.02", "step_per_seq_s=0.0001", "step_per_cached_token_s=0", "prefill_tokens_per_s=200000",
    "slots=32", "cache_tokens=200000", "max_model_len=40000",
)  # fmt: skip


@dataclass
class Fleet:
    """Who there is and where. `hosts` is empty without network namespaces."""

    nodes: dict[str, Member]
    brokers: dict[str, Member]
    clients: list[Member]
    addresses: dict[str, str]  # of everybody by name; of the guest too
    hosts: dict[str, Host]
    logs: Path
    env: Mapping[str, str]
    guests: list[Member] = field(default_factory=list)

    @property
    def everybody(self) -> list[Member]:
        return [*self.clients, *self.guests, *self.brokers.values(), *self.nodes.values()]

    def guest(self, name: str, *numbers: str) -> Member:
        """A node that was not there from the beginning, not started yet."""
        command = node_command(name, self.addresses[GUEST], numbers, is_netns=bool(self.hosts))
        member = self._member(f"{GUEST}-{len(self.guests)}", command, GUEST)
        self.guests.append(member)
        return member

    def client(self, seed: str, num_tasks: int) -> Member:
        """A client process, not started yet."""
        number = len(self.clients)
        # Clients try addresses in turn, so each is told another one first: all brokers get work.
        brokers = [self.addresses[name] for name in self.brokers]
        first = number % len(brokers)
        addresses = "" if self.hosts else ",".join(brokers[first:] + brokers[:first])
        name = f"client-{number}"
        command = ["-m", "scripts.chaostool.client", addresses, seed, str(num_tasks)]
        member = self._member(name, command, "clients")
        self.clients.append(member)
        return member

    async def operate(self, *arguments: str) -> tuple[int, bytes]:
        """The `phi3-broker` command, from where the clients are: its status and what it printed."""
        command = [sys.executable, "-m", "broker.cli", *arguments]
        if self.hosts:
            command = self.hosts["clients"].command(*command)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env={**os.environ, **self.env}
        )
        output, _ = await process.communicate()
        return await process.wait(), output

    def _member(self, name: str, command: Sequence[str], host: str) -> Member:
        return member(name, command, self.hosts.get(host), self.logs, self.env)


def member(name: str, command: Sequence[str], host: Host | None, logs: Path, env: Mapping[str, str]) -> Member:
    whole = [sys.executable, *command]
    return Member(name, host.command(*whole) if host else whole, logs / f"{name}.log", env)


def node_command(name: str, address: str, numbers: Sequence[str] = (), *, is_netns: bool = False) -> list[str]:
    command = ["-m", "node.cli", "--engine", "synthetic", "--model", opts.MODEL, "--name", name, "--bind", address]
    command += ["--stall", str(opts.NODE_STALL_S)] + ([] if is_netns else ["--no-mdns"])
    for number in (*_TIMING, *numbers):
        command += ["--synthetic", number]
    return command


def broker_command(name: str, address: str, nodes: Sequence[str], *, is_netns: bool = False) -> list[str]:
    command = ["-m", "broker.cli", "serve", "--name", name, "--bind", address, "--stall", str(opts.BROKER_STALL_S)]
    if is_netns:
        return command  # multicast finds the nodes
    for node in nodes:
        command += ["--node", node]
    return [*command, "--no-mdns"]


@contextmanager
def fleet(options: Options, logs: Path) -> Iterator[Fleet]:
    """Nothing of it runs yet."""
    nodes = [f"n{i}" for i in range(options.num_nodes)]
    brokers = [f"b{i}" for i in range(options.num_brokers)]
    names = [*nodes, *brokers, GUEST]
    with ExitStack() as stack:
        # What killed members leave behind goes with the run. A short path: those of sockets may have 107 characters.
        leftovers = stack.enter_context(TemporaryDirectory(prefix="phi3-"))
        env = {
            "PYTHONPATH": os.getcwd(),
            "PYTHONUNBUFFERED": "1",
            "PHI3_MESH_HOME": str(logs.absolute() / "home"),
            "TMPDIR": leftovers,
        }
        hosts: dict[str, Host] = {}
        if options.is_netns:
            hosts = dict(zip([*names, "clients"], stack.enter_context(network(len(names) + 1)), strict=True))
            addresses = {name: f"{hosts[name].address}:5560" for name in names}
        else:
            addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
        known = [addresses[name] for name in (*nodes, GUEST)]
        yield Fleet(
            nodes={
                name: member(
                    name, node_command(name, addresses[name], is_netns=bool(hosts)), hosts.get(name), logs, env
                )
                for name in nodes
            },
            brokers={
                name: member(
                    name, broker_command(name, addresses[name], known, is_netns=bool(hosts)), hosts.get(name), logs, env
                )
                for name in brokers
            },
            clients=[],
            addresses=addresses,
            hosts=hosts,
            logs=logs,
            env=env,
        )


def free_ports(count: int) -> list[int]:
    """Below the range from which the system takes ports for outgoing connections: one of those must not sit on the
    port of a member that is down."""
    found: list[int] = []
    for port in random.sample(range(15_000, 30_000), 2_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")
