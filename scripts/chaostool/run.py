"""One run: start everything, keep the load up, inject the schedule, wind down, look for what was left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from scripts.chaostool.faults import Fault
from scripts.chaostool.fleet import Fleet, fleet
from scripts.chaostool.inject import Injected, Injector
from scripts.chaostool.member import Member
from scripts.chaostool.options import ANSWER_WITHIN_S, SETTLE_S, Options
from scripts.chaostool.records import from_line
from scripts.chaostool.report import Report, report_of
from scripts.chaostool.schedule import schedule
from scripts.chaostool.tally import Tally

_READY_WITHIN_S = 60.0
_IDLE_WITHIN_S = 5.0
_PROGRESS_S = 10.0

Status = dict[str, Any]  # what `phi3-broker status --json` prints


class StartFailed(Exception):
    """The mesh did not come up, so there is nothing to report."""


class Run:
    """`perform` returns the report, however the run ends: also when it is interrupted."""

    def __init__(self, options: Options, logs: Path) -> None:
        self._options = options
        self._logs = logs
        self._tally = Tally()
        self._problems: list[str] = []
        self._memory: dict[str, tuple[int, int]] = {}
        self._began = time.monotonic()
        self._lasted_s = 0.0
        self._injector: Injector | None = None

    async def perform(self) -> Report:
        main = asyncio.current_task()
        assert main is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, main.cancel)
        is_complete = False
        with fleet(self._options, self._logs) as members:
            self._injector = Injector(members)
            try:
                await self._perform(members, self._injector)
                is_complete = True
            except asyncio.CancelledError:
                main.uncancel()
                print("interrupted: this is the report so far", file=sys.stderr)
            finally:
                self._lasted_s = self._lasted_s or time.monotonic() - self._began
                await asyncio.gather(*(member.kill() for member in members.everybody))
        return self._report(members, self._injector.done, is_complete=is_complete)

    async def _perform(self, members: Fleet, injector: Injector) -> None:
        await self._start(members)
        burners = await self._burn() if self._options.burns_cpu else []
        before = {name: broker.memory_bytes for name, broker in members.brokers.items()}
        loads = [
            members.client(f"{self._options.seed}/{i}", self._options.num_tasks)
            for i in range(self._options.num_clients)
        ]
        self._began = time.monotonic()
        listeners = [asyncio.create_task(self._listen(load)) for load in loads]
        progress = asyncio.create_task(self._show_progress())
        try:
            await self._let_faults_happen(members, injector)
            self._memory = {name: (before[name], broker.memory_bytes) for name, broker in members.brokers.items()}
            self._lasted_s = time.monotonic() - self._began
            await self._wind_down(loads, listeners)
            await self._look_for_leftovers(members)
            await self._stop_all(members)
        finally:
            progress.cancel()
            for task in listeners:
                task.cancel()
            for burner in burners:
                await burner.kill()

    async def _start(self, members: Fleet) -> None:
        for member in (*members.nodes.values(), *members.brokers.values()):
            await member.start()
        give_up_at = time.monotonic() + _READY_WITHIN_S
        for broker in members.brokers:
            while True:
                status = await self._status(members, broker)
                nodes = status.get("nodes", []) if status else []
                if sum(node["state"] == "ready" for node in nodes) == len(members.nodes):
                    break
                if time.monotonic() > give_up_at:
                    raise StartFailed(f"not all nodes are ready at {broker}: {status}; --logs FOLDER keeps their logs")
                await asyncio.sleep(0.2)

    async def _burn(self) -> list[Member]:
        """As much work for the cores as there are cores, without end."""
        command = [sys.executable, "-c", "while True: pass"]
        burners = [Member(f"burner-{i}", command, self._logs / "burners.log", {}) for i in range(os.cpu_count() or 1)]
        for burner in burners:
            await burner.start()
        return burners

    async def _let_faults_happen(self, members: Fleet, injector: Injector) -> None:
        load_s = self._options.minutes * 60
        faults: list[Fault] = []
        if self._options.has_faults:
            faults = schedule(
                self._options.seed,
                load_s - SETTLE_S,
                list(members.nodes),
                list(members.brokers),
                is_netns=self._options.is_netns,
            )
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, self._began + fault.at_s - time.monotonic()))
                group.create_task(injector.inject(fault))
        await asyncio.sleep(max(0.0, self._began + load_s - time.monotonic()))

    async def _listen(self, load: Member) -> None:
        """Take in what a client tells, until it ends."""
        process = await load.start(is_heard=True)
        assert process.stdout is not None
        async for line in process.stdout:
            self._tally.add(from_line(line))
        if status := await process.wait():
            self._problems.append(f"{load.name} ended with status {status}: see {load.log}")

    async def _wind_down(self, loads: list[Member], listeners: list[asyncio.Task[None]]) -> None:
        """No new requests; every one that is under way gets its bound."""
        for load in loads:
            load.send_signal(signal.SIGTERM)
        _, unfinished = await asyncio.wait(listeners, timeout=ANSWER_WITHIN_S + 10)
        if unfinished:
            self._problems.append(f"{len(unfinished)} clients did not end")

    async def _look_for_leftovers(self, members: Fleet) -> None:
        """With no client left, no broker and no node may still hold a request."""
        give_up_at = time.monotonic() + _IDLE_WITHIN_S
        while True:
            held = [line for broker in members.brokers for line in _held(broker, await self._status(members, broker))]
            if not held:
                return
            if time.monotonic() > give_up_at:
                self._problems += held
                return
            await asyncio.sleep(0.2)

    async def _stop_all(self, members: Fleet) -> None:
        """One SIGTERM must be enough."""
        running = [*members.brokers.values(), *members.nodes.values()]
        for member in running:
            member.send_signal(signal.SIGTERM)
        for member in running:
            if not await member.ended(5.0):
                self._problems.append(f"{member.name} did not leave within 5 s of SIGTERM")

    async def _status(self, members: Fleet, broker: str) -> Status | None:
        _, output = await members.operate("status", "--json", "--broker", members.addresses[broker])
        try:
            status: Status = json.loads(output)
        except ValueError:
            return None
        return status

    async def _show_progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            faults = len(self._injector.done) if self._injector else 0
            print(
                f"{time.monotonic() - self._began:5.0f} s   {self._tally.num_requests} requests   {faults} faults   "
                f"{self._tally.num_interrupted} interrupted   {self._tally.num_bad} bad",
                file=sys.stderr,
            )

    def _report(self, members: Fleet, injected: list[Injected], *, is_complete: bool) -> Report:
        return report_of(
            self._options,
            self._tally,
            injected,
            {name: members.addresses[name] for name in members.brokers},
            lasted_s=self._lasted_s,
            is_complete=is_complete,
            memory=self._memory,
            problems=self._problems,
        )


def _held(broker: str, status: Status | None) -> list[str]:
    if status is None:
        return [f"{broker} does not answer"]
    held = [
        f"{broker} still holds {status[what]} requests ({what})"
        for what in ("num_in_flight", "num_queued")
        if status[what]
    ]
    return held + [
        f"{node['name']} still runs {node['num_running']} and queues {node['num_queued']}, says {broker}"
        for node in status["nodes"]
        if node["num_running"] or node["num_queued"]
    ]
