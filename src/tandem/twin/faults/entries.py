"""The list `faults` of a cluster file, one mapping a fault:

{at: 30s, crash: decode-1, restart: 20s}    {at: 1m, partition: [[a, b], [c]], for: 10s}
{at: 30s, hang: decode-1, for: 5s}          {at: 1m, slow: decode-1, factor: 0.1, for: 30s}
{at: 2m, down: remote, for: 30s}            {at: 2m, down: disk, worker: decode-1}
{at: 3m, lose: remote, share: 0.5}          {at: 3m, spoil: disk, worker: decode-1}
{at: 4m, crash: gateway, restart: 2s}        {at: 4m, partition: [[gateway], [a]], for: 2s}
{at: 5m, lossy: decode-1, share: 0.2}        {at: 5m, fill: disk, worker: decode-1, for: 1m}
{at: 6m, drain: decode-1, for: 20s}          {at: 6m, leave: 0.3}
{at: 7m, throttle: decode-1, factor: 0.25, for: 2m}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.fleet import Role, Tier
from tandem.facts.units import SECONDS, SHARE, Quantity
from tandem.twin.faults.kinds import (
    Cause,
    ClientsLeave,
    Crash,
    Drained,
    Fault,
    GatewayCrash,
    Hang,
    LossyLink,
    Partition,
    SlowLink,
    Throttled,
    TierCorrupted,
    TierDown,
    TierFull,
    TierLost,
)
from tandem.twin.message_bus import GATEWAY

_TIME = replace(SECONDS, bare="s")
# The key that names the fault, and the keys it takes besides `at`.
_KEYS = {
    "crash": ("restart", "silently"),
    "hang": ("for",),
    "slow": ("factor", "for"),
    "throttle": ("factor", "for"),
    "lossy": ("share", "for"),
    "partition": ("for",),
    "down": ("worker", "for"),
    "fill": ("worker", "for"),
    "lose": ("share", "worker"),
    "spoil": ("worker",),
    "drain": ("then", "for"),
    "leave": (),
}
# So much faster than its datasheet says a worker may be.
MOST_SPEED = 100
# What is called so is no worker.
_GATEWAY = "gateway"
_TIERS = tuple(tier.value for tier in Tier if tier is not Tier.DEVICE)


def read_faults(
    entries: Sequence[Mapping[str, object]], workers: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """The schedule in order of time; faults of one instant stay in order of the list.

    Numbers without unit are seconds. A fault without `for` (a crash without `restart`) lasts to the
    end. `workers` are the names that may occur; empty: any. Raises InvalidConfiguration, naming
    the entry, for everything else.
    """
    faults = [_Entry(index, entry).fault() for index, entry in enumerate(entries)]
    for index, fault in enumerate(faults):
        for worker in fault.workers:
            if workers and worker not in (*workers, GATEWAY):
                remedy = nearest(worker, workers)
                raise InvalidConfiguration(f"faults[{index}]: there is no worker {worker}{remedy}")
    return tuple(sorted(faults, key=lambda fault: fault.begin_ns))


def _amount(quantity: Quantity, text: str) -> float | None:
    """None for what is no such quantity."""
    try:
        return quantity.read(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry and its place in the list, for the error."""

    index: int
    fields: Mapping[str, object]

    def fault(self) -> Fault:
        if not isinstance(self.fields, Mapping):
            raise self._mistake("is not a mapping such as {at: 30s, crash: decode-1}")
        kinds = [kind for kind in _KEYS if kind in self.fields]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "none"
            raise self._mistake(f"must name one of {', '.join(_KEYS)}; it names {named}")
        kind = kinds[0]
        known = ("at", kind, *_KEYS[kind])
        for key in self.fields:
            if key not in known:
                raise self._mistake(f"{key} is unknown{nearest(str(key), known)}")
        if "at" not in self.fields:
            raise self._mistake("at is missing: when it happens, such as at: 30s")
        duration = "restart" if kind == "crash" else "for"
        for_s = self._seconds(duration) if duration in self.fields else None
        return Fault(self._seconds("at"), self._cause(kind), for_s)

    def _cause(self, kind: str) -> Cause:
        match kind:
            case "crash":
                name = self._process(kind)
                return GatewayCrash() if name == GATEWAY else Crash(name, self._silently())
            case "hang":
                return Hang(self._process(kind))
            case "slow":
                return SlowLink(self._name(kind), self._factor())
            case "throttle":
                return Throttled(self._name(kind), self._speed())
            case "lossy":
                return LossyLink(self._name(kind), self._share())
            case "partition":
                return self._partition()
            case "drain":
                return Drained(self._name(kind), self._role())
            case "leave":
                return ClientsLeave(self._share(kind))
            case "fill":
                return TierFull(self._tier(kind), self._worker())
            case "lose":
                return TierLost(self._tier(kind), self._share(), self._worker())
            case "spoil":
                return TierCorrupted(self._tier(kind), self._worker())
            case _:
                return TierDown(self._tier(kind), self._worker())

    def _partition(self) -> Partition:
        groups = self.fields["partition"]
        if not isinstance(groups, list | tuple) or len(groups) != 2:
            raise self._mistake("partition must be two lists of workers: [[a, b], [c]]")
        one, other = (self._group(group) for group in groups)
        both = [worker for worker in one if worker in other]
        if both:
            raise self._mistake(f"partition has {both[0]} on both sides")
        return Partition(one, other)

    def _group(self, group: object) -> tuple[str, ...]:
        if not isinstance(group, list | tuple) or not group:
            raise self._mistake("partition must be two lists of workers: [[a, b], [c]]")
        return tuple(GATEWAY if name == _GATEWAY else str(name) for name in group)

    def _tier(self, kind: str) -> Tier:
        tier = self._name(kind)
        if tier not in _TIERS:
            raise self._mistake(f"{kind} must be one of {', '.join(_TIERS)}, got {tier!r}")
        if tier == Tier.REMOTE and "worker" in self.fields:
            raise self._mistake(f"worker does not go with {kind}: remote, which all workers share")
        return Tier(tier)

    def _worker(self) -> str:
        return self._name("worker") if "worker" in self.fields else ""

    def _share(self, key: str = "share") -> float:
        written = str(self.fields.get(key, 1))
        share = _amount(SHARE, written) or 0.0
        if not 0 < share <= 1:
            raise self._mistake(f"{key} must be above 0 and at most 1, got {written}")
        return share

    def _silently(self) -> bool:
        silently = self.fields.get("silently", False)
        if not isinstance(silently, bool):
            raise self._mistake(f"silently must be true or false, got {silently!r}")
        return silently

    def _role(self) -> Role | None:
        if "then" not in self.fields:
            return None
        role = self._name("then")
        if role not in tuple(Role):
            raise self._mistake(f"then must be one of {', '.join(Role)}, got {role!r}")
        return Role(role)

    def _process(self, key: str) -> str:
        name = self._name(key)
        return GATEWAY if name == _GATEWAY else name

    def _name(self, key: str) -> str:
        name = self.fields[key]
        if not isinstance(name, str) or not name:
            raise self._mistake(f"{key} must be a name, got {name!r}")
        return name

    def _factor(self) -> float:
        written = str(self.fields.get("factor", "nothing"))
        factor = _amount(SHARE, written) or 0.0
        if not 0 < factor < 1:
            raise self._mistake(
                "factor must be what is left of the bandwidth, between 0 and 1 without them, "
                f"got {written}; for a link that is cut use partition"
            )
        return factor

    def _speed(self) -> float:
        written = str(self.fields.get("factor", "nothing"))
        factor = _amount(SHARE, written) or 0.0
        if not 0 < factor <= MOST_SPEED:
            raise self._mistake(
                "factor must be what is left of the worker's speed, above 0 and at most "
                f"{MOST_SPEED} (above 1 it is faster than listed), got {written}"
            )
        return factor

    def _seconds(self, key: str) -> float:
        seconds = _amount(_TIME, str(self.fields[key]))
        if seconds is None:
            raise self._mistake(f"{key} must be a time such as 30s, got {self.fields[key]!r}")
        return seconds

    def _mistake(self, problem: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"faults[{self.index}]: {problem}")
