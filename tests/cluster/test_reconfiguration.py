"""What a gateway machine decides by after another configuration: prices, limits, admission."""

from dataclasses import replace

from msgspec import structs

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.worker.step_tally import StepTally, work_of
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.rate_limits import LimitTerms, RateLimits
from tandem.facts.request import Request
from tandem.messages.gateway import ConfigurationTaken
from tandem.messages.router import Explain, Reject, RequestSubmitted
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.learning import Learning
from tests.cluster.cluster_parts import COST, MS, GatewayUnderTest, idle_load, of_kind, register

# Four times as long as a decode step of one sequence is listed with.
SLOW_STEP_NS = 44 * MS


def run_slowly(gateway: GatewayUnderTest, tally: StepTally, seconds: int) -> None:
    """Worker `w` reports what its steps take."""
    for _ in range(seconds):
        for _ in range(20):
            began_ns = gateway.now_ns
            gateway.now_ns += SLOW_STEP_NS
            tally.step_landed(work_of([10], [1], 1), began_ns, gateway.now_ns)
        gateway.receive(structs.replace(idle_load("w"), steps=tally.totals))
        gateway.pass_time(120 * MS)


def price(machine: GatewayMachine, worker: str = "w") -> WorkerCost:
    """What routing takes the worker's work to cost."""
    return machine.router.admission.fleet.workers[worker].capacity.cost


def test_what_was_learnt_is_forgotten_with_learning_and_learnt_again():
    gateway, tally = GatewayUnderTest(register("w")), StepTally(1)
    listed = price(gateway.machine)
    run_slowly(gateway, tally, 20)
    slow = price(gateway.machine)
    assert slow != listed
    gateway.apply(learning=Learning())
    assert price(gateway.machine) is slow
    gateway.apply(learning=None)
    assert price(gateway.machine) == listed
    run_slowly(gateway, tally, 20)
    assert price(gateway.machine) == listed
    gateway.apply(learning=Learning(most_factor=2.0))
    run_slowly(gateway, tally, 20)
    assert price(gateway.machine) not in (listed, slow)


def test_other_prices_are_those_of_workers_that_join_from_then_on():
    gateway = GatewayUnderTest(register("w"))
    capacity_of = gateway.machine.config.capacity_of
    listed = replace(COST, step_time=FittedStepTime(fixed_s=0.5))
    effects = gateway.apply(
        capacity_of=lambda register: replace(capacity_of(register), cost=listed)
    )
    assert of_kind(effects, ConfigurationTaken) == [ConfigurationTaken(1)]
    gateway.receive(register("new"))
    assert price(gateway.machine).step_time == COST.step_time
    assert price(gateway.machine, "new").step_time == listed.step_time


def test_limits_hold_at_once_and_are_explained_as_all_else():
    gateway = GatewayUnderTest(register("w"))
    one = LimitTerms({"acme": RateLimits(requests_per_minute=1)})

    def second(name: str) -> tuple[int, int]:
        """How often a request beyond the limit is rejected, and explained."""
        effects = gateway.handle(RequestSubmitted(Request(name, (1, 2, 3)), 1.0, tenant="acme"))
        return len(of_kind(effects, Reject)), len(of_kind(effects, Explain))

    assert second("before") == (0, 0)
    gateway.apply(limits=one)
    assert second("first") == (0, 0)
    assert second("silent") == (1, 0)
    gateway.apply(router={"explains": True})
    assert second("explained") == (1, 1)
    gateway.apply(router={"explains": False})
    assert second("silent again") == (1, 0)


def test_another_admission_judges_who_comes_and_a_breaker_of_other_terms_starts_anew():
    gateway = GatewayUnderTest(register("w"))
    none = ADMISSIONS["threshold"](max_waiting_requests=0)
    gateway.submit("in")
    gateway.apply(router={"admission": none})
    (reject,) = of_kind(gateway.submit("out"), Reject)
    assert reject.request_id == "out"
    terms = BreakerTerms(window_s=6)
    router = gateway.machine.router
    gateway.apply(router={"admission": ADMISSIONS["prediction"](breaker=terms)})
    kept = router.admission.breakers
    gateway.apply(router={"admission": ADMISSIONS["prediction"](breaker=BreakerTerms(window_s=6))})
    assert router.admission.breakers is kept
    gateway.apply(router={"admission": ADMISSIONS["prediction"](breaker=BreakerTerms(window_s=7))})
    assert router.admission.breakers not in (kept, None)
    gateway.apply(router={"admission": none})
    assert not gateway.machine.status(gateway.now_ns).breakers
