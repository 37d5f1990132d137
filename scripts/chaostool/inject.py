"""Carries out a fault on a fleet: the cause, its duration, and its end."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from scripts.chaostool.faults import Fault, Role
from scripts.chaostool.fleet import Fleet
from scripts.chaostool.member import Member
from scripts.chaostool.net import heal_packets, lose_packets

_LEAVES_WITHIN_S = 10.0
_TWICE_AFTER_S = 0.5  # further apart than a node takes two signals for one
_ADMIN_TRIES = 40


@dataclass(slots=True)
class Injected:
    """A fault that has happened. `ended_at` is infinite while its cause is there."""

    fault: Fault
    who: str  # as setbacks call it: a node's name
    at: float
    ended_at: float = float("inf")
    problem: str = ""  # what the victim did that it should not


class Injector:
    """Knows how each kind is done. `done` has everything injected so far."""

    def __init__(self, fleet: Fleet) -> None:
        self.done: list[Injected] = []
        self._fleet = fleet
        self._rng = random.Random(0)
        self._how: dict[str, Callable[[Injected], Awaitable[None]]] = {
            "kill agent": self._kill,
            "kill worker": self._kill_worker,
            "stop agent, shorter than the lease": self._stop,
            "stop agent, longer than the lease": self._stop,
            "stop worker, briefly": self._stop_worker,
            "stop worker, for long": self._stop_worker,
            "drain": self._drain,
            "terminate agent": self._terminate,
            "terminate agent twice": self._terminate_twice,
            "node of the same name": self._twin,
            "engine fatal": partial(self._guest, "fatal_after_steps"),
            "engine out of memory": partial(self._guest, "oom_after_steps"),
            "engine hangs": partial(self._guest, "hang_after_steps"),
            "kill broker": self._kill,
            "stop broker, shorter than the lease": self._stop,
            "stop broker, longer than the lease": self._stop,
            "terminate broker": self._terminate,
            "kill client": self._kill_client,
            "rolling restart": self._terminate,
            "cut node's cable briefly": self._cut,
            "cut node's cable": self._cut,
            "cut broker's cable": self._cut,
            "lose 30 % of a node's packets": self._lose_packets,
            "lose 30 % of a broker's packets": self._lose_packets,
        }

    async def inject(self, fault: Fault) -> None:
        """From the cause to its end."""
        injected = Injected(fault, fault.target or Role.GUEST, time.monotonic())
        self.done.append(injected)
        await self._how[fault.kind](injected)
        injected.ended_at = time.monotonic()

    def _member(self, injected: Injected) -> Member:
        return (self._fleet.nodes | self._fleet.brokers)[injected.fault.target]

    async def _kill(self, injected: Injected) -> None:
        member = self._member(injected)
        await member.kill()
        await asyncio.sleep(injected.fault.lasts_s)
        await member.start()

    async def _kill_worker(self, injected: Injected) -> None:
        self._member(injected).signal_workers(signal.SIGKILL)
        await asyncio.sleep(injected.fault.lasts_s)

    async def _stop(self, injected: Injected) -> None:
        member = self._member(injected)
        member.send_signal(signal.SIGSTOP)
        await asyncio.sleep(injected.fault.lasts_s)
        member.send_signal(signal.SIGCONT)

    async def _stop_worker(self, injected: Injected) -> None:
        member = self._member(injected)
        member.signal_workers(signal.SIGSTOP)
        await asyncio.sleep(injected.fault.lasts_s)
        member.signal_workers(signal.SIGCONT)

    async def _terminate(self, injected: Injected) -> None:
        member = self._member(injected)
        member.send_signal(signal.SIGTERM)
        if not await member.ended(_LEAVES_WITHIN_S):
            injected.problem = f"did not leave within {_LEAVES_WITHIN_S:g} s of SIGTERM"
        await asyncio.sleep(injected.fault.lasts_s)
        await member.start()

    async def _terminate_twice(self, injected: Injected) -> None:
        member = self._member(injected)
        member.send_signal(signal.SIGTERM)
        await asyncio.sleep(_TWICE_AFTER_S)
        member.send_signal(signal.SIGTERM)
        if not await member.ended(1.0):
            injected.problem = "did not end within 1 s of the second SIGTERM"
        await asyncio.sleep(injected.fault.lasts_s)
        await member.start()

    async def _drain(self, injected: Injected) -> None:
        name = injected.fault.target
        injected.problem = await self._administer("drain", name)
        await asyncio.sleep(injected.fault.lasts_s)
        injected.problem = injected.problem or await self._administer("undrain", name)

    async def _administer(self, action: str, node: str) -> str:
        """Through whichever broker answers; one may be down just now. Returns what went wrong with all of them."""
        told = ""
        for _ in range(_ADMIN_TRIES):
            for broker in self._fleet.brokers:
                status, output = await self._fleet.operate(action, node, "--broker", self._fleet.addresses[broker])
                if status == 0:
                    return ""
                told = output.decode(errors="replace").strip()
            await asyncio.sleep(0.25)
        return f"{action} {node}: {told}"

    async def _twin(self, injected: Injected) -> None:
        await self._visit(injected, self._fleet.guest(injected.fault.target))

    async def _guest(self, fault_hook: str, injected: Injected) -> None:
        """Its worker breaks after two seconds of work, is started again, and breaks again."""
        await self._visit(injected, self._fleet.guest(Role.GUEST, f"{fault_hook}=100"))

    async def _visit(self, injected: Injected, guest: Member) -> None:
        await guest.start()
        await asyncio.sleep(injected.fault.lasts_s)
        guest.send_signal(signal.SIGTERM)
        if not await guest.ended(_LEAVES_WITHIN_S):
            injected.problem = f"the guest did not leave within {_LEAVES_WITHIN_S:g} s of SIGTERM"

    async def _kill_client(self, injected: Injected) -> None:
        """One that comes for this, asks for much, and never says goodbye. What it leaves behind shows at the end."""
        client = self._fleet.client(f"killed {injected.at}", 8)
        await client.start()
        await asyncio.sleep(1.0 + injected.fault.lasts_s)
        await client.kill()

    async def _cut(self, injected: Injected) -> None:
        host = self._fleet.hosts[injected.fault.target]
        host.cut()
        await asyncio.sleep(injected.fault.lasts_s)
        host.heal()

    async def _lose_packets(self, injected: Injected) -> None:
        host = self._fleet.hosts[injected.fault.target]
        lose_packets(host, 0.3)
        await asyncio.sleep(injected.fault.lasts_s)
        heal_packets(host)
