"""Who asks for how much: the callers in the status report, those with the most work first."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from broker.clients import Hop
from mesh.report import ClientReport
from mesh.security.keys import MEMBER, client_name

MAX_REPORTED = 50
_MAX_NAME = 100  # a member's name is what somebody chose to say


def client_reports(hops: Iterable[Hop]) -> tuple[ClientReport, ...]:
    """At most MAX_REPORTED. Connections of one named client are one caller, and so are members of one name, such as
    the gateways that serve one API key."""
    callers: dict[tuple[str, str, str], list[Hop]] = defaultdict(list)
    for hop in hops:
        name = client_name(hop.user) or hop.name
        callers[hop.role, hop.user, name[:_MAX_NAME]].append(hop)
    reports = [_report(name, role, user != MEMBER, of_one) for (role, user, name), of_one in callers.items()]
    return tuple(heapq.nlargest(MAX_REPORTED, reports, key=_weight))


def _report(name: str, role: str, has_own_key: bool, hops: list[Hop]) -> ClientReport:
    accounts = {hop.account for hop in hops}  # a named client has one for all its connections
    accounts.update(client.account for hop in hops for client in hop.clients.values())
    num_queued = sum(account.num_queued for account in accounts)
    num_unfinished = sum(sum(hop.num_by_model.values()) for hop in hops)
    return ClientReport(
        name=name,
        kind=role,
        has_own_key=has_own_key,
        num_connections=len(hops),
        num_queued=num_queued,
        num_in_flight=max(0, num_unfinished - num_queued),
        num_tokens=sum(hop.num_tokens for hop in hops),
    )


def _weight(report: ClientReport) -> tuple[int, int, str]:
    return report.num_in_flight + report.num_queued, report.num_tokens, report.name
