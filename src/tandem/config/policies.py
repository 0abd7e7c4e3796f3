"""From the names in a cluster file to policies: fresh ones, made the same way for the twin and for
a live gateway, with the parameters that the file gives them.

A parameter of a policy is declared by the policy alone, as a parameter of what makes it: its name
with the unit as the last word, its type and default.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import EnumType
from functools import partial
from inspect import signature
from math import isfinite
from types import NoneType
from typing import Any, TypeVar, get_args

import msgspec

from tandem.cluster.gateway.pauses import PauseConfig
from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.config.cluster.file import Cluster, worker_names
from tandem.config.cluster.keys import Choice
from tandem.config.hardware.pools import pool_cost, priced
from tandem.config.options import ServeOptions
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.fleet import Role
from tandem.facts.rate_limits import LimitTerms
from tandem.facts.slo import AS_THEY_WISH, LOWER_ONLY, ClientPriorities
from tandem.facts.units import COUNT, SHARE, unit_of
from tandem.forecast.choose import forecaster
from tandem.policy.admission.contract import Admission
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.contract import Dispatching
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import Eviction, make_eviction
from tandem.policy.learning import LEARNINGS, Learning
from tandem.policy.planning.contract import Planning
from tandem.policy.planning.policies import PLANNINGS, planning, remembered_s
from tandem.policy.qos.classes import UNNAMED, Classes, Degradation, ServiceClass
from tandem.policy.routing.contract import Routing
from tandem.policy.routing.policies import ROUTINGS, make_routing

T = TypeVar("T")
_WRITTEN = (bool, int, float, str, NoneType)
# More often nobody plans, and a tick of 0 would never let time pass.
SHORTEST_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class RouterPolicies:
    """Who decides about requests before the workers. Some remember: they serve one router."""

    routing: Routing
    admission: Admission
    dispatching: Dispatching
    classes: Classes
    queue: RequestQueueConfig


def router_policies(cluster: Cluster) -> RouterPolicies:
    """Raises `InvalidConfiguration`."""
    chosen = cluster.policies
    routing, dispatch = chosen.routing, _dispatch(cluster)
    weights = parameters("routing", routing, ROUTINGS[routing.name])
    return RouterPolicies(
        routing=make_routing(routing.name, cluster.seed, **weights),
        admission=_made("admission", chosen.admission, ADMISSIONS[chosen.admission.name]),
        dispatching=_made("dispatch", dispatch, DISPATCHES[dispatch.name]),
        classes=_classes(cluster),
        queue=_queue(cluster),
    )


def router_config(
    cluster: Cluster, root: CacheRoot, block_size: int, capacities: Mapping[str, Capacity]
) -> RouterConfig:
    """Of a router that knows prompts by blocks of `block_size`, under `root` until workers come
    that have one; `capacities` may grow while workers join. Raises `InvalidConfiguration`."""
    policies = router_policies(cluster)
    return RouterConfig(
        block_size=block_size,
        root=root,
        capacities=capacities,
        routing=policies.routing,
        admission=policies.admission,
        dispatching=policies.dispatching,
        classes=policies.classes,
        queue=policies.queue,
        first_token=cluster.policies.first_token,
        held_adapters=_held_adapters(cluster),
    )


def _held_adapters(cluster: Cluster) -> int:
    """As many as a worker has room for at least."""
    written = cluster.serve.get("max-loras")
    return written if isinstance(written, int) else ServeOptions().max_loras


def learning_of(cluster: Cluster) -> Learning | None:
    """How gateways correct the costs of workers; None: not at all. Raises
    `InvalidConfiguration`."""
    chosen = cluster.policies.learning
    return _made("learning", chosen, LEARNINGS[chosen.name])


def planning_policy(cluster: Cluster) -> Planning | None:
    """The planner with its forecaster; None where nothing is planned, because a run without ticks
    is quicker and the same. Raises `InvalidConfiguration`."""
    chosen, forecast = cluster.policies.planning, cluster.policies.forecast
    make = PLANNINGS[chosen.name]
    options = parameters("planning", chosen, make)
    if forecast is not None:
        if not is_dataclass(make) or "forecaster" not in {entry.name for entry in fields(make)}:
            raise InvalidConfiguration(f"planning {chosen.name} forecasts nothing; drop forecast")
        options["forecaster"] = forecaster(forecast.name, **forecast.parameters)
    if not cluster.plans:
        return None
    made = planning(chosen.name, **options)
    if made.interval_s < SHORTEST_TICK_S:
        raise InvalidConfiguration(
            f"planning {chosen.name}: a tick every {made.interval_s:g} s; choose {SHORTEST_TICK_S} "
            "or more"
        )
    return made


def planning_config(cluster: Cluster) -> PlanningConfig | None:
    """Of the gateway that plans, of a cluster as it is served; None where nothing is planned. Pools
    of workers that take both phases are left alone. Raises `InvalidConfiguration`."""
    policy = planning_policy(cluster)
    if policy is None or not {Role.PREFILL, Role.DECODE} <= {pool.role for pool in cluster.pools}:
        return None
    return PlanningConfig(
        name=cluster.policies.planning.name,
        planning=policy,
        pools=tuple(
            ScaledPool(
                role=pool.role,
                workers=tuple(worker_names(pool)),
                count=pool.count,
                min_count=pool.min_count or 1,
                cost=pool_cost(cluster, priced(pool)),
                startup_s=pool.startup_s,
                name=pool.name,
            )
            for pool in cluster.pools
            if pool.role is not Role.BOTH
        ),
        slo=cluster.slo,
        mode=cluster.planning.mode,
        window_s=cluster.planning.window_s,
        hold_s=cluster.planning.hold_s,
        gateways=cluster.gateways,
        spares=cluster.planning.spares,
        patience_s=cluster.planning.patience_s,
        remembers_s=remembered_s(policy),
    )


def limit_terms(cluster: Cluster, gateways: int = 1) -> LimitTerms:
    """The rate limits of accounts, at each of so many gateways."""
    tenants = {tenant.name: tenant.limits for tenant in cluster.tenants}
    return LimitTerms(tenants, cluster.limits, gateways)


def eviction_order(cluster: Cluster) -> Callable[[int], Eviction[Any]]:
    """Makes the eviction order of one cache, from its capacity in blocks. Raises
    `InvalidConfiguration`."""
    _only_name(cluster.policies.eviction, "eviction")
    return partial(make_eviction, cluster.policies.eviction.name)


def parameters(kind: str, choice: Choice, make: Callable[..., object]) -> dict[str, Any]:
    """The parameters of a choice, of the types with which `make` takes them; numbers may have the
    units of a cluster file, and a parameter that is a policy itself is a mapping of its parameters.
    Raises `InvalidConfiguration` naming the parameter."""
    return _arguments(f"{kind} {choice.name}", choice.parameters, make, f"name: {choice.name}, ")


def _arguments(
    label: str, given: Mapping[str, object], make: Callable[..., object], before: str = ""
) -> dict[str, Any]:
    taken = signature(make, eval_str=True).parameters
    known = [name for name, each in taken.items() if _writable(each.annotation)]
    for name in given:
        if name not in known:
            other = nearest(name, known) if known else "; it takes none"
            raise InvalidConfiguration(f"{label} has no parameter {name}{other}")
    for name, each in taken.items():
        if each.default is each.empty and name not in given:
            raise InvalidConfiguration(f"{label} needs {name}, as {{{before}{name}: ...}}")
    return {
        name: _fitting(f"{label}: {name}", value, taken[name].annotation)
        for name, value in given.items()
    }


def _writable(hint: Any) -> bool:
    """Whether a value of this type can be written down; other parameters are for programs."""
    parts = get_args(hint) or (hint,)
    return all(
        part in _WRITTEN or isinstance(part, EnumType) or is_dataclass(part) for part in parts
    )


def _fitting(label: str, value: object, hint: Any) -> Any:
    hints = (hint, *get_args(hint))
    nested = next((part for part in hints if isinstance(part, type) and is_dataclass(part)), None)
    if nested is not None and not (value is None and NoneType in get_args(hint)):
        if not isinstance(value, Mapping):
            raise InvalidConfiguration(f"{label}: expected a mapping of its parameters")
        return nested(**_arguments(label, value, nested))
    numbers = {int, float} & {hint, *get_args(hint)}
    try:
        if numbers and isinstance(value, str):
            quantity = unit_of(label)[1] or (COUNT if int in numbers else SHARE)
            amount = quantity.read(value)
            value = int(amount) if amount.is_integer() else amount
        if isinstance(value, float) and not isfinite(value):
            # As everywhere in a cluster file; JSON, in which it travels, has no word for it either.
            raise ValueError(f"expected a finite number, got {value}")
        return msgspec.convert(value, hint)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidConfiguration(f"{label}: {error}") from error


def _only_name(choice: Choice, kind: str) -> None:
    """Raises `InvalidConfiguration` if the choice has parameters."""
    if choice.parameters:
        raise InvalidConfiguration(f"{kind} {choice.name} takes no parameters")


def _made(kind: str, choice: Choice, make: Callable[..., T]) -> T:
    return make(**parameters(kind, choice, make))


def _dispatch(cluster: Cluster) -> Choice:
    """With the cluster's way of transfer, where it names one, unless the policy has its own."""
    dispatch = cluster.policies.dispatch
    named = dispatch.parameters.get("workers", ())
    workers = [name for pool in cluster.pools for name in worker_names(pool)]
    for name in named if isinstance(named, Sequence) and not isinstance(named, str) else ():
        if name not in workers:
            raise InvalidConfiguration(
                f"dispatch {dispatch.name}: there is no worker {name}{nearest(str(name), workers)}"
            )
    transfer = {"transfer": cluster.policies.transfer} if cluster.policies.transfer else {}
    return Choice(dispatch.name, {**transfer, **dispatch.parameters})


def pause_config(cluster: Cluster) -> PauseConfig | None:
    """Whether pauses of sessions are followed, and how."""
    tiers = cluster.tiers
    return PauseConfig(learns=tiers.learn_pauses) if tiers.longest_pause_s else None


def _queue(cluster: Cluster) -> RequestQueueConfig:
    """Classes and tenants mean something only where somebody has to wait."""
    queue = cluster.queue
    max_requests, prefill_depth = queue.max_requests, queue.prefill_depth
    if max_requests is None:
        dedicated = {name for entry in cluster.classes for name in entry.pools}
        everybodys = [pool for pool in cluster.pools if pool.name not in dedicated]
        slots = sum(pool.count * pool.max_num_seqs for pool in everybodys if pool.role.decodes)
        max_requests = slots if cluster.classes or cluster.tenants else 0
    if prefill_depth is None:
        prefill_depth = int(cluster.policies.dispatch.name == "queue")
    weights = {tenant.name: tenant.weight for tenant in cluster.tenants}
    return RequestQueueConfig(max_requests, prefill_depth, weights, queue.max_wait_s)


def _classes(cluster: Cluster) -> Classes:
    models = {pool.name: pool.model or "" for pool in cluster.pools}
    classes = tuple(
        ServiceClass(
            name=entry.name,
            priority=entry.priority,
            reserved=entry.reserved,
            slo=cluster.slo if entry.slo.empty else entry.slo,
            headers=entry.headers,
            deadline_s=entry.deadline_s,
            client_priorities=ClientPriorities(-entry.client_may_raise, entry.client_may_lower),
            longest_pin_s=entry.longest_pin_s,
            degrade=Degradation(
                entry.degrade.no_n, entry.degrade.max_tokens, entry.degrade.service_class
            ),
            pools=entry.pools,
            model=models.get(entry.pools[0], "") if entry.pools else "",
        )
        for entry in cluster.classes
    )
    tenants = {each.name: each.service_class for each in cluster.tenants if each.service_class}
    trusted = bool(cluster.serve.get("allow-client-priority", False))
    return Classes(
        classes,
        tenants,
        may_use={each.name: each.may_use for each in cluster.tenants},
        default=next((entry.name for entry in cluster.classes if entry.default), ""),
        unnamed=replace(UNNAMED, client_priorities=AS_THEY_WISH if trusted else LOWER_ONLY),
    )
