"""What is simulated: workers, links, tiers, policies and faults, all chosen before the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cluster.tiers.config import TierLimits
from tandem.cluster.worker.machine import WorkerConfig
from tandem.cost.worker import NO_SERVING_COST, ServingCost, WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.health import Health
from tandem.facts.rate_limits import LimitTerms
from tandem.facts.slo import Slo
from tandem.messages.gateway import ShapesSimulated, SimulateShapes
from tandem.policy.admission.contract import Admission
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.contract import Dispatching
from tandem.policy.eviction.policies import Eviction
from tandem.policy.learning import DEFAULT_LEARNING, Learning
from tandem.policy.planning.contract import Planning
from tandem.policy.qos.classes import Classes
from tandem.policy.routing.contract import Routing
from tandem.policy.speculation import Speculation
from tandem.twin.block_contents import BlockContents
from tandem.twin.drafts import NO_DRAFT_COST, DraftQuality
from tandem.twin.faults.kinds import Fault
from tandem.twin.network.paths import NodeLinks


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """One kind of worker. `device` names the hardware for the report, `devices` how many of them
    one worker spans; `host_blocks` and `disk_blocks` are the room of its slower tiers. Its blocks
    have `block_size` tokens (0: as the scenario says). With `speculation` it checks drafts, which
    come out as `drafts` says."""

    cost: WorkerCost
    device: str
    devices: int
    block_count: int
    max_sequences: int
    batching: TokenBudgetBatching
    steps_in_flight: int = 1
    links: NodeLinks = field(default_factory=NodeLinks)
    host_blocks: int = 0
    disk_blocks: int = 0
    startup_s: float = 60.0
    block_size: int = 0
    speculation: Speculation | None = None
    drafts: DraftQuality = NO_DRAFT_COST


@dataclass(frozen=True, slots=True)
class Pool:
    """`count` workers alike, named pool-0, pool-1 and so on; the planner may keep from `min_count`
    to `max_count` of them. They may serve another `model` than the cluster's (empty)."""

    name: str
    role: Role
    kind: WorkerKind
    count: int
    min_count: int
    max_count: int
    model: str = ""

    def workers(self) -> list[str]:
        """Every name that may ever be up."""
        return [f"{self.name}-{index}" for index in range(self.max_count)]


@dataclass(frozen=True, slots=True)
class Policies:
    """Who decides, and how costs follow what is measured. Policies that remember serve one run."""

    routing: Routing
    admission: Admission
    dispatching: Dispatching
    eviction: Callable[[], Eviction[bytes]]
    planning: Planning | None = None
    classes: Classes = field(default_factory=Classes)
    queue: RequestQueueConfig = field(default_factory=RequestQueueConfig)
    limits: LimitTerms = field(default_factory=LimitTerms)
    learning: Learning | None = DEFAULT_LEARNING


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    `health` says how old a worker's load may be when a decision is made (a report interval of 0: as
    of now), and what counts as dead, lost or given up. What a session's request left in a slower
    tier is pinned for `pin_sessions_s` after its answer, at most `pin_share` of a tier in all and
    `pin_shares` of it for a tenant; one in `quotas` has at most that share of a tier. Pauses of
    sessions of up to `longest_pause_s` are followed (0: none), and expected from those before where
    the gateway `learns_pauses`. `tier_limits`
    bound the work on slower tiers (None: by their size). The shared pool has room for
    `remote_blocks` in `pool_nodes` processes; what several ask for lies on up to `pool_replicas` of
    them. A message takes `message_latency_s`; with `encodes` each goes through the codec of the
    wire. What has not ended `limit_s` after the last arrival has failed. `settings` are all choices
    in words, for the report. With `explains` every decision is kept. The timeline has about
    `timeline_points`. With `fast_forward` workers take decode steps at one go where nothing is to
    be decided; it changes no result. Requests go to the `gateways` by turns. With several, or with
    `live_reports`, workers report at every interval by themselves, as they do live. A message takes
    up to `message_jitter_s` longer, drawn by `seed`. `contents` models what lies in a worker's
    blocks, where that is to be checked; steps then draw its tokens. So many `spares` stand by, and
    a worker that drains is waited for as long as `planner_patience_s`. The `simulator` answers what
    a planner asks of other shapes, `answers_s` later.
    """

    pools: tuple[Pool, ...]
    policies: Policies
    block_size: int
    context_tokens: int
    slo: Slo = field(default_factory=Slo)
    remote_blocks: int = 0
    pool_nodes: int = 1
    pool_replicas: int = 2
    pin_sessions_s: float = 0.0
    pin_share: float = 0.5
    pin_shares: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, float] = field(default_factory=dict)
    longest_pause_s: float = 0.0
    learns_pauses: bool = True
    pool_bytes_per_s: float = 50e9
    network_latency_s: float = 10e-6
    message_latency_s: float = 0.0
    message_jitter_s: float = 0.0
    seed: int = 0
    encodes: bool = False
    faults: tuple[Fault, ...] = ()
    health: Health = field(default_factory=Health)
    window_s: float = 30.0
    limit_s: float = 86_400.0
    settings: dict[str, str] = field(default_factory=dict)
    explains: bool = False
    timeline_points: int = 400
    fast_forward: bool = True
    gateways: int = 1
    live_reports: bool = False
    tier_limits: TierLimits | None = None
    contents: Callable[[WorkerConfig], BlockContents] | None = None
    spares: int = 0
    planner_patience_s: float = 300.0
    simulator: Callable[[SimulateShapes], ShapesSimulated] | None = None
    answers_s: float = 3.0

    @property
    def gateway_names(self) -> list[str]:
        return [f"gateway-{index}" for index in range(self.gateways)]

    @property
    def serving(self) -> ServingCost:
        """Of its gateways: as it was measured with the first pool that tells."""
        costs = (pool.kind.cost.serving for pool in self.pools)
        return next((cost for cost in costs if cost != NO_SERVING_COST), NO_SERVING_COST)

    @property
    def serves_step_by_step(self) -> bool:
        """Whether each token takes its turn at a gateway, so that no steps are taken at one go."""
        return self.serving != NO_SERVING_COST

    @property
    def asks_for_reports(self) -> bool:
        """Whether workers report when somebody is about to decide by it."""
        return self.gateways == 1 and not self.live_reports
