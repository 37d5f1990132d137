"""Which fault when: a pure function of the seed. There is always a node and a broker left to go on with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from scripts.chaostool.faults import KINDS, ROLLING, Fault, Kind, Role

_GAP_S = (1.5, 4.5)  # from one fault to the next, whether that one is over or not
_RECOVERY_S = 3.0  # after its cause is gone, a member is left in peace for so long
_ROLLING_STEP_S = 3.0  # one member of a rolling restart
_FIRST_S = 2.0


def schedule(
    seed: int, duration_s: float, nodes: Sequence[str], brokers: Sequence[str], *, is_netns: bool = False
) -> list[Fault]:
    """Faults that are all over, causes and recoveries, when `duration_s` has passed."""
    planner = _Planner(random.Random(seed), duration_s, nodes, brokers)
    kinds = [kind for kind in KINDS if is_netns or not kind.needs_netns]
    if len(brokers) == 1:  # its clients would have nowhere to go, which is no fault of theirs but takes long
        kinds = [kind for kind in kinds if kind.hits is not Role.BROKER]
    for kind in _shuffled_for_ever(kinds, planner.rng):
        fault = planner.place(kind)
        if fault is None:
            return planner.faults
    raise AssertionError("kinds do not end")


def _shuffled_for_ever(kinds: Sequence[Kind], rng: random.Random) -> Iterator[Kind]:
    """Bag after bag: no kind comes a third time before every other has come once."""
    while True:
        yield from rng.sample(kinds, len(kinds))


class _Planner:
    def __init__(self, rng: random.Random, duration_s: float, nodes: Sequence[str], brokers: Sequence[str]) -> None:
        self.rng = rng
        self.faults: list[Fault] = []
        self._duration_s = duration_s
        self._now = _FIRST_S
        self._nodes, self._brokers = nodes, brokers
        self._free_at = dict.fromkeys((*nodes, *brokers, Role.GUEST), 0.0)

    def place(self, kind: Kind) -> Fault | None:
        """The next fault, as soon as enough others are well. None when the time is over."""
        lasts_s = self.rng.uniform(*kind.lasts_s)
        if kind.name == ROLLING:
            return self._roll()
        target = self._target(kind)
        if self._now + lasts_s + _RECOVERY_S > self._duration_s:
            return None
        if kind.hits is not Role.NOBODY:
            self._free_at[Role.GUEST if kind.hits is Role.GUEST else target] = self._now + lasts_s + _RECOVERY_S
        return self._add(kind.name, target, lasts_s)

    def _target(self, kind: Kind) -> str:
        """Waits for one that is well, and for at most half of the nodes (but one broker) to be hit at a time."""
        if kind.hits is Role.NOBODY:
            return ""
        if kind.hits is Role.GUEST:
            self._now = max(self._now, self._free_at[Role.GUEST])
            return self.rng.choice(self._nodes) if kind.name == "node of the same name" else ""
        group = self._nodes if kind.hits is Role.NODE else self._brokers
        num_hit = max(1, len(group) // 2) if kind.hits is Role.NODE else 1
        busy = sorted(self._free_at[name] for name in group)
        self._now = max(self._now, busy[-num_hit])
        return self.rng.choice([name for name in group if self._free_at[name] <= self._now])

    def _roll(self) -> Fault | None:
        """Every node and broker, one after another, when all are well."""
        self._now = max(self._now, *self._free_at.values())
        everybody = [*self._nodes, *self._brokers]
        until = self._now + _ROLLING_STEP_S * len(everybody)
        if until + _RECOVERY_S > self._duration_s:
            return self.faults[-1] if self.faults and self._now < self._duration_s else None
        for number, name in enumerate(everybody):
            self._add(ROLLING, name, 0.5, self._now + number * _ROLLING_STEP_S)
            self._free_at[name] = until + _RECOVERY_S
        self._now = until
        return self.faults[-1]

    def _add(self, kind: str, target: str, lasts_s: float, at_s: float | None = None) -> Fault:
        fault = Fault(round(self._now if at_s is None else at_s, 3), kind, target, round(lasts_s, 3))
        self.faults.append(fault)
        if at_s is None:
            self._now += self.rng.uniform(*_GAP_S)
        return fault
