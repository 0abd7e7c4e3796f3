"""Laws of a whole cluster that a planner without any reason scales, while workers and gateways die
and operators have wishes of their own: each request still ends once, with the tokens of the ledger,
and nothing stays behind."""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from tandem.cluster.gateway.autoscaling import PlanningConfig
from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.facts.fleet import PlanningMode, Role
from tandem.facts.slo import Slo
from tandem.messages.gateway import PlanDecided, StartFailed, StartWorker
from tandem.messages.planning import ActionKind
from tandem.policy.planning.contract import FleetView, Flip, Move, Plan
from tests.cluster.node_cluster import NodeCluster
from tests.cluster.router_cluster import COST
from tests.cluster.test_node_laws import check, run
from tests.seeds import seeds

SEEDS = seeds(40, 1000)


@dataclass
class Restless:
    """A planner that wants anything, until it is `quiet`."""

    chance: Random
    interval_s: float = 0.02
    quiet: bool = False

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del now_ns
        chance = self.chance
        workers = [view.worker for view in fleet.workers]
        if self.quiet or not workers or not chance.randrange(3):
            return Plan()
        roles = [chance.choice(["prefill", "decode"]) for _ in workers]
        flips = [Flip(*each) for each in zip(workers, roles, strict=True)]
        move = Move(chance.choice(workers), chance.choice(workers), chance.randint(10, 120))
        return Plan(
            chance.choice([None, 0, 1, 2, 3]),
            chance.choice([None, 0, 1, 2, 3]),
            flips=tuple(flip for flip in flips if not chance.randrange(5)),
            moves=(move,) * chance.randrange(2),
        )


class PlannedCluster(NodeCluster):
    """The first gateway plans. `wanted` are the starts that it wants; a name that lives is not
    started, and what is not started in time may be reported."""

    def __init__(self, configs: dict, gateways: int, chance: Random) -> None:
        self.wanted: dict[str, Role] = {}
        self.policy = Restless(Random(chance.random()))
        super().__init__(configs, gateways, chance)

    def planning_of(self, gateway: str) -> PlanningConfig | None:
        if gateway != "g0":
            return None
        names = [name for name in self.configs if name != "spare"]
        modes = [PlanningMode.AUTOMATIC] * 5 + [PlanningMode.ADVISORY]
        return PlanningConfig(
            "restless",
            self.policy,
            (
                ScaledPool("even", Role.PREFILL, tuple(names[::2]), 1, 1, COST, startup_s=0.5),
                ScaledPool("odd", Role.DECODE, tuple(names[1::2]), 1, 1, COST, startup_s=0.5),
            ),
            Slo(ttft_s=0.1),
            mode=self.policy.chance.choice(modes),
            hold_s=1.0,
        )

    def plan_carried_out(self, effect: StartWorker | PlanDecided) -> None:
        if isinstance(effect, PlanDecided):
            advises = effect.decision.mode is PlanningMode.ADVISORY
            for action in effect.decision.actions:
                self.seen["advised" if advises else str(action.kind)] += 1
            return
        members = [member.name for member in self.gates["g0"].machine.members]
        assert effect.worker not in members
        self.wanted[effect.worker] = effect.role

    def turn(self) -> None:
        if self.policy.chance.randrange(6) == 0:
            self.tick()
        super().turn()

    def tick(self) -> None:
        super().tick()
        # Its ticks come so quickly that nobody else's time would ever be up.
        for _ in range(5 * self.policy.quiet):
            super().tick()

    def mischief(self) -> list[tuple]:
        living = {process.name for process in self.living()}
        choices = super().mischief()
        for worker in sorted(self.wanted):
            if worker not in living:
                choices += [(self._fail, worker)] * (2 * (not self.gates["g0"].hung))
        return choices

    def routine(self) -> list[tuple]:
        living = {process.name for process in self.living()}
        missing = [(self._start, *each) for each in sorted(self.wanted.items())]
        return super().routine() + [each for each in missing if each[1] not in living]

    def _start(self, worker: str, role: Role) -> None:
        del self.wanted[worker]
        self.seen["planned starts"] += 1
        self.start_worker(worker, role)

    def _fail(self, worker: str) -> None:
        del self.wanted[worker]
        self.hear(self.gates["g0"], [StartFailed(worker, "no memory")])

    def settle(self) -> None:
        self.policy.quiet = True
        super().settle()


def test_whatever_a_planner_wants_each_request_gets_its_answer_once():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = run(seed, PlannedCluster)
        check(cluster)
        seen.update(cluster.seen)
        planner = cluster.gates["g0"].machine.autoscaling
        assert planner is not None
        assert not planner.status(cluster.now_ns).draining
    kinds = [str(kind) for kind in ActionKind]
    assert all(seen[what] >= 5 for what in (*kinds, "planned starts", "advised")), seen
    assert seen["finished"] > 100, seen


def test_a_planner_that_wants_nothing_changes_nothing():
    """The same happenings, with and without one that only looks."""

    class Looking(PlannedCluster):
        def planning_of(self, gateway: str) -> PlanningConfig | None:
            config = super().planning_of(gateway)
            return None if config is None else replace(config, mode=PlanningMode.ADVISORY)

    for seed in range(5):
        looking = run(seed, Looking)
        check(looking)
        assert not looking.wanted
