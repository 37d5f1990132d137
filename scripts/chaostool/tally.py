"""Everything the clients told, counted; and which fault each setback and each pause belongs to. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scripts.chaostool.faults import COMES_BROKEN
from scripts.chaostool.inject import Injected
from scripts.chaostool.records import GOOD, Pause, Result, Setback, Verdict

_AFTERMATH_S = 15.0  # a setback so long after the end of a fault is not its doing
_MAX_DETAILS = 20
UNEXPLAINED = "no fault of ours"
SEVERAL = "several faults at the same time"  # went on elsewhere, where the next one struck


@dataclass
class Tally:
    """Grows while results come in."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    num_streams: int = 0
    num_interrupted: int = 0  # requests that needed more than one attempt
    most_attempts: int = 0
    took_s: list[float] = field(default_factory=list)
    details: list[str] = field(default_factory=list)  # of the first bad ones
    setbacks: list[Setback] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)

    def add(self, record: Result | Setback) -> None:
        if isinstance(record, Setback):
            self.setbacks.append(record)
            return
        self.verdicts[record.verdict] += 1
        self.kinds[record.kind] += 1
        self.num_streams += record.is_stream
        self.num_interrupted += record.attempts > 1
        self.most_attempts = max(self.most_attempts, record.attempts)
        self.took_s.append(record.took_s)
        self.pauses += record.pauses
        if record.verdict not in GOOD and len(self.details) < _MAX_DETAILS:
            self.details.append(f"{record.verdict}: {record.kind}: {record.detail}")

    @property
    def num_requests(self) -> int:
        return self.verdicts.total()

    @property
    def num_bad(self) -> int:
        return sum(number for verdict, number in self.verdicts.items() if verdict not in GOOD)


class Blame:
    """Says which fault a setback comes from: the latest one that had hit the same member by then."""

    def __init__(self, injected: Sequence[Injected], brokers: Mapping[str, str]) -> None:
        """`brokers`: their addresses by name."""
        self._by_victim: dict[str, list[Injected]] = defaultdict(list)
        for each in sorted(injected, key=lambda each: each.at):
            self._by_victim[each.who].append(each)
        self._names = {address: name for name, address in brokers.items()}

    def fault_of(self, setback: Setback) -> Injected | None:
        who = self._names.get(setback.who.removeprefix("tcp://"), setback.who)
        for each in reversed(self._by_victim.get(who, ())):
            if each.at <= setback.at <= each.ended_at + _AFTERMATH_S:
                return each
        return None

    def kind_of(self, *setbacks: Setback) -> str:
        """The kind of fault, if one explains them all."""
        faults = {id(fault): fault for fault in map(self.fault_of, setbacks) if fault is not None}
        if len(faults) > 1:
            return SEVERAL
        return next((fault.fault.kind for fault in faults.values()), UNEXPLAINED)


def detect_times(setbacks: Sequence[Setback], blame: Blame) -> dict[str, list[float]]:
    """From a fault to the moment at which the first client was told, by kind."""
    first: dict[int, tuple[str, float]] = {}
    for setback in sorted(setbacks, key=lambda setback: setback.at):
        fault = blame.fault_of(setback)
        if fault is not None and fault.fault.kind not in COMES_BROKEN:
            first.setdefault(id(fault), (fault.fault.kind, setback.at - fault.at))
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, seconds in first.values():
        by_kind[kind].append(seconds)
    return by_kind


def pause_times(pauses: Sequence[Pause], blame: Blame) -> dict[str, list[float]]:
    """How long the callers of interrupted streams saw nothing, by kind of fault."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for pause in pauses:
        by_kind[blame.kind_of(*pause.setbacks)].append(pause.until - pause.at)
    return by_kind


def quantile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
