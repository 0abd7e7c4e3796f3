"""Sections of a cluster file about requests: the policies that decide about them, the queue,
service classes and tenants. How a key is declared: `config.cluster.keys`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tandem.config.cluster.keys import GATEWAY, Choice, Known, Secret, doc
from tandem.config.cluster.tree import RefusedAt
from tandem.facts.fleet import PlanningMode
from tandem.facts.slo import LEAST_URGENT, Slo
from tandem.forecast.choose import NAMES as FORECASTS
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import EVICTIONS
from tandem.policy.planning.registry import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS

Share = Annotated[float, Meta(ge=0, le=1)]
PriorityShift = Annotated[int, Meta(ge=0, le=LEAST_URGENT)]


def policy_of(kind: str, registry: Mapping[str, object]) -> Known:
    """The names of the policies of a kind."""
    return Known(f"{kind} policy", tuple(registry))


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Which policy decides: a name, or `{name: ..., with its parameters}`."""

    routing: Annotated[
        Choice, policy_of("routing", ROUTINGS), doc("Which workers a request goes to.")
    ] = field(default=Choice("cost"))
    dispatch: Annotated[
        Choice, policy_of("dispatch", DISPATCHES), doc("Whether prefill and decode part.")
    ] = field(default=Choice("remote"))
    admission: Annotated[
        Choice, policy_of("admission", ADMISSIONS), doc("Which requests are refused on arrival.")
    ] = field(default=Choice("none"))
    eviction: Annotated[
        Choice, policy_of("eviction", EVICTIONS), doc("Which blocks leave a full tier.")
    ] = field(default=Choice("lru"))
    planning: Annotated[
        Choice, policy_of("planning", PLANNINGS), doc("How many workers have which role.")
    ] = field(default=Choice("static"))
    forecast: Annotated[
        Annotated[Choice, Known("forecast", FORECASTS)] | None,
        doc("For a planner that forecasts; left out: the planner's own."),
    ] = None
    transfer: Annotated[
        Transfer | None, doc("When KV moves; left out: as the dispatch policy has it.")
    ] = None
    first_token: Annotated[
        FirstToken,
        doc(
            "Who draws the first token: the worker that computed the prompt, or the one that "
            "answers. The same token.",
            only="live",
        ),
    ] = FirstToken.SENT


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The queue before the workers, where classes and tenants are told apart."""

    max_requests: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Requests at workers at once; 0: no bound. Left out: as many as there are slots if "
            "there are classes or tenants, else no bound."
        ),
    ] = None
    prefill_depth: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Prompts at each prefill worker; 0: no bound. Left out: 1 for the dispatch policy "
            "`queue`, else no bound."
        ),
    ] = None
    max_wait_s: Annotated[float, doc("Nobody waits longer for the sake of fairness.")] = 30.0


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """A service class."""

    name: Annotated[str, doc("What tenants call it.")]
    priority: Annotated[int, doc("Smaller is more urgent.")] = 0
    reserved: Annotated[Share, doc("Its share of the capacity.")] = 0.0
    slo: Annotated[Slo, doc("Stands before the cluster's.")] = field(default_factory=Slo)
    deadline_s: Annotated[float | None, doc("Whoever waited so long is refused.")] = None
    headers: Annotated[
        Mapping[str, str], doc("Requests with these belong to it, where their tenant may use it.")
    ] = field(default_factory=dict)
    default: Annotated[bool, doc("The class of whoever belongs to none.")] = False
    client_may_raise: Annotated[
        PriorityShift, doc("So much more urgent a client's `priority` may make a request.")
    ] = 0
    client_may_lower: Annotated[PriorityShift, doc("So much less urgent it may make it.")] = (
        LEAST_URGENT
    )
    longest_pin_s: Annotated[
        float | None,
        doc("So long its clients may pin KV; left out: as `tiers` says.", only="live"),
    ] = None

    def __post_init__(self) -> None:
        refuse_zero(self.slo)


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """Who asks, known by its keys."""

    name: Annotated[str, doc("What logs, metrics and quotas call it.")]
    service_class: Annotated[str, doc("The class of requests that name none.")] = ""
    weight: Annotated[float, Meta(gt=0), doc("Of its fair share.")] = 1.0
    api_keys: Annotated[
        tuple[str, ...], Secret(GATEWAY), doc("Keys that make a caller this tenant.", only="live")
    ] = ()
    api_keys_file: Annotated[
        str | None,
        doc("A file of such keys, one a line, read again when it changes.", only="live"),
    ] = None
    api_keys_env: Annotated[
        str | None,
        doc("A variable of the gateways' environment with such keys, one a line.", only="live"),
    ] = None
    kv_share: Annotated[
        Share, doc("Share of each slower tier that its KV may take.", only="live")
    ] = 1.0
    may_use: Annotated[
        tuple[str, ...], doc("Classes that its headers may name beside its own.")
    ] = ()
    longest_pin_s: Annotated[
        float | None,
        doc("So long its clients may pin KV; left out: as their class says.", only="live"),
    ] = None
    pin_share: Annotated[
        Share, doc("Share of each slower tier that may be pinned for it.", only="live")
    ] = 1.0

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.api_keys_file or self.api_keys_env)


def refuse_zero(slo: Slo) -> None:
    """Raises `RefusedAt` for a bound of 0."""
    for key, bound_s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2e", slo.e2e_s)):
        if bound_s == 0:
            problem = f"slo: nobody keeps a {key} of 0; leave it out for no bound"
            raise RefusedAt(f"slo.{key}", problem)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """The journal of each gateway of a live cluster, for `tandem replay`."""

    directory: Annotated[str, doc("The folder of its files.")]
    file_size_bytes: Annotated[
        float, Meta(ge=1 << 16), doc("About so large is a file before the next is begun.")
    ] = float(64 << 20)
    keep: Annotated[int, Meta(ge=1), doc("So many of the newest files stay, of each gateway.")] = 16
    plain_names: Annotated[
        bool, doc("Keep names of tenants and sessions rather than pseudonyms.")
    ] = False


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """What becomes of the decisions of `policies.planning` in a live cluster."""

    mode: Annotated[
        PlanningMode, doc("With `advisory` decisions are shown and recorded, nothing is done.")
    ] = PlanningMode.AUTOMATIC
    hold_s: Annotated[
        float,
        doc("How long the planner leaves a worker alone that an operator changed by hand."),
    ] = 600.0
    window_s: Annotated[float, doc("In which demand is counted.")] = 30.0

    def __post_init__(self) -> None:
        if self.window_s <= 0:
            raise RefusedAt("window", f"window must be more than 0, got {self.window_s:g}s")
