"""What a run found out: as values for a program, and as text for a person."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scripts.chaostool.inject import Injected
from scripts.chaostool.options import HEARTBEAT_S, Options
from scripts.chaostool.records import Verdict
from scripts.chaostool.tally import UNEXPLAINED, Blame, Tally, detect_times, pause_times, quantile


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(
            len(values),
            *(round(value, 3) for value in (quantile(values, 0.5), quantile(values, 0.99), max(values, default=0.0))),
        )


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    machine: str
    options: dict[str, Any]
    is_complete: bool
    lasted_s: float
    requests: int
    requests_by_kind: dict[str, int]
    streams: int
    interrupted: int
    most_attempts: int
    lost: int
    duplicated: int
    different: int
    errors: int
    details: list[str]
    faults: int
    faults_by_kind: dict[str, int]
    false_alarms: int  # setbacks that no fault explains
    heartbeats: int  # that had to come in time, about
    took_s: Spread
    detect_s: dict[str, Spread]
    pause_s: dict[str, Spread]
    broker_memory_mib: dict[str, tuple[float, float]]  # at the beginning and at the end
    problems: list[str]  # of members: did not leave, kept a request, …

    @property
    def is_good(self) -> bool:
        alarms = 0 if self.options["has_faults"] else self.false_alarms  # with faults, load is not all that delays
        bad = self.lost + self.duplicated + self.different + self.errors + alarms + len(self.problems)
        return bad == 0 and (self.requests > 0 or not self.is_complete)


def report_of(
    options: Options,
    tally: Tally,
    injected: Sequence[Injected],
    brokers: Mapping[str, str],
    *,
    lasted_s: float,
    is_complete: bool,
    memory: Mapping[str, tuple[int, int]],
    problems: Sequence[str],
) -> Report:
    blame = Blame(injected, brokers)
    pauses = pause_times(tally.pauses, blame)
    links = options.num_nodes * options.num_brokers + options.num_clients
    return Report(
        seed=options.seed,
        machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        options={**asdict(options), "json_path": None, "logs": None},
        is_complete=is_complete,
        lasted_s=round(lasted_s, 1),
        requests=tally.num_requests,
        requests_by_kind=dict(tally.kinds.most_common()),
        streams=tally.num_streams,
        interrupted=tally.num_interrupted,
        most_attempts=tally.most_attempts,
        lost=tally.verdicts[Verdict.LOST],
        duplicated=tally.verdicts[Verdict.TORN],
        different=tally.verdicts[Verdict.DIFFERENT],
        errors=tally.verdicts[Verdict.ERROR],
        details=tally.details,
        faults=len(injected),
        faults_by_kind=dict(Counter(each.fault.kind for each in injected).most_common()),
        false_alarms=sum(blame.kind_of(setback) == UNEXPLAINED for setback in tally.setbacks),
        heartbeats=int(links * lasted_s / HEARTBEAT_S),
        took_s=Spread.of(tally.took_s),
        detect_s={kind: Spread.of(values) for kind, values in detect_times(tally.setbacks, blame).items()},
        pause_s={kind: Spread.of(values) for kind, values in pauses.items()},
        broker_memory_mib={name: (round(a / 2**20, 1), round(b / 2**20, 1)) for name, (a, b) in memory.items()},
        problems=[*problems, *(f"{each.fault.kind}: {each.problem}" for each in injected if each.problem)],
    )


def print_report(report: Report) -> None:
    options = report.options
    where = "in network namespaces" if options["is_netns"] else "on loopback"
    print(
        f"\n{report.lasted_s:.0f} s with {options['num_nodes']} nodes, {options['num_brokers']} brokers and "
        f"{options['num_clients']} clients {where}; seed {report.seed}; {report.machine}"
        + ("" if report.is_complete else "; INTERRUPTED")
    )
    print(f"requests   {report.requests} ({_listed(report.requests_by_kind)})")
    print(f"streams    {report.streams}; {report.interrupted} requests were interrupted and went on elsewhere")
    print(f"faults     {report.faults} ({_listed(report.faults_by_kind)})")
    print(f"heartbeats {report.heartbeats}; false alarms {report.false_alarms}")
    print(f"memory     {_memory(report)}")
    _print_spreads(report)
    print(
        f"lost {report.lost}   duplicated {report.duplicated}   different {report.different}   "
        f"unexpected errors {report.errors}   problems {len(report.problems)}"
    )
    for line in (*report.details, *report.problems):
        print(f"  {line}")
    print("PASS" if report.is_good else "FAIL")


def _print_spreads(report: Report) -> None:
    kinds = sorted(report.detect_s.keys() | report.pause_s.keys())
    if not kinds:
        return
    print(f"\n{'seconds':40}{'time to detect':^28}{'pause of a stream':^34}")
    print(f"{'':40}{'n':>4}{'p50':>8}{'max':>8}{'':>8}{'n':>6}{'p50':>8}{'p99':>8}{'max':>8}")
    for kind in kinds:
        detect, pause = report.detect_s.get(kind, Spread.of(())), report.pause_s.get(kind, Spread.of(()))
        print(
            f"{kind:40}{detect.count:4}{detect.p50:8.3f}{detect.max:8.3f}{'':8}"
            f"{pause.count:6}{pause.p50:8.3f}{pause.p99:8.3f}{pause.max:8.3f}"
        )
    print()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _memory(report: Report) -> str:
    return ", ".join(f"{name} {a:g} → {b:g} MiB" for name, (a, b) in report.broker_memory_mib.items())
