"""Configurations that operators apply to gateways of a simulated cluster, drawn by their number."""

from dataclasses import replace
from random import Random

from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.rate_limits import RateLimits
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.contract import Admission
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.learning import Learning
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import ROUTINGS, make_routing
from tests.twin.chance_run import ChanceRun


def another_config(
    config: GatewayConfig, number: int, planning: PlanningConfig | None
) -> GatewayConfig:
    """Other classes, bounds, weights and rate limits, and now and then other policies and another
    way of learning, with or without this planning. The same for the same configuration and
    number."""
    chance = Random(number)
    names = chance.sample(["gold", "batch", "rest"], chance.randrange(4))
    classes = tuple(
        ServiceClass(name, priority=chance.randrange(3), reserved=chance.choice([0.0, 0.3]))
        for name in names
    )
    tenants = {"tenant": chance.choice(names)} if names and chance.randrange(2) else {}
    router = replace(
        config.router,
        classes=Classes(classes, tenants, default=chance.choice(["", *names])),
        queue=RequestQueueConfig(
            max_requests=chance.choice([0, 2, 3, 5]),
            prefill_depth=chance.choice([0, 1, 2]),
            weights=chance.choice([{}, {"tenant": 4.0}, {"": 0.5}]),
            max_wait_s=chance.choice([0.01, 0.2, 30.0]),
        ),
    )
    if chance.randrange(2):
        routing = make_routing(chance.choice(sorted(ROUTINGS)), number)
        dispatch = chance.choice(["local", "remote", "queue", "seconds"])
        router = replace(router, routing=routing, dispatching=DISPATCHES[dispatch]())
    if not chance.randrange(3):
        router = replace(router, admission=_admission(chance))
    learning = config.learning
    if not chance.randrange(3):
        learning = chance.choice([None, Learning(), Learning(half_life_s=1.0)])
    limits = replace(config.limits, others=_limits(chance))
    planning = planning if chance.randrange(2) else None
    if planning is not None:
        planning = replace(planning, window_s=chance.choice([0.1, 5.0]))
    return replace(
        config,
        router=router,
        planning=planning,
        learning=learning,
        limits=limits,
        configuration=number,
    )


def _limits(chance: Random) -> RateLimits:
    """Of each account; rarely so tight that many are refused."""
    return RateLimits(
        requests_per_minute=chance.choice([None, None, 60, 100_000]),
        tokens_per_minute=chance.choice([None, None, 10_000_000]),
        concurrent_requests=chance.choice([None, 3, 1000]),
    )


def _admission(chance: Random) -> Admission:
    match chance.choice(["none", "threshold", "prediction"]):
        case "prediction":
            terms = BreakerTerms(window_s=chance.choice([0.5, 5.0]), min_requests=2)
            return ADMISSIONS["prediction"](breaker=chance.choice([None, terms]))
        case name:
            return ADMISSIONS[name]()


class ChangedRun(ChanceRun):
    """Whenever an operator wants something, some gateway gets another configuration as well."""

    def _operate(self) -> None:
        gateway = self._some_gateway()
        if gateway is not None:
            self.operations += 1
            config, began = (
                gateway.machine.config,
                self.planning.setdefault(gateway, gateway.machine.config.planning),
            )
            number = self.seed * 10_000 + self.operations
            gateway.receive(ConfigurationChanged(another_config(config, number, began)))
            self._count_waiting(gateway)
        super()._operate()

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        # With which gateways that plan began.
        self.planning: dict[object, PlanningConfig | None] = {}

    def _count_waiting(self, gateway) -> None:
        router = gateway.machine.router
        self.seen["changed while some waited"] += router.admission.suspects.all_waiting > 0
        self.seen["changed while some ran"] += bool(router.requests)
