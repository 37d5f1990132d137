"""The examination, step by step, each shown as soon as it is known. The first failure that matters ends it."""

from __future__ import annotations

import argparse
import sys

from mesh import AsyncClient
from mesh.cli import terminal
from mesh.cli.doctor.network import (
    examine_discovery,
    examine_interfaces,
    examine_multicast,
    examine_names,
    examine_ports,
)
from mesh.cli.doctor.service import examine_handshakes, examine_key, examine_service
from mesh.cli.doctor.steps import Finding, Mark, skipped, verdict
from mesh.cli.running import run_until_told
from mesh.cli.values import token_of
from mesh.client.options import addresses_from

_STEPS = ("port", "handshake", "models", "answer")
_COLOURS = {Mark.PASSED: "32", Mark.FAILED: "31", Mark.SKIPPED: "2"}


def run(args: argparse.Namespace) -> int:
    return run_until_told(_Examination(args).run())


class _Examination:
    def __init__(self, args: argparse.Namespace) -> None:
        self._given = addresses_from(args.broker)
        self._args = args
        self._token = token_of(args)
        self._findings: list[Finding] = []
        self._is_plain = not all(terminal.can_show(mark.value[0], sys.stdout) for mark in Mark)

    async def run(self) -> int:
        await self._examine()
        is_fine, sentences = verdict(self._findings)
        tested = {finding.step for finding in self._findings}
        self._show(*(skipped(step, "not tested") for step in _STEPS if step not in tested))
        sys.stdout.write("\n" + "\n".join(sentences) + "\n")
        return 0 if is_fine else 1

    async def _examine(self) -> None:
        access, finding = examine_key(self._args.mesh, self._token, self._args.insecure or None)
        self._show(finding)
        if access is None:
            return
        interfaces, finding = examine_interfaces(self._args.interface)
        self._show(finding)
        if self._given:
            self._show(skipped("multicast", "not needed: an address was given"))
            endpoints, findings = await examine_names(self._given)
        else:
            self._show(*await examine_multicast(interfaces))
            endpoints, findings = await examine_discovery(access.mesh, interfaces)
        if not self._show(*findings):
            return
        reached, findings = await examine_ports(endpoints)
        if not self._show(*findings):
            return
        welcomed, findings = await examine_handshakes(reached, access)
        if self._show(*findings):
            client = AsyncClient(
                welcomed, token=self._token, mesh=self._args.mesh, insecure=self._args.insecure or None
            )
            self._show(*await examine_service(client, self._args.model))

    def _show(self, *findings: Finding) -> bool:
        """Whether to go on."""
        self._findings += findings
        for finding in findings:
            mark = finding.mark.value[self._is_plain]
            if terminal.has_colour(sys.stdout):
                mark = f"\x1b[{_COLOURS[finding.mark]}m{mark}\x1b[0m"
            sys.stdout.write(f"{mark} {finding.step:<10} {terminal.harmless(finding.told)}\n")
        sys.stdout.flush()
        return not any(finding.fatal for finding in findings)
