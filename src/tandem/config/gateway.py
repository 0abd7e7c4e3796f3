"""Another configuration for a gateway machine that runs: the same way live and in a replay."""

from dataclasses import replace

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.config.cluster.file import Cluster
from tandem.config.hardware.pools import capacity_of, pool_models
from tandem.config.policies import (
    learning_of,
    limit_terms,
    planning_config,
    router_policies,
)


def reconfigured(
    config: GatewayConfig, before: Cluster, after: Cluster, *, number: int, plans: bool
) -> GatewayConfig:
    """What a machine that was made with `config` decides by from now on, where its cluster (as it
    is served) was as `before` and becomes as `after`. A policy whose choice is as before stays the
    object that it is, with all that it remembers. Raises `InvalidConfiguration`."""
    made, router = router_policies(after), config.router
    old, new = before.policies, after.policies
    routed = (old.routing, before.seed) == (new.routing, after.seed)
    dispatched = (old.dispatch, old.transfer) == (new.dispatch, new.transfer)
    planning = planning_config(after) if plans else None
    planned = (old.planning, old.forecast) == (new.planning, new.forecast)
    if planning is not None and config.planning is not None and planned:
        planning = replace(planning, planning=config.planning.planning)
        planning = config.planning if planning == config.planning else planning
    return replace(
        config,
        router=replace(
            router,
            routing=router.routing if routed else made.routing,
            admission=router.admission if old.admission == new.admission else made.admission,
            dispatching=router.dispatching if dispatched else made.dispatching,
            classes=made.classes,
            queue=made.queue,
        ),
        capacity_of=capacity_of(after),
        planning=planning,
        learning=learning_of(after),
        limits=limit_terms(after, after.gateways),
        configuration=number,
        pool_models=pool_models(after),
    )
