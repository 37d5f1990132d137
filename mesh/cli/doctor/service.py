"""The key, and the steps from the handshake on: does it accept us, is anything ready, does an answer come."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import zmq

from mesh import AsyncClient
from mesh.cli import terminal
from mesh.cli.doctor.steps import Finding, failed, passed, skipped, warned
from mesh.client.session import DialFailed, Session
from mesh.errors import ConfigError, MeshError, NoSuchModel
from mesh.messages import Hello
from mesh.report import NodeReport, StatusReport
from mesh.security.caller_access import CallerAccess, caller_access

HANDSHAKE_S = 1.5
REPORT_S = 5.0
ANSWER_S = 60.0

_REMEDIES = {
    "wrong_mesh": "it belongs to another mesh: give a token of that one with --token, or its name with --mesh NAME",
    "unknown_key": "ask for a token: `phi3-broker token --client NAME` on the broker's host prints one",
    "revoked_key": "ask for a new token: `phi3-broker token --client NAME` on the broker's host prints one",
    "encrypted": "leave --insecure out",
    "not_encrypted": "that one was started with --insecure: do the same, or start it without",
    "version_mismatch": "upgrade the older of the two sides",
    "version": "upgrade the older of the two sides",
    "forbidden": "use a key that this mesh accepts",
}
_NOT_OURS = "what listens there is no broker or node of a mesh, or it hangs: check the port, look at its log"


def examine_key(mesh: str, token: str | None, insecure: bool | None) -> tuple[CallerAccess | None, Finding]:
    """Whether there is one, and whose."""
    try:
        access = caller_access(mesh, token, insecure)
    except ConfigError as error:
        return None, failed("key", "there is none that can be used", str(error))
    if access.is_insecure:
        return access, skipped("key", "none: --insecure talks in plain text, and on this host only")
    return access, passed("key", f"{access.user} of mesh {access.mesh!r}")


async def examine_handshakes(endpoints: Sequence[str], access: CallerAccess) -> tuple[list[str], list[Finding]]:
    """Those endpoints that welcome us."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        outcomes = await asyncio.gather(*(_greet(context, endpoint, access) for endpoint in endpoints))
    finally:
        context.term()
    findings = [finding for _, finding in outcomes]
    welcomed = [endpoint for endpoint, (is_welcome, _) in zip(endpoints, outcomes, strict=True) if is_welcome]
    if not welcomed:
        first = findings[0]
        findings[0] = failed(first.step, first.told, first.remedy)
    return welcomed, findings


async def _greet(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, access: CallerAccess) -> tuple[bool, Finding]:
    hello = Hello("client", "doctor", secrets.randbits(62), access.mesh)
    try:
        session = await Session.open(
            context, endpoint, hello, _Nobody(), timeout_s=HANDSHAKE_S, configure=access.configure
        )
    except DialFailed as failure:
        remedy = _REMEDIES.get(failure.down.code or failure.down.suspicion, _NOT_OURS)
        return False, warned("handshake", f"{endpoint}: {failure.down.reason}", remedy)
    welcome = session.welcome
    session.close()
    return True, passed(
        "handshake", f"{welcome.kind} {welcome.name} at {endpoint} welcomes us to mesh {welcome.mesh!r}"
    )


class _Nobody:
    """Takes what a session tells, and has no use for it."""

    def _ignore(self, *told: Any) -> None:
        pass

    on_tokens = on_rejected = on_failed = on_lost = on_report = on_done = on_down = _ignore


async def examine_service(client: AsyncClient, model: str | None) -> list[Finding]:
    """Nodes, models and an answer, through the client library as any program would."""
    async with client:
        try:
            async with asyncio.timeout(REPORT_S):
                report = await client.status()
        except (MeshError, TimeoutError) as error:
            remedy = "look at its log, and restart it if need be"
            return [failed("models", f"no report: {error or 'no answer in time'}", remedy)]
        findings = _nodes(report)
        if any(finding.fatal for finding in findings):
            return findings
        return [*findings, await _sample(client, model or report.models[0].name)]


def _nodes(report: StatusReport) -> list[Finding]:
    findings = []
    for node in report.nodes:
        what = f"{node.name}: {node.state}{_aside(node)}"
        is_usable = node.state in ("ready", "busy")
        findings.append(passed("nodes", what) if is_usable else warned("nodes", what))
    if not any(model.slots_total for model in report.models):
        nodes = f"{report.num_ready} of {len(report.nodes)} nodes are ready" if report.nodes else "there are no nodes"
        remedy = "start one with `phi3-node`, or wait until one has loaded its model; `phi3-broker status` shows them"
        return [*findings, failed("models", f"nothing can answer: {nodes}", remedy)]
    served = ", ".join(f"{model.name} ({model.slots_total} slots)" for model in report.models)
    return [*findings, passed("models", served)]


def _aside(node: NodeReport) -> str:
    facts = [fact for fact in (node.engine, node.device, node.note) if fact]
    return f" ({', '.join(facts)})" if facts else ""


async def _sample(client: AsyncClient, model: str) -> Finding:
    try:
        completion = await client.chat(
            [{"role": "user", "content": "Say hello."}], max_tokens=4, model=model, timeout_s=ANSWER_S
        )
    except NoSuchModel as error:
        return failed("answer", error.message, "pass one that is served with --model NAME")
    except MeshError as error:
        return failed("answer", str(error), "look at the log of the node, and of the broker")
    text = terminal.harmless(completion.text).strip()
    return passed("answer", f"{text!r} from {completion.node} in {completion.total_s:.2f} s")
