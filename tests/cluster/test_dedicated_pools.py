"""Dedicated pools in the router: who goes where, who takes whose place, and what holds up whom."""

from dataclasses import replace

from tandem.cluster.gateway.housekeeping import migration
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason, Request
from tandem.messages.router import (
    LoadReported,
    RequestSubmitted,
    RoleTaken,
    TokensReported,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import EmitTokens
from tandem.policy.admission.policies import AdmitAll
from tandem.policy.dispatch.policies import AlwaysRemote
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import make_routing
from tandem.policy.views import RequestView
from tests.cluster.cluster_parts import MS, GatewayUnderTest, register

NS = 1_000_000_000
QUICK = WorkerCost(FittedStepTime(fixed_s=0.01, token_s=1e-4, decode_s=1e-3), 1.0, 512)
SLOW = WorkerCost(FittedStepTime(fixed_s=0.5, token_s=1e-4, decode_s=1e-3), 1.0, 512)
FAST, USUAL = ServiceClass("fast", pools=("lane",)), ServiceClass("usual")
CLASSES = Classes((FAST, USUAL), default="usual")
SHARED = Classes((replace(FAST, pools=()), USUAL), default="usual")


class RouterUnderTest:
    """A router whose workers take both phases; `lane-0` is a worker of the pool `lane`, which is
    the class fast's own. Audited after every event."""

    def __init__(
        self,
        *workers: str,
        classes: Classes = CLASSES,
        routing: str = "round-robin",
        main: WorkerCost = QUICK,
        **queue,
    ) -> None:
        pools = {worker: worker.partition("-")[0] for worker in workers}
        costs = {"lane": QUICK, "main": main}
        self.machine = RouterMachine(
            RouterConfig(
                block_size=4,
                root=CacheRoot("model", "revision", b"layout"),
                capacities={
                    worker: Capacity(costs[pool], 4, 100, 4, pool) for worker, pool in pools.items()
                },
                routing=make_routing(routing, 0),
                admission=AdmitAll(),
                dispatching=AlwaysRemote(),
                classes=classes,
                queue=RequestQueueConfig(**queue),
            )
        )
        self.now_ns = 0
        for worker in workers:
            self.handle(WorkerJoined(worker, Role.BOTH))

    @property
    def front(self):
        return self.machine.admission

    def handle(self, event) -> list:
        effects = self.machine.handle(event, self.now_ns)
        self.machine.audit()
        return effects

    def submit(self, service_class: str, *names: str, deadline_ns: int | None = None) -> None:
        for name in names:
            request = Request(name, (1, 2, 3, 4, 5))
            event = RequestSubmitted(
                request, 10.0, service_class=service_class, deadline_ns=deadline_ns
            )
            self.handle(event)

    def draws(self, worker: str, name: str, reason: FinishReason | None = None) -> None:
        drawn = EmitTokens((name,), (7,), (reason,), (False,), (0,))
        self.handle(TokensReported(worker, drawn))

    def ends(self, worker: str, name: str) -> None:
        self.draws(worker, name, FinishReason.LENGTH)

    def reconfigure(self, classes: Classes) -> None:
        config = replace(self.machine.config, classes=classes)
        self.machine.reconfigure(config, self.now_ns)
        self.machine.audit()

    @property
    def workers(self) -> dict[str, str]:
        """Where each request is; of those that wait empty."""
        return {name: state.prefill for name, state in self.machine.requests.items()}


def test_a_class_with_its_own_pool_goes_nowhere_else_however_full_that_is():
    at = RouterUnderTest("lane-0", "main-0", routing="cost")
    at.handle(LoadReported("lane-0", 4, 50, 40_000, 300, 1))
    at.submit("fast", "f")
    at.handle(LoadReported("main-0", 4, 50, 40_000, 300, 1))
    at.handle(LoadReported("lane-0", 0, 0, 0, 0, 100))
    at.submit("usual", "u")
    assert at.workers == {"f": "lane-0", "u": "main-0"}


def test_who_falls_back_to_everybodys_workers_takes_places_there_like_all_others():
    at = RouterUnderTest("lane-0", "main-0", max_requests=2)
    at.handle(WorkerDrained("lane-0"))
    names = [f"f{number}" for number in range(20)]
    at.submit("fast", *names)
    at.submit("usual", "u")
    assert [name for name, worker in at.workers.items() if worker] == ["f0", "f1"]
    assert at.front.queue.wanted_places == 21
    at.handle(RoleTaken("lane-0", Role.BOTH))
    # All go to their own worker, but the places are taken until those that have them end.
    assert {at.workers[name] for name in names[2:]} == {"lane-0"}
    assert at.workers["u"] == ""
    assert at.front.queue.is_full_for("usual")
    assert not at.front.queue.is_full_for("fast")
    assert at.front.queue.wanted_places == 3
    at.ends("main-0", "f0")
    assert at.workers["u"] == "main-0"


def test_what_still_runs_in_a_lane_that_is_down_takes_no_places():
    at = RouterUnderTest("lane-0", "main-0", max_requests=2)
    at.submit("fast", "f0", "f1", "f2")
    at.handle(WorkerDrained("lane-0"))
    at.submit("usual", "u0", "u1", "u2")
    assert at.workers["u0"] == at.workers["u1"] == "main-0"
    assert at.workers["u2"] == ""
    assert at.front.queue.wanted_places == 3


def test_a_reserve_takes_nothing_from_others_while_its_class_waits_for_its_own_worker():
    reserved = Classes((replace(FAST, reserved=0.5), USUAL), default="usual")
    at = RouterUnderTest("lane-0", "main-0", classes=reserved, max_requests=2, prefill_depth=1)
    at.submit("usual", "u0")
    at.draws("main-0", "u0")
    at.submit("usual", "u1")
    at.draws("main-0", "u1")
    at.submit("fast", "f0", "f1")
    assert at.workers == {"u0": "main-0", "u1": "main-0", "f0": "lane-0", "f1": ""}
    assert at.machine.takeovers == 0
    assert at.front.queue.wanted_places == 2
    at.handle(WorkerDrained("lane-0"))
    # Now it waits for everybody's, and has its reserve there.
    assert at.workers == {"u0": "main-0", "u1": "", "f0": "lane-0", "f1": "main-0"}


def test_only_who_has_a_place_gives_it_back():
    sold = ServiceClass("sold", reserved=0.5)
    at = RouterUnderTest("lane-0", "main-0", classes=Classes((FAST, USUAL, sold)), max_requests=2)
    at.handle(WorkerDrained("lane-0"))
    at.submit("fast", "f0", "f1")
    at.handle(RoleTaken("lane-0", Role.BOTH))
    at.submit("fast", "f2")
    at.submit("sold", "s0")
    assert at.workers == {"f0": "main-0", "f1": "lane-0", "f2": "lane-0", "s0": "main-0"}
    assert at.machine.requests["f2"].names.attempt == 0


def test_other_classes_have_pools_of_their_own_from_now_on():
    at = RouterUnderTest("lane-0", "main-0", classes=SHARED, max_requests=2)
    at.submit("fast", "f0", "f1")
    assert sorted(at.workers.values()) == ["lane-0", "main-0"]
    at.submit("usual", "u0")
    at.submit("fast", "f2")
    assert at.workers["u0"] == at.workers["f2"] == ""
    at.reconfigure(CLASSES)
    # Of the two that run one takes a place; the newcomer needs none.
    assert at.workers["u0"] == "main-0"
    assert at.workers["f2"] == "lane-0"
    at.submit("usual", "u1")
    assert at.workers["u1"] == ""
    at.reconfigure(SHARED)
    # Four are in, all of them at everybody's workers now.
    running = [name for name, worker in at.workers.items() if worker]
    for name in running[:2]:
        at.ends(at.workers[name], name)
    assert at.workers["u1"] == ""
    at.ends(at.workers[running[2]], running[2])
    assert at.workers["u1"]


def test_a_deadline_is_judged_by_the_workers_that_the_class_may_use():
    at = RouterUnderTest("lane-0", "main-0", main=SLOW, max_requests=1)
    at.submit("usual", "runs")
    at.submit("usual", "waits", deadline_ns=NS)
    # A first token takes half a second there, and none of the quick worker's time counts.
    assert at.front.least_seconds(at.machine.requests["waits"]) > 0.25
    alone = RouterUnderTest("main-0", main=SLOW, max_requests=1)
    alone.submit("usual", "runs")
    alone.submit("usual", "waits", deadline_ns=NS)
    assert at.machine.next_wakeup() == alone.machine.next_wakeup() < 800 * MS


def test_who_waits_for_other_workers_is_before_nobody():
    at = RouterUnderTest("lane-0", "main-0", max_requests=1)
    at.submit("usual", *(f"u{number}" for number in range(9)))
    fleet, queue = at.front.fleet, at.front.queue

    def waiting(service_class: str) -> list[int]:
        view = RequestView("new", 99, 0, 5, 10.0, service_class=service_class)
        found = queue.before(fleet.open_to(view, fleet.views()), view)
        return [each.waiting_requests for each in found]

    assert waiting("fast") == [0]
    assert waiting("usual") == [9]
    fleet.drain("lane-0")
    assert waiting("fast") == [9]


def test_a_suspect_holds_up_no_suspect_that_needs_other_workers():
    at = RouterUnderTest("main-0", "lane-0", "lane-1")
    at.handle(WorkerLost("lane-1"))
    at.submit("usual", "u0", "u1")
    at.submit("fast", "f0", "f1")

    def die(worker: str, *joined: str) -> None:
        at.now_ns += 5 * NS
        at.handle(WorkerLost(worker, True))
        for each in joined:
            at.handle(WorkerJoined(each, Role.BOTH))

    die("main-0", "main-0", "lane-1")
    die("lane-0", "lane-0")
    die("main-0")
    # They wait, and have no worker at all.
    assert at.workers == {"u0": "", "u1": "", "f0": "lane-1", "f1": "lane-1"}
    die("lane-1")
    assert all(state.deaths.suspect for state in at.machine.requests.values())
    assert at.workers == {"u0": "", "u1": "", "f0": "lane-0", "f1": ""}
    at.handle(WorkerJoined("main-0", Role.BOTH))
    assert at.workers == {"u0": "main-0", "u1": "", "f0": "lane-0", "f1": ""}


def test_a_draining_worker_moves_its_requests_within_its_pool():
    workers = [("lane-0", "lane"), ("lane-1", "lane"), ("main-0", "main")]
    at = GatewayUnderTest(
        *(register(worker, Role.BOTH, pool=pool) for worker, pool in workers), classes=CLASSES
    )
    at.handle(RequestSubmitted(Request("f", tuple(range(9))), 10.0, service_class="fast"))
    router = at.machine.router
    (state,) = router.requests.values()
    drawn = EmitTokens(("f",), (7,), (None,), (False,), (0,))
    at.receive(TokensReported(state.prefill, drawn))
    (other,) = {"lane-0", "lane-1"} - {state.prefill}
    # There is less room than at a worker of everybody's.
    at.receive(LoadReported(other, 1, 0, 0, 200, 50))
    router.handle(WorkerDrained(state.prefill), at.now_ns)
    member = at.machine.members.of_name(state.prefill)
    assert migration(router, member).target == other
