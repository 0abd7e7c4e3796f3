"""The port of planning policies: how many workers of each role there should be, flips and
migrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.cost.worker import WorkerCost
from tandem.facts.shapes import ShapeFigures
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
class Answer:
    """What became of a planner's last `Question`: the figures of the fleet after each of its plans,
    in their order (None where there was no time), as `requests` of the last `seconds` would have
    been served had they arrived `speed` times as fast. `measured` is the share of them that in fact
    kept their SLO, where that is known. With a `problem` there are no figures."""

    serial: int
    figures: tuple[ShapeFigures | None, ...] = ()
    requests: int = 0
    seconds: float = 0.0
    speed: float = 1.0
    measured: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything planning may know. `windows` are the past ones, oldest first, all of one length;
    `starting` counts workers that were asked for and are not up, by role name (a worker that drains
    towards a flip counts under its new role). `cost` prices a typical worker, with what
    was learnt of the steps of each phase. `min_workers` and `max_workers` bound the prefill and
    decode workers together; workers of role BOTH are left alone and not counted. Those that are
    `held` count, but must keep their role. So many `spares` stand by, loaded: whoever is wanted
    beyond the present workers is one of them first. `answer` is the last that was given."""

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
    spares: int = 0
    answer: Answer | None = None


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
class Question:
    """Has a simulator try what the fleet would have done after each of these `plans`, with the last
    `requests` requests of the last `window_s` seconds, or fewer where the load was another one
    before, arriving at `rate_per_s`. The answer, with this `serial`, comes within `limit_s` and
    takes at most `cpu_s` of a processor."""

    serial: int
    plans: tuple["Plan", ...]
    window_s: float
    requests: int
    rate_per_s: float
    cpu_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Wanted numbers of workers once the flips are done (None: leave as it is), role flips and
    migrations, with the reason in words. The plan is carried out whatever the answer to its
    `question` will be, which is part of a later view."""

    prefill: int | None = None
    decode: int | None = None
    flips: tuple[Flip, ...] = ()
    moves: tuple[Move, ...] = ()
    reason: str = ""
    question: Question | None = None


class Planning(Protocol):
    """Called once a tick; remembers its own past decisions (cooldown, dwell, hysteresis) as plain
    attributes and nothing else. `interval_s` is the tick it wants."""

    @property
    def interval_s(self) -> float: ...

    def plan(self, fleet: FleetView, now_ns: int) -> Plan: ...
