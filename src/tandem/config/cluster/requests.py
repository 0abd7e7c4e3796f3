"""Sections of a cluster file about requests: the policies that decide about them, the queue,
service classes and tenants. How a key is declared: `config.cluster.keys`."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from tandem.config.cluster.keys import GATEWAY, Change, Choice, Known, Secret, key, section
from tandem.config.cluster.tree import RefusedAt
from tandem.facts.fleet import PlanningMode
from tandem.facts.rate_limits import RateLimits
from tandem.facts.slo import LEAST_URGENT, Slo
from tandem.forecast.choose import NAMES as FORECASTS
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import EVICTIONS
from tandem.policy.learning import LEARNINGS
from tandem.policy.planning.policies import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS

Share = Annotated[float, Meta(ge=0, le=1)]
PriorityShift = Annotated[int, Meta(ge=0, le=LEAST_URGENT)]


def policy_of(kind: str, registry: Mapping[str, object]) -> Known:
    """The names of the policies of a kind."""
    return Known(f"{kind} policy", tuple(registry))


@section
class PolicyConfig:
    """Which policy decides: a name, or `{name: ..., with its parameters}`."""

    routing: Annotated[Choice, policy_of("routing", ROUTINGS)] = key(
        "Which workers a request goes to.", default=Choice("cost")
    )
    dispatch: Annotated[Choice, policy_of("dispatch", DISPATCHES)] = key(
        "Whether prefill and decode part.", default=Choice("remote")
    )
    admission: Annotated[Choice, policy_of("admission", ADMISSIONS)] = key(
        "Which requests are refused on arrival.", default=Choice("none")
    )
    eviction: Annotated[Choice, policy_of("eviction", EVICTIONS)] = key(
        "Which blocks leave a full tier.", default=Choice("lru"), live=Change.NEVER
    )
    planning: Annotated[Choice, policy_of("planning", PLANNINGS)] = key(
        "How many workers have which role.", default=Choice("static")
    )
    forecast: Annotated[Choice, Known("forecast", FORECASTS)] | None = key(
        "For a planner that forecasts; left out: the planner's own.", default=None
    )
    learning: Annotated[Choice, Known("learning", tuple(LEARNINGS))] = key(
        "Whether costs of workers are corrected by what is measured of them.",
        default=Choice("measured"),
    )
    transfer: Transfer | None = key(
        "When KV moves; left out: as the dispatch policy has it.", default=None
    )
    first_token: FirstToken = key(
        "Who draws the first token: the worker that computed the prompt, or the one that "
        "answers. The same token.",
        default=FirstToken.SENT,
        only="live",
        live=Change.NEVER,
    )


@section
class QueueConfig:
    """The queue before the workers, where classes and tenants are told apart."""

    max_requests: Annotated[int, Meta(ge=0)] | None = key(
        "Requests at workers at once, of all gateways, but for classes' own workers; 0: no bound. "
        "Left out: as many as there are slots if there are classes or tenants, else no bound.",
        default=None,
    )
    prefill_depth: Annotated[int, Meta(ge=0)] | None = key(
        "Prompts at each prefill worker; 0: no bound. Left out: 1 for the dispatch policy "
        "`queue`, else no bound.",
        default=None,
    )
    max_wait_s: float = key("Nobody waits longer for the sake of fairness.", default=30.0)


@section
class DegradeConfig:
    """What requests of a class are cut to before they are refused."""

    no_n: bool = key(
        "Further answers to a prompt (`n`) are left out, never the first.", default=False
    )
    max_tokens: Annotated[int, Meta(ge=1)] | None = key(
        "Answers become no longer than that.", default=None
    )
    service_class: str = key(
        "The class whose workers answer instead, as of a pool with a smaller model.", default=""
    )


@section
class ClassConfig:
    """A service class."""

    name: str = key("What tenants call it.")
    priority: int = key("Smaller is more urgent.", default=0, live=Change.AT_ONCE)
    reserved: Share = key("Its share of the capacity.", default=0.0, live=Change.AT_ONCE)
    slo: Slo = key("Stands before the cluster's.", factory=Slo)
    deadline_s: float | None = key(
        "Whoever waited so long for a first token is refused, as soon as that is certain.",
        default=None,
    )
    headers: Mapping[str, str] = key(
        "Requests with these belong to it, where their tenant may use it.", factory=dict
    )
    default: bool = key("The class of whoever belongs to none.", default=False)
    client_may_raise: PriorityShift = key(
        "So much more urgent a client's `priority` may make a request.", default=0
    )
    client_may_lower: PriorityShift = key(
        "So much less urgent it may make it.", default=LEAST_URGENT
    )
    longest_pin_s: float | None = key(
        "So long its clients may pin KV; left out: as `tiers` says.", default=None, only="live"
    )

    degrade: DegradeConfig = key("Instead of a refusal, where that helps.", factory=DegradeConfig)
    pools: tuple[str, ...] = key(
        "Pools whose workers are for this class (and others that name them) alone: a fast lane.",
        default=(),
    )

    def __post_init__(self) -> None:
        refuse_zero(self.slo)


@section
class TenantConfig:
    """Who asks, known by its keys."""

    name: str = key("What logs, metrics and quotas call it.")
    service_class: str = key("The class of requests that name none.", default="")
    weight: Annotated[float, Meta(gt=0)] = key(
        "Of its fair share.", default=1.0, live=Change.AT_ONCE
    )
    api_keys: Annotated[tuple[str, ...], Secret(GATEWAY)] = key(
        "Keys that make a caller this tenant.", default=(), only="live"
    )
    api_keys_file: str | None = key(
        "A file of such keys, one a line, read again when it changes.", default=None, only="live"
    )
    api_keys_env: str | None = key(
        "A variable of the gateways' environment with such keys, one a line.",
        default=None,
        only="live",
    )
    kv_share: Share = key(
        "Share of each slower tier that its KV may take.",
        default=1.0,
        live=Change.WORKER_RESTART,
    )
    may_use: tuple[str, ...] = key("Classes that its headers may name beside its own.", default=())
    longest_pin_s: float | None = key(
        "So long its clients may pin KV; left out: as their class says.", default=None, only="live"
    )
    pin_share: Share = key(
        "Share of each slower tier that may be pinned for it.",
        default=1.0,
        live=Change.WORKER_RESTART,
    )
    response_cache: bool = key(
        "Whether whole answers are kept for it (`response-cache-mib` under `serve`).",
        default=False,
        only="live",
    )
    limits: RateLimits = key("Its rate limits.", factory=RateLimits, live=Change.AT_ONCE)

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.api_keys_file or self.api_keys_env)


def refuse_zero(slo: Slo) -> None:
    """Raises `RefusedAt` for a bound of 0."""
    for bound, bound_s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2e", slo.e2e_s)):
        if bound_s == 0:
            problem = f"slo: nobody keeps a {bound} of 0; leave it out for no bound"
            raise RefusedAt(f"slo.{bound}", problem)


@section
class JournalConfig:
    """The journal of each gateway of a live cluster, for `tandem replay`."""

    directory: str = key("The folder of its files.")
    file_size_bytes: Annotated[float, Meta(ge=1 << 16)] = key(
        "About so large is a file before the next is begun.", default=float(64 << 20)
    )
    keep: Annotated[int, Meta(ge=1)] = key(
        "So many of the newest files stay, of each gateway.", default=16
    )
    plain_names: bool = key(
        "Keep names of tenants and sessions rather than pseudonyms.", default=False
    )


@section
class PlanningOptions:
    """How the decisions of `policies.planning` are carried out."""

    mode: PlanningMode = key(
        "With `advisory` decisions are shown and recorded, nothing is done.",
        default=PlanningMode.AUTOMATIC,
        only="live",
    )
    hold_s: float = key(
        "How long the planner leaves a worker alone that an operator changed by hand.",
        default=600.0,
        only="live",
    )
    window_s: float = key("In which demand is counted.", default=30.0)
    spares: Annotated[int, Meta(ge=0, le=1000)] = key(
        "So many workers stand by, loaded and drained, and take requests at once when more are "
        "wanted.",
        default=0,
    )
    patience_s: Annotated[float, Meta(gt=0)] = key(
        "A worker that has not drained for so long is not waited for any more.", default=300.0
    )

    def __post_init__(self) -> None:
        if self.window_s <= 0:
            raise RefusedAt("window", f"window must be more than 0, got {self.window_s:g}s")
