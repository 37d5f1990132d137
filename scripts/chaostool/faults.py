"""The faults, as data: what there is, whom it hits, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    NODE = "node"
    BROKER = "broker"
    GUEST = "guest"  # a node that comes for a while, with something wrong in it
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Kind:
    """`lasts_s` is how long the cause stays: stopped, cut off, away before it is started again."""

    name: str
    hits: Role
    lasts_s: tuple[float, float]
    needs_netns: bool = False


KINDS = (
    Kind("kill agent", Role.NODE, (0.2, 2.0)),
    Kind("kill worker", Role.NODE, (1.0, 1.0)),
    Kind("stop agent, shorter than the lease", Role.NODE, (0.4, 1.0)),
    Kind("stop agent, longer than the lease", Role.NODE, (2.5, 4.0)),
    Kind("stop worker, briefly", Role.NODE, (0.4, 1.0)),
    Kind("stop worker, for long", Role.NODE, (3.5, 5.0)),
    Kind("drain", Role.NODE, (1.5, 3.0)),
    Kind("terminate agent", Role.NODE, (0.2, 1.0)),
    Kind("terminate agent twice", Role.NODE, (0.2, 1.0)),
    Kind("node of the same name", Role.GUEST, (4.0, 7.0)),
    Kind("engine fatal", Role.GUEST, (5.0, 8.0)),
    Kind("engine out of memory", Role.GUEST, (5.0, 8.0)),
    Kind("engine hangs", Role.GUEST, (6.0, 9.0)),
    Kind("kill broker", Role.BROKER, (0.2, 2.0)),
    Kind("stop broker, shorter than the lease", Role.BROKER, (0.4, 1.0)),
    Kind("stop broker, longer than the lease", Role.BROKER, (2.5, 4.0)),
    Kind("terminate broker", Role.BROKER, (0.2, 1.0)),
    Kind("kill client", Role.NOBODY, (1.0, 2.0)),
    Kind("rolling restart", Role.NOBODY, (0.0, 0.0)),  # of everything, one by one; takes as long as that takes
    Kind("cut node's cable briefly", Role.NODE, (0.3, 0.8), needs_netns=True),
    Kind("cut node's cable", Role.NODE, (2.5, 4.0), needs_netns=True),
    Kind("cut broker's cable", Role.BROKER, (2.5, 4.0), needs_netns=True),
    Kind("lose 30 % of a node's packets", Role.NODE, (4.0, 6.0), needs_netns=True),
    Kind("lose 30 % of a broker's packets", Role.BROKER, (4.0, 6.0), needs_netns=True),
)
ROLLING = "rolling restart"
COMES_BROKEN = frozenset(kind.name for kind in KINDS if kind.hits is Role.GUEST)  # such a fault has no moment


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule."""

    at_s: float  # after the load began
    kind: str
    target: str  # name of a member; "" when it hits nobody in particular
    lasts_s: float
