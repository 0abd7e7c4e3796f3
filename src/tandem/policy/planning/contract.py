"""The port of planning policies: how many workers of each role there should be, flips and
migrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.cost.worker import WorkerCost
from tandem.facts.slo import Slo
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class Window:
    """One observation window of `seconds`, in which so many `requests` arrived. `lengths` are the
    (uncached prompt, output) tokens of those that finished in it, or of an even sample of very
    many: plans are made on their distribution, not on a mean. `ttft_s` and `tpot_s` are what they
    got."""

    end_ns: int
    seconds: float
    requests: int
    lengths: tuple[tuple[int, int], ...] = ()
    ttft_s: tuple[float, ...] = ()
    tpot_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything planning may know. `windows` are the past ones, oldest first, all of one length;
    `starting` counts workers that were asked for and are not up, by role name (a worker that drains
    towards a flip counts under its new role). `cost` prices a typical worker. `min_workers` and
    `max_workers` bound the prefill and decode workers together; workers of role BOTH are left
    alone and not counted. Those that are `held` count, but must keep their role."""

    workers: Sequence[WorkerView]
    windows: Sequence[Window]
    starting: dict[str, int]
    cost: WorkerCost
    slo: Slo
    min_workers: int
    max_workers: int
    startup_s: float
    drain_s: float
    held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Flip:
    """This worker drains what its old role left it and then takes the new one."""

    worker: str
    role: str


@dataclass(frozen=True, slots=True)
class Move:
    """Migrate running decodes of `tokens` KV tokens from a hot worker to a cool one."""

    source: str
    target: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Wanted numbers of workers once the flips are done (None: leave as it is), role flips and
    migrations, with the reason in words."""

    prefill: int | None = None
    decode: int | None = None
    flips: tuple[Flip, ...] = ()
    moves: tuple[Move, ...] = ()
    reason: str = ""


class Planning(Protocol):
    """Called once a tick; remembers its own past decisions (cooldown, dwell, hysteresis) as plain
    attributes and nothing else. `interval_s` is the tick it wants."""

    @property
    def interval_s(self) -> float: ...

    def plan(self, fleet: FleetView, now_ns: int) -> Plan: ...
