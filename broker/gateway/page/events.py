"""What happened, from the differences between two status reports. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from broker.gateway.page.naming import keyed, label, short
from mesh.report import NodeReport, StatusReport

_TAKES_WORK = ("ready", "busy")
_ONE_BY_ONE = 8  # nodes that change in the same way at once; more of them are one event


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` tells which events are alike; `level` is good, info, warn or bad."""

    kind: str
    level: str
    subject: str  # whom it is about
    text: str  # goes on where the subject ends
    num: int = 0  # of an event that adds up: how many


_STATES: dict[str, tuple[str, str]] = {
    "ready": ("good", "is ready"),
    "joining": ("info", "is joining"),
    "suspect": ("warn", "does not answer"),
    "stalled": ("bad", "has stalled"),
    "draining": ("info", "is draining"),
    "lost": ("bad", "is lost"),
}

_COUNTED: dict[str, tuple[str, Callable[[int], str]]] = {  # counters of a broker or node -> what their growth means
    "lost": ("warn", lambda n: f"{_many(n, 'running answer')} handed over to resume elsewhere"),
    "failed": ("bad", lambda n: f"{_many(n, 'request')} failed"),
    "expired": ("warn", lambda n: f"{_many(n, 'request')} passed the deadline"),
    "orphaned": ("bad", lambda n: f"{_many(n, 'request')} given back: no node is left for the model"),
    "rejected_overloaded": ("warn", lambda n: f"{_many(n, 'request')} turned away: the queue is full"),
    "clients_shed": ("warn", lambda n: f"{_many(n, 'client')} dropped for not reading the answers"),
}


def counted(kind: str, num: int) -> Event:
    """An event that adds up with others of its kind."""
    level, text = _COUNTED[kind]
    return Event(kind, level, "", text(num), num)


class Changes:
    """Takes one report after the other. None is the mesh not answering: what was known before is compared later on."""

    def __init__(self) -> None:
        self._last: StatusReport | None = None
        self._is_up: bool | None = None  # None: not known yet

    def to(self, report: StatusReport | None, trouble: str = "") -> list[Event]:
        """What has happened since the report before."""
        if report is None:
            return self._down(trouble)
        before, self._last = self._last, report
        was_up, self._is_up = self._is_up, True
        events = list(_of_server(before, report, was_up is True))
        if before is not None:
            if _is_same_process(before, report):
                events += _of_counters(before.counters, report.counters)
            events += _of_nodes(keyed(before.nodes), keyed(report.nodes))
            events += _of_models(before, report)
        return events

    def _down(self, trouble: str) -> list[Event]:
        was_up, self._is_up = self._is_up, False
        if was_up is False or (was_up is None and not trouble):
            return []  # said already, or nothing is known yet
        name = label_of(self._last) if self._last is not None else "the mesh"
        return [Event("down", "bad", name, _with_note("does not answer", trouble))]


def label_of(report: StatusReport) -> str:
    """The server that made the report."""
    return f"{short(report.kind)} {short(report.name)}"


def _of_server(before: StatusReport | None, after: StatusReport, was_up: bool) -> Iterator[Event]:
    ready = f"{_many(after.num_ready, 'node')} ready"
    if before is None:
        yield Event("up", "good", label_of(after), f"answers, {ready}")
    elif before.node_id != after.node_id:
        yield Event("up", "info", label_of(after), f"answers in place of {label_of(before)}, {ready}")
    elif not _is_same_process(before, after):
        yield Event("up", "info", label_of(after), "has been started again")
    elif not was_up:
        yield Event("up", "good", label_of(after), f"answers again, {ready}")


def _is_same_process(before: StatusReport, after: StatusReport) -> bool:
    return before.node_id == after.node_id and before.uptime_s <= after.uptime_s


def _of_counters(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[Event]:
    for kind in _COUNTED:
        grown = after.get(kind, 0) - before.get(kind, 0)
        if grown > 0:
            yield counted(kind, grown)


def _of_nodes(before: Mapping[str, NodeReport], after: Mapping[str, NodeReport]) -> Iterator[Event]:
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for key, node in after.items():
        event = _of_node(before.get(key), node)
        if event is not None:
            by_kind[event.kind].append(event)
    for key in before.keys() - after.keys():
        if before[key].node_id:
            by_kind["left"].append(Event("left", "info", label(before[key]), "has left"))
    for kind, events in by_kind.items():
        if len(events) <= _ONE_BY_ONE:
            yield from sorted(events, key=lambda event: event.subject)
        else:
            yield Event(kind, events[0].level, _many(len(events), "node"), _plural(kind))


def _of_node(before: NodeReport | None, after: NodeReport) -> Event | None:
    was, now = "" if before is None else _word(before.state), _word(after.state)
    is_known = bool(after.node_id)  # a node, and not just an address where one should be
    if was == now:
        if before is not None and now == "ready" and after.uptime_s < before.uptime_s:
            return Event("restarted", "info", label(after), "has been started again")
        return None
    if not is_known and (now == "joining" or before is None):
        return None
    if was == "suspect" and now == "ready":
        return Event("again", "good", label(after), "answers again")
    level, text = _STATES.get(now, ("info", f"is {short(now)}"))
    return Event(now, level, label(after), _with_note(text, "" if now == "ready" else after.note))


def _of_models(before: StatusReport, after: StatusReport) -> Iterator[Event]:
    had, has = ({model.name for model in report.models} for report in (before, after))
    for name in sorted(has - had):
        yield Event("model", "info", short(name), "is served")
    for name in sorted(had - has):
        yield Event("model", "warn", short(name), "is not served any more")


def _word(state: str) -> str:
    """Ready and busy alternate all the time: no event."""
    return "ready" if state in _TAKES_WORK else state


def _plural(kind: str) -> str:
    text = {"left": "have left", "again": "answer again", "restarted": "have been started again"}.get(kind)
    return text or _VERB.sub(lambda verb: _VERBS[verb[0]], _STATES.get(kind, ("", f"is {short(kind)}"))[1], count=1)


_VERBS = {"is": "are", "has": "have", "does": "do"}
_VERB = re.compile(r"^(is|has|does)\b")


def _with_note(text: str, note: str) -> str:
    return f"{text}: {short(note)}" if note else text


def _many(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"
