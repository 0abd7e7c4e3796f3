"""What is done to a running cluster, and when: a schedule that is a function of its seed."""

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random


class FaultKind(StrEnum):
    """What is done to processes (`kill`, `stop` for a while), to the network (`cut` a worker off
    from everybody, `isolate` all workers from each other), to tiers (`corrupt` bytes in files,
    `fill` their file system, `kill redis`)."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"
    ISOLATE = "isolate"
    CORRUPT = "corrupt"
    FILL = "fill"
    KILL_REDIS = "kill redis"


LASTING = (FaultKind.STOP, FaultKind.CUT, FaultKind.ISOLATE, FaultKind.FILL, FaultKind.KILL_REDIS)


@dataclass(frozen=True)
class LiveFault:
    """At `at_s` from the start of the load, to the processes of these names."""

    at_s: float
    kind: FaultKind
    victims: tuple[str, ...] = ()
    for_s: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.for_s:.1f} s" if self.for_s else ""
        return " ".join((str(self.kind), " and ".join(self.victims))).strip() + lasts


@dataclass(frozen=True)
class Victims:
    """Who may be hit: process names by group (role of workers, `pool`, `gateway`), and what else
    there is. Of each group one always stays, but of the pool, which nobody needs."""

    groups: dict[str, tuple[str, ...]]
    network: bool = False
    files: bool = False
    redis: bool = False

    def spared(self, chance: Random) -> "Victims":
        """Without those that stay."""
        left = {}
        for group, names in sorted(self.groups.items()):
            stays = None if group == "pool" else chance.choice(names)
            left[group] = tuple(name for name in names if name != stays)
        return replace(self, groups={group: names for group, names in left.items() if names})


@dataclass(frozen=True)
class Pace:
    """Seconds: faults begin `first_s` after the load, end before `until_s`, and come every
    `every_s` on average. A stop or cut lasts `short_s`, less than the heartbeat's time-out, or
    `long_s`, more than that."""

    first_s: float
    until_s: float
    every_s: float
    short_s: float
    long_s: float


def draw_faults(seed: int, victims: Victims, pace: Pace) -> tuple[LiveFault, ...]:
    """In order of time. Every kind that is possible is as likely; one time in four two processes
    of different groups are hit at once."""
    chance = Random(f"mishaps {seed}")
    victims = victims.spared(chance)
    found, at_s = [], pace.first_s
    while at_s < pace.until_s:
        found.append(_one(chance, victims, pace, at_s))
        at_s += pace.every_s * (0.5 + chance.random())
    return tuple(found)


def _one(chance: Random, victims: Victims, pace: Pace, at_s: float) -> LiveFault:
    kinds = [FaultKind.KILL, FaultKind.KILL, FaultKind.STOP]
    kinds += [FaultKind.CUT, FaultKind.ISOLATE] * victims.network
    kinds += [FaultKind.CORRUPT, FaultKind.FILL] * victims.files
    kinds += [FaultKind.KILL_REDIS] * victims.redis
    kind = chance.choice(kinds)
    for_s = chance.choice([pace.short_s, pace.long_s]) if kind in LASTING else 0.0
    return LiveFault(at_s, kind, _names(chance, victims, kind), for_s)


def _names(chance: Random, victims: Victims, kind: FaultKind) -> tuple[str, ...]:
    groups = victims.groups
    if kind is FaultKind.CUT:
        # The gateways are the ones that stay where they are.
        groups = {group: names for group, names in groups.items() if group != "gateway"}
    elif kind not in (FaultKind.KILL, FaultKind.STOP):
        return ()
    order = sorted(groups)
    chance.shuffle(order)
    count = 2 if len(order) > 1 and not chance.randrange(4) else 1
    return tuple(chance.choice(groups[group]) for group in order[:count])
