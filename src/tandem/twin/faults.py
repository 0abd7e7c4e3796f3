"""What may go wrong in a simulated cluster, and when: the nouns, for whoever schedules and performs
them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.facts.fleet import Tier


@dataclass(frozen=True, slots=True)
class Crash:
    """The worker dies with everything on its device and all transfers from and to it; the end of
    the fault is its restart, empty."""

    worker: str

    def __str__(self) -> str:
        return f"crash of {self.worker}"


@dataclass(frozen=True, slots=True)
class Hang:
    """The worker computes and answers nothing; then it goes on where it stood."""

    worker: str

    def __str__(self) -> str:
        return f"hang of {self.worker}"


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The worker's links to others have this share of their bandwidth, more than 0 and below 1."""

    worker: str
    factor: float

    def __str__(self) -> str:
        return f"links of {self.worker} at {self.factor:g} of their bandwidth"


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing passes between a worker of `one` and a worker of `other`."""

    one: tuple[str, ...]
    other: tuple[str, ...]

    def __str__(self) -> str:
        return f"partition of {', '.join(self.one)} from {', '.join(self.other)}"


@dataclass(frozen=True, slots=True)
class TierDown:
    """A tier cannot be read or written; its content outlives that. An empty `worker` means all
    workers, as for the shared pool."""

    tier: Tier
    worker: str = ""

    def __str__(self) -> str:
        return f"tier {self.tier} down" + (f" at {self.worker}" if self.worker else "")


@dataclass(frozen=True, slots=True)
class TierLost:
    """A tier loses at once what it holds, or this `share` of its chains: one of the processes of a
    shared pool has died. An empty `worker` means all workers."""

    tier: Tier
    share: float = 1.0
    worker: str = ""

    def __str__(self) -> str:
        what = "" if self.share >= 1 else f" {self.share:g} of its chains"
        return f"tier {self.tier} lost{what}" + (f" at {self.worker}" if self.worker else "")


@dataclass(frozen=True, slots=True)
class TierCorrupted:
    """The bytes that lie in a tier are no longer what was written. Who reads them finds out, drops
    them, and computes them. An empty `worker` means all workers."""

    tier: Tier
    worker: str = ""

    def __str__(self) -> str:
        return f"tier {self.tier} corrupted" + (f" at {self.worker}" if self.worker else "")


@dataclass(frozen=True, slots=True)
class GatewayCrash:
    """The gateway dies. Requests under way fail, and so do those that come before it is back, at
    the end of the fault; workers keep their caches."""

    def __str__(self) -> str:
        return "crash of the gateway"


Cause = Crash | Hang | SlowLink | Partition | TierDown | TierLost | TierCorrupted | GatewayCrash


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` on, for `for_s` seconds; None: until the run ends."""

    at_s: float
    cause: Cause
    for_s: float | None = None

    @property
    def begin_ns(self) -> int:
        return round(self.at_s * 1e9)

    @property
    def end_ns(self) -> int | None:
        return None if self.for_s is None else self.begin_ns + round(self.for_s * 1e9)

    @property
    def workers(self) -> tuple[str, ...]:
        """Whom the fault names; nobody when it concerns all."""
        match self.cause:
            case Partition(one, other):
                return one + other
            case (
                TierDown(worker="")
                | TierLost(worker="")
                | TierCorrupted(worker="")
                | GatewayCrash()
            ):
                return ()
            case cause:
                return (cause.worker,)

    def __str__(self) -> str:
        if isinstance(self.cause, TierLost | TierCorrupted):
            return str(self.cause)
        lasts = "to the end" if self.for_s is None else f"for {self.for_s:g} s"
        return f"{self.cause} {lasts}"


def link_factor(active: Iterable[Fault], worker: str) -> float:
    """What faults that overlap leave of the bandwidth of a worker's links: the worst of them."""
    factors = (
        fault.cause.factor
        for fault in active
        if isinstance(fault.cause, SlowLink) and fault.cause.worker == worker
    )
    return min(factors, default=1.0)
