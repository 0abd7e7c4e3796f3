"""From the names in a cluster file to the policies of a router: fresh ones, made the same way for
the twin and for a live gateway."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.config.cluster import Cluster, PoolConfig
from tandem.config.cluster_build import Choice
from tandem.config.cluster_parameters import parameters
from tandem.config.cluster_tree import nearest
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import AS_THEY_WISH, LOWER_ONLY, ClientPriorities
from tandem.policy.admission.contract import Admission
from tandem.policy.admission.registry import ADMISSIONS
from tandem.policy.dispatch.contract import Dispatching
from tandem.policy.dispatch.registry import DISPATCHES
from tandem.policy.qos.classes import UNNAMED, Classes, ServiceClass
from tandem.policy.routing.contract import Routing
from tandem.policy.routing.registry import ROUTINGS

T = TypeVar("T")


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
    only_name(chosen.routing, "routing")
    dispatch = _dispatch(cluster)
    return RouterPolicies(
        routing=ROUTINGS[chosen.routing.name](cluster.seed),
        admission=_made("admission", chosen.admission, ADMISSIONS[chosen.admission.name]),
        dispatching=_made("dispatch", dispatch, DISPATCHES[dispatch.name]),
        classes=_classes(cluster),
        queue=_line(cluster),
    )


def worker_names(pool: PoolConfig) -> list[str]:
    """Every name of the pool that may ever be up."""
    return [f"{pool.name}-{index}" for index in range(pool.max_count or pool.count)]


def only_name(choice: Choice, kind: str) -> None:
    """Raises `InvalidConfiguration` if the choice has parameters."""
    if choice.parameters:
        raise InvalidConfiguration(f"{kind} {choice.name} takes no parameters")


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


def _made(kind: str, choice: Choice, make: Callable[..., T]) -> T:
    return make(**parameters(kind, choice, make))


def _line(cluster: Cluster) -> RequestQueueConfig:
    """Classes and tenants mean something only where somebody has to wait."""
    queue = cluster.queue
    max_requests, prefill_depth = queue.max_requests, queue.prefill_depth
    if max_requests is None:
        decoding = [pool for pool in cluster.pools if pool.role.decodes]
        slots = sum(pool.count * pool.max_num_seqs for pool in decoding)
        max_requests = slots if cluster.classes or cluster.tenants else 0
    if prefill_depth is None:
        prefill_depth = int(cluster.policies.dispatch.name == "queue")
    weights = {tenant.name: tenant.weight for tenant in cluster.tenants}
    return RequestQueueConfig(max_requests, prefill_depth, weights, queue.max_wait_s)


def _classes(cluster: Cluster) -> Classes:
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
