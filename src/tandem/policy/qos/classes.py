"""Service classes: priority, SLO, reserved share and deadline of a request, by header or tenant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import LOWER_ONLY, ClientPriorities, Slo


@dataclass(frozen=True, slots=True)
class Degradation:
    """What may be cut of a request that would be refused otherwise, in this order. `no_n`: further
    answers to its prompt are left out; `max_tokens`: its answer is no longer than that;
    `service_class`: the workers of that class answer it."""

    no_n: bool = False
    max_tokens: int | None = None
    service_class: str = ""


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """Terms of service. Smaller `priority` is more urgent; `reserved` is the share of the capacity
    that is the class's own whenever it wants it. A request whose headers hold any of `headers`
    belongs here, if its tenant may use the class. `deadline_s` is when the first token is due after
    the arrival. A client may shift its priority within `client_priorities`, and ask for its KV to
    be kept for up to `longest_pin_s` (None: as everywhere). `degrade` is what its requests are cut
    to before they are refused. The workers of its `pools` are for it (and other classes that name
    them) alone, and are all that it uses while they serve. Where those have another
    `model` than the rest of the cluster, nobody else can answer its requests."""

    name: str
    priority: int = 0
    reserved: float = 0.0
    slo: Slo = field(default_factory=Slo)
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float | None = None
    client_priorities: ClientPriorities = LOWER_ONLY
    longest_pin_s: float | None = None
    degrade: Degradation = field(default_factory=Degradation)
    pools: tuple[str, ...] = ()
    model: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.reserved <= 1:
            raise InvalidConfiguration(
                f"class {self.name}: reserved is {self.reserved:g}; choose a share from 0 to 1"
            )
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidConfiguration(
                f"class {self.name}: deadline_s is {self.deadline_s:g}; choose more than 0"
            )

    def deadline_ns(self, arrival_ns: int, asked_s: float = 0.0) -> int | None:
        """When the first token is due of a request whose client wants it all within `asked_s` (0:
        no deadline): never later than its class has it."""
        bounds_s = [each for each in (self.deadline_s, asked_s) if each]
        return arrival_ns + round(min(bounds_s) * 1e9) if bounds_s else None

    def priority_of(self, wish: int) -> int:
        """Of a request of this class whose client wishes for this priority (0: for none)."""
        return self.client_priorities.applied(self.priority, wish)


UNNAMED = ServiceClass("")


@dataclass(frozen=True, slots=True)
class Classes:
    """All classes, in the order in which headers are tried; `tenants` gives the class of requests
    whose headers name none. Whoever fits nowhere is in the class called `default`, or where there
    is none in `unnamed`, a class with no SLO.

    Headers are the caller's claim, and the tenant outranks them: they choose among its own class
    and those that `may_use` gives it. Where tenants are told apart, a caller without one chooses
    nothing; where there are none, headers are all there is, and whoever is before the gateway
    strips them from those who did not pay.

    Reserves are whole slots, rounded down, so that together they never exceed the capacity.
    """

    classes: tuple[ServiceClass, ...] = ()
    tenants: Mapping[str, str] = field(default_factory=dict)
    may_use: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default: str = ""
    unnamed: ServiceClass = UNNAMED

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        for name in names:
            if not name or names.count(name) > 1:
                raise InvalidConfiguration(
                    f"class name {name!r} is empty or there twice; rename it"
                )
        used = [(tenant, name) for tenant, more in self.may_use.items() for name in more]
        for tenant, name in sorted([*self.tenants.items(), *used]):
            if name not in names:
                raise InvalidConfiguration(
                    f"tenant {tenant} has class {name}; choose one of {', '.join(names)}"
                )
        reserved = sum(each.reserved for each in self.classes)
        # 1e-9: shares such as 0.7 + 0.2 + 0.1 do not add up to 1 in binary.
        if reserved > 1 + 1e-9:
            raise InvalidConfiguration(
                "reserved shares of all classes exceed 1; lower some of them"
            )
        unreserved = [each.name for each in self.classes if not each.reserved]
        if reserved > 1 - 1e-9 and unreserved:
            raise InvalidConfiguration(
                f"reserved shares add up to 1 and leave class {unreserved[0]} nothing; "
                "lower some of them, or give it a share"
            )

    def classify(self, headers: Mapping[str, str], tenant: str) -> ServiceClass:
        """The first class that a header names (header names in any case) and that the tenant may
        use, else the tenant's."""
        given = {name.lower(): value for name, value in headers.items()}
        own = self.tenants.get(tenant, self.default)
        for each in self.classes:
            usable = each.name == own or each.name in self.may_use.get(tenant, ())
            if not usable and (self.tenants or self.may_use):
                continue
            if any(given.get(name.lower()) == value for name, value in each.headers.items()):
                return each
        return self.named(own)

    def class_of(
        self, headers: Mapping[str, str], tenant: str, *, background: bool = False
    ) -> ServiceClass:
        """The class of a request: in the `background` the least urgent of those that its tenant
        may use and that the same model answers, whatever its headers say."""
        if not background:
            return self.classify(headers, tenant)
        own = self.classify({}, tenant)
        may_use = self.may_use.get(tenant, ())
        anybody_chooses = not (self.tenants or self.may_use)
        usable = [
            each
            for each in self.classes
            if (each.name in may_use or anybody_chooses) and each.model == own.model
        ]
        return max((own, *usable), key=lambda each: (each.priority, each.name))

    @property
    def priorities(self) -> set[int]:
        """All that a request may have by its class."""
        return {each.priority for each in (*self.classes, self.unnamed)}

    def named(self, name: str) -> ServiceClass:
        return next((each for each in self.classes if each.name == name), self.unnamed)

    def standing(self, name: str, tenant: str) -> str:
        """The class of a request that came as one of class `name` of this tenant's: that one, or
        where it is gone what the tenant has now."""
        known = any(each.name == name for each in self.classes)
        return name if known else self.named(self.tenants.get(tenant, self.default)).name

    def dedicated_to(self, pool: str) -> frozenset[str]:
        """The classes for which the workers of that pool are alone; none: they are everybody's."""
        return frozenset(each.name for each in self.classes if pool in each.pools)

    def share_workers(self, one: str, other: str) -> bool:
        """Whether requests of these classes may go to the same workers, while all pools serve."""
        if one == other:
            return True
        own, others = self.named(one).pools, self.named(other).pools
        return not set(own).isdisjoint(others) or not (own or others)

    def reserved_slots(self, name: str, capacity: int) -> int:
        return floor(self.named(name).reserved * capacity + 1e-9)

    def below_reserve(self, name: str, in_use: Mapping[str, int], capacity: int) -> bool:
        return in_use.get(name, 0) < self.reserved_slots(name, capacity)


NO_CLASSES = Classes()


def to_preempt(
    classes: Classes, waiting: Mapping[str, int], in_use: Mapping[str, int], capacity: int
) -> dict[str, int]:
    """How many of its newest requests each borrowing class gives back, by class name; empty when
    no class both waits and is below its reserve, or free slots are enough.

    The least urgent borrower pays first, then the one that borrowed most; none is pushed below its
    own reserve.
    """
    due = 0
    for each in classes.classes:
        below = classes.reserved_slots(each.name, capacity) - in_use.get(each.name, 0)
        due += max(0, min(waiting.get(each.name, 0), below))
    # Free slots serve the first of them; that capacity shrank is alone no reason to preempt.
    due = due and max(0, due + sum(in_use.values()) - capacity)
    borrowers = [
        (-classes.named(name).priority, classes.reserved_slots(name, capacity) - used, name)
        for name, used in in_use.items()
        if used > classes.reserved_slots(name, capacity)
    ]
    given: dict[str, int] = {}
    for _, lacking, name in sorted(borrowers):
        if due:
            given[name] = min(due, -lacking)
            due -= given[name]
    return given
