"""Kinds of faults of a simulated cluster, each with its instant and end."""

from collections.abc import Iterable
from dataclasses import dataclass

from tandem.facts.fleet import Role, Tier
from tandem.twin.message_bus import GATEWAY


@dataclass(frozen=True, slots=True)
class Crash:
    """The worker dies with everything on its device and all transfers from and to it; the end of
    the fault is its restart, empty. Where it dies `silently`, only its silence tells. It may be a
    process of the shared pool, too."""

    worker: str
    silently: bool = False

    def __str__(self) -> str:
        return f"{'silent ' * self.silently}crash of {self.worker}"


@dataclass(frozen=True, slots=True)
class Hang:
    """The worker computes and answers nothing; then it goes on where it stood. Where it is
    `replaced`, another one is started under its name at once. It may be a gateway or a process of
    the shared pool, too."""

    worker: str
    replaced: bool = False

    def __str__(self) -> str:
        return f"hang of {self.worker}{', replaced' * self.replaced}"


@dataclass(frozen=True, slots=True)
class SlowLink:
    """The worker's links to others have this share of their bandwidth, more than 0 and below 1."""

    worker: str
    factor: float

    def __str__(self) -> str:
        return f"links of {self.worker} at {self.factor:g} of their bandwidth"


@dataclass(frozen=True, slots=True)
class Throttled:
    """The worker computes at this share of the speed that its datasheet lists; more than 1: it is
    faster than that."""

    worker: str
    factor: float

    def __str__(self) -> str:
        return f"{self.worker} computes at {self.factor:g} of its speed"


@dataclass(frozen=True, slots=True)
class LossyLink:
    """This share of the transfers from and to the worker does not arrive."""

    worker: str
    share: float

    def __str__(self) -> str:
        return f"links of {self.worker} lose {self.share:g} of the transfers"


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing passes between a process of `one` and one of `other`: neither KV between workers, nor
    messages between gateways and others, which wait."""

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
class TierFull:
    """A tier has no room: what is written there does not get there, or in part. An empty `worker`
    means all workers."""

    tier: Tier
    worker: str = ""

    def __str__(self) -> str:
        return f"tier {self.tier} full" + (f" at {self.worker}" if self.worker else "")


@dataclass(frozen=True, slots=True)
class GatewayCrash:
    """A gateway dies. Requests under way there fail, and where it is the only one, so do those that
    come before it is back, at the end of the fault; workers keep their caches."""

    gateway: str = GATEWAY

    def __str__(self) -> str:
        return "crash of the gateway" if self.gateway == GATEWAY else f"crash of {self.gateway}"


@dataclass(frozen=True, slots=True)
class Drained:
    """An operator has a worker take no more requests until the end of the fault, or until it has
    taken `then_role`."""

    worker: str
    then_role: Role | None = None

    def __str__(self) -> str:
        return f"drain of {self.worker}" + (f" to {self.then_role}" if self.then_role else "")


@dataclass(frozen=True, slots=True)
class ClientsLeave:
    """This share of the clients that wait for an answer go away."""

    share: float

    def __str__(self) -> str:
        return f"{self.share:g} of the clients leave"


Cause = (
    Crash
    | Hang
    | SlowLink
    | Throttled
    | LossyLink
    | Partition
    | TierDown
    | TierFull
    | TierLost
    | TierCorrupted
    | GatewayCrash
    | Drained
    | ClientsLeave
)
# What happens at one instant, and has no end.
MOMENTS = (TierLost, TierCorrupted, ClientsLeave)


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
                | TierFull(worker="")
                | TierLost(worker="")
                | TierCorrupted(worker="")
                | GatewayCrash()
                | ClientsLeave()
            ):
                return ()
            case cause:
                return (cause.worker,)

    def __str__(self) -> str:
        if isinstance(self.cause, MOMENTS):
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


def speed_of(active: Iterable[Fault], worker: str) -> float:
    """At what share of its listed speed a worker computes under faults that overlap: all count."""
    speed = 1.0
    for fault in active:
        if isinstance(fault.cause, Throttled) and fault.cause.worker == worker:
            speed *= fault.cause.factor
    return speed


def lost_share_of(active: Iterable[Fault], worker: str) -> float:
    """What faults that overlap lose of the transfers of a worker: the worst of them."""
    shares = (
        fault.cause.share
        for fault in active
        if isinstance(fault.cause, LossyLink) and fault.cause.worker == worker
    )
    return max(shares, default=0.0)
