"""What a gateway machine decides by, and the event that changes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tandem.cluster.gateway.pauses import PauseConfig
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.facts.kv import BlockFormat
from tandem.facts.rate_limits import LimitTerms
from tandem.messages.cluster import Register, Registered
from tandem.messages.gateway import GatewayEvent
from tandem.policy.learning import DEFAULT_LEARNING, Learning


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """`capacity_of` prices a worker when it joins; `router.capacities` is not used. Every worker is
    sent `terms`, whose `silence_ns` holds for workers too. Only workers of this `model` and
    `revision` are let in (of some pools those of another one, whose folder is in `pool_models`),
    and only processes of the shared pool that keep blocks of `block_format` (None: there is no
    shared pool). It plans how many workers there are if it has `planning`: of several gateways one.
    `limits` are the rate limits of accounts, and how many gateways there are, which share what each
    of them gives out. `learning` is how prices follow what is measured (None: only those of tiers
    do). It follows the pauses of sessions if it has `pauses`. `configuration` numbers what
    operators have applied, from 0."""

    gateway: str
    router: RouterConfig
    capacity_of: Callable[[Register], Capacity]
    terms: Registered
    model: str
    revision: str
    block_format: BlockFormat | None = None
    planning: PlanningConfig | None = None
    limits: LimitTerms = field(default_factory=LimitTerms)
    learning: Learning | None = DEFAULT_LEARNING
    pauses: PauseConfig | None = None
    configuration: int = 0
    pool_models: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """An operator's new configuration: the machine decides by `config` from this instant on, as if
    it had been made with it, but for what it remembers. Policies whose choice is as before are the
    very objects of the old one. `cluster` is the cluster file as a journal keeps it, with the
    `files` that it names (empty: nobody records)."""

    config: GatewayConfig
    cluster: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


# What a gateway machine is handed.
GatewayInput = GatewayEvent | ConfigurationChanged
