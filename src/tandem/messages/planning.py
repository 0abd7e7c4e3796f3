"""What a planner decided, with what it was based on, and how that is going: for operators, metrics
and records."""

from enum import StrEnum

from msgspec import Struct

from tandem.facts.fleet import PlanningMode, Role


class ActionKind(StrEnum):
    """What a planner can do to a worker."""

    START = "start"
    STOP = "stop"
    FLIP = "flip"
    MIGRATE = "migrate"
    ACTIVATE = "activate"
    SPARE = "spare"
    START_SPARE = "start_spare"


class PlannedAction(Struct, frozen=True):
    """One change of the fleet. `role` is the one that the worker starts with, flips to or takes
    requests in (a spare that is activated); running decodes of about `tokens` KV tokens migrate
    from the worker to `target`."""

    kind: ActionKind
    worker: str
    role: Role | None = None
    target: str = ""
    tokens: int = 0

    @property
    def text(self) -> str:
        """For a person."""
        match self.kind:
            case ActionKind.START:
                return f"{self.worker} starts as {self.role}"
            case ActionKind.STOP:
                return f"{self.worker} drains and goes"
            case ActionKind.FLIP:
                return f"{self.worker} becomes {self.role}"
            case ActionKind.ACTIVATE:
                return f"spare {self.worker} takes requests as {self.role}"
            case ActionKind.SPARE:
                return f"{self.worker} drains and stays as a spare"
            case ActionKind.START_SPARE:
                return f"{self.worker} starts as a spare"
        return f"{self.tokens} tokens move from {self.worker} to {self.target}"


class PlanDecision(Struct, frozen=True):
    """One tick of a planner: the numbers of workers that it wants (None: as many as there are), the
    reason, the figures that it saw, and the `actions` that were begun or, in the mode `advisory`,
    would have been. Decisions of one gateway process are numbered by `serial`, from 1."""

    serial: int
    instant_ns: int
    mode: PlanningMode
    prefill: int | None
    decode: int | None
    reason: str
    figures: tuple[tuple[str, float], ...]
    actions: tuple[PlannedAction, ...]

    @property
    def text(self) -> str:
        """The actions after the reason, for a person."""
        changes = "; ".join(action.text for action in self.actions) or "nothing changes"
        if self.mode is PlanningMode.ADVISORY:
            changes = f"would do: {changes}"
        return f"{self.reason}: {changes}" if self.reason else changes


class PlannedStart(Struct, frozen=True):
    """A worker that is to be started with this role, and is not up yet."""

    worker: str
    role: Role


class HeldWorker(Struct, frozen=True):
    """A worker that the planner leaves alone, because an operator changed it by hand: for `left_s`
    more seconds, or (None) until it is undrained."""

    worker: str
    why: str
    left_s: float | None = None


class StuckWorker(Struct, frozen=True):
    """A worker that did not do what the planner wanted, and why: the planner goes on without."""

    worker: str
    why: str


class SimulationStatus(Struct, frozen=True):
    """What became of the planner's questions to the simulator: how many were answered and were not
    (`failures`), the seconds of a processor that the answers took, and the last outcome in words,
    `ago_s` ago. `is_open`: the next answer is awaited."""

    answers: int = 0
    failures: int = 0
    cpu_s: float = 0.0
    text: str = ""
    ago_s: float = 0.0
    is_open: bool = False


class PlanningStatus(Struct, frozen=True):
    """How a gateway's planner fares. Whoever launches processes starts those that are `starting`
    and do not run. `decisions` are the last ones that changed something or would have, oldest
    first, the last of them `decided_ago_s` ago; `last_reason` is that of the last tick, whether
    it changed anything or not. The counts are of actions begun. `spares` stand by, loaded.
    `simulation` is None where the planner asks no simulator."""

    policy: str
    mode: PlanningMode
    starting: tuple[PlannedStart, ...] = ()
    draining: tuple[str, ...] = ()
    held: tuple[HeldWorker, ...] = ()
    decisions: tuple[PlanDecision, ...] = ()
    decided_ago_s: float = 0.0
    last_reason: str = ""
    starts: int = 0
    stops: int = 0
    flips: int = 0
    migrations: int = 0
    failed_starts: int = 0
    activations: int = 0
    spares: tuple[str, ...] = ()
    stuck: tuple[StuckWorker, ...] = ()
    simulation: SimulationStatus | None = None
