"""Runs of a simulated cluster that a seed leads: who asks, what operators want, what goes wrong and
when; then everybody gets to the end, and everything that must hold is checked."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from zlib import crc32

from tandem.cluster.router.fleet import SentLoad
from tandem.cluster.router.request_state import Stage
from tandem.facts.fleet import PlanningMode, Role, Tier
from tandem.facts.request import Request, session_key
from tandem.facts.sampling import SamplingParameters
from tandem.messages.cluster import Audited, Drain
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    DrainAsked,
    PrefixCacheResetAsked,
    StartFailed,
    TimePassed,
    ToolsCalled,
    UndrainAsked,
)
from tandem.messages.node import LeaveRequested
from tandem.messages.router import FollowedPause, MigrationsRequested, RequestSubmitted
from tandem.twin.faults.injection import FaultInjection
from tandem.twin.faults.kinds import (
    Cause,
    ClientsLeave,
    Crash,
    Drained,
    GatewayCrash,
    Hang,
    LossyLink,
    Partition,
    SlowLink,
    TierCorrupted,
    TierDown,
    TierFull,
    TierLost,
)
from tandem.twin.launcher import Launcher
from tests.cluster.ledger_engine import ADAPTERS, answer
from tests.twin.chance_cluster import ChanceCluster, Client
from tests.twin.chance_draws import CONTEXT_TOKENS, SPARE, ScenarioDraws, World, worker_names
from tests.twin.ledger import Ledger

MS = 1_000_000
SECOND_NS = 1_000_000_000
# Prompts are cuts of few long texts, so that prefixes are shared often and at odd lengths.
TEXTS = ((1, 2, 3, 4, 5) * 8, (1, 2, 3, 4, 6) * 8, (7,) * 40)


class ChanceRun:
    """One run: `play` has chance lead, then everybody gets to the end. `faults` counts what was
    done, by kind."""

    ledger_type: type[Ledger] = Ledger

    def __init__(self, seed: int, world: World, cluster: type[ChanceCluster] = ChanceCluster):
        self.seed, self.world = seed, world
        chance = self.chance = Random(f"{seed} {world}")
        self.ledger = self.ledger_type()
        self.draws = ScenarioDraws(chance, world)
        contents = self.ledger.of_worker if world.checks_kv else None
        self.scenario = self.draws.scenario(seed, contents)
        self.cluster = cluster(self.scenario, chance, self.ledger)
        if world.plans:
            self.cluster.modes = [PlanningMode.AUTOMATIC] * 5 + [PlanningMode.ADVISORY]
        self.queue = self.cluster.queue
        self.launcher = Launcher(self.scenario, self.cluster)
        self.seen = self.ledger.seen
        self.faults: Counter[str] = Counter()
        self.names = worker_names(self.cluster)
        self.operations = 1_000
        # Those that were asked for, by gateway.
        self.asked: dict[object, set[int]] = {}

    # What happens

    def play(self) -> "ChanceRun":
        chance, cluster = self.chance, self.cluster
        spread_s = chance.choice([1.0, 2.0, 4.0] if self.world.tiers else [0.1, 0.4, 1.0])
        spread_ns = round(spread_s * SECOND_NS)
        drawn = [
            self.draws.fault(cluster, spread_ns) for _ in range(self._count(self.world.faults))
        ]
        faults = [fault for _, fault in drawn]
        for kind, fault in drawn:
            self.queue.at(fault.begin_ns, partial(self._count_fault, kind, fault.cause))
        self.injection = FaultInjection(
            replace(self.scenario, faults=tuple(faults)),
            cluster,
            self.launcher,
        )
        cluster.open()
        self.launcher.open()
        cluster.bus.deliver()
        cluster.opened()
        for request in self.requests():
            self.queue.at(chance.randrange(spread_ns), partial(self._submit, request))
        for action in (self._operate, self._migrate, self._start, self._leave):
            for _ in range(chance.randrange(1 + self.world.faults)):
                self.queue.at(chance.randrange(spread_ns), self._at(action))
        if self.world.plans:
            for _ in range(self.world.faults):
                self.queue.at(chance.randrange(spread_ns), self._at(self._fail_start))
        if self.world.tiers:
            called = Random(f"tools {self.seed}")
            for _ in range(5):
                self.queue.at(called.randrange(spread_ns), self._tools_called)
        self._run_until(max(spread_ns, *(fault.end_ns or 0 for fault in faults), 0) + 1)
        self.settle()
        return self

    def _count(self, mean: int) -> int:
        return self.chance.randint(mean // 2, mean + mean // 2)

    @staticmethod
    def _at(action: Callable[[], object]) -> Callable[[int], None]:
        return lambda _now_ns: action() and None

    def _submit(self, wanted: Request, now_ns: int) -> None:
        chance, cluster = self.chance, self.cluster
        names = sorted(cluster.gateways)
        if not names:
            return
        gateway = cluster.gateways[chance.choice(names)]
        request_id = f"{gateway.name}.{gateway.incarnation}/{wanted.request_id}"
        service_class, session = chance.choice(["", "gold", "batch"]), chance.choice(["", "s"])
        account = wanted.cache_salt
        key = session_key(account, session)
        request = replace(wanted, request_id=request_id, session=key)
        first_due_ns, all_due_ns = self._due(request_id, now_ns)
        event = RequestSubmitted(
            request,
            4.0,
            account,
            service_class,
            session=session,
            deadline_ns=first_due_ns,
            answer_due_ns=all_due_ns,
            pin_ns=chance.choice([0, 10**8, 10**10]) if self.world.tiers else 0,
            pause=self._pause(request_id) if self.world.tiers and session else None,
        )
        cluster.clients.by_id[request.request_id] = Client(request)
        cluster.clients.submitted(event, now_ns)
        cluster.submit(event, gateway)
        if self.world.faults and chance.randrange(12) == 0:
            later_ns = now_ns + chance.randrange(300 * MS)
            self.queue.at(later_ns, lambda _: self._withdraw(request.request_id))

    def _due(self, request_id: str, now_ns: int) -> tuple[int | None, int | None]:
        """Until when a first token, and all of the answer, must come: where there are faults some
        clients are in a hurry. Not beside tiers, whose work for nobody's request must be over when
        all is checked."""
        chance = Random(f"due {self.seed} {request_id}")
        if self.world.tiers or not self.world.faults or chance.randrange(8):
            return None, None
        first_ns, all_ns = now_ns + chance.randrange(SECOND_NS), now_ns + chance.randrange(400 * MS)
        return chance.choice([(first_ns, None), (min(first_ns, all_ns), all_ns)])

    def _pause(self, request_id: str) -> FollowedPause:
        """A short one, announced or not, in which a tool may be known."""
        chance = Random(f"pause {self.seed} {request_id}")
        announced_ns = chance.choice([None, chance.randrange(500) * MS])
        return FollowedPause(10_000 * MS, announced_ns)

    def _tools_called(self, now_ns: int) -> None:
        """The last answer of somebody's session ended in a call, whether or not there was one."""
        del now_ns
        for gateway in self.cluster.gateways.values():
            gateway.receive(ToolsCalled("", "s", ("tool",)))

    def requests(self) -> list[Request]:
        """What is asked in the run; the gateway that gets one stands before its name."""
        fewest = self.world.requests // 2 if self.world.tiers else 1
        count = self.chance.randint(fewest, self.world.requests)
        return [self.request(str(index)) for index in range(count)]

    def request(self, request_id: str) -> Request:
        chance = self.chance
        return Request(
            request_id=request_id,
            prompt_tokens=chance.choice(TEXTS)[: chance.randint(1, CONTEXT_TOKENS - 1)],
            sampling=SamplingParameters(
                seed=chance.randrange(4),
                max_tokens=chance.randint(1, 20),
                stop_token_ids=chance.choice([(), (0,), (0, 1, 2)]),
            ),
            priority=chance.randrange(3),
            cache_salt=chance.choice(["", "tenant"]),
            # Not drawn: those that have none are as they were.
            adapter=ADAPTERS[max(0, crc32(request_id.encode()) % 10 - 7)],
        )

    def _withdraw(self, request_id: str) -> None:
        self.faults["clients leave"] += not self.cluster.clients.by_id[request_id].endings
        self.cluster.withdraw(request_id)

    def _count_fault(self, kind: str, cause: Cause, now_ns: int) -> None:
        """A fault counts if it hits somebody."""
        del now_ns
        cluster = self.cluster
        up = {**cluster.workers, **cluster.gateways, **cluster.pool_nodes}
        match cause:
            case Crash(name) | Drained(name) | SlowLink(name) | LossyLink(name):
                hits = name in up
            case Hang(name):
                hits = name in up and not up[name].hangs
            case GatewayCrash(name):
                hits = name in up
            case Partition(one, other):
                hits = any(name in up for name in one) and any(name in up for name in other)
            case TierDown(tier, name) | TierFull(tier, name):
                hits = bool(cluster.stores(tier, name))
            case TierLost(tier, _, name) | TierCorrupted(tier, name):
                hits = any(store.blocks for store in cluster.stores(tier, name))
            case ClientsLeave():
                hits = bool(cluster.clients.open_records())
        self.faults[kind] += hits

    def _operate(self) -> None:
        """An operator wants something of a gateway."""
        worker = self.chance.choice([*self.names, "nobody"])
        role = self.chance.choice(list(Role))
        self.ask(
            self._some_gateway(),
            self.chance.choice(
                [
                    lambda number: DrainAsked(number, worker),
                    lambda number: DrainAsked(number, worker, Drain(then_role=role)),
                    lambda number: DrainAsked(number, worker, Drain(then_role=role)),
                    lambda number: DrainAsked(number, worker, Drain(leave=True)),
                    lambda number: UndrainAsked(number, worker),
                    AuditAsked,
                    lambda number: PrefixCacheResetAsked(number, external=False),
                    lambda number: PrefixCacheResetAsked(number, external=True),
                ]
            ),
        )

    def ask(self, gateway, event: Callable[[int], object]) -> int:
        self.operations += 1
        if gateway is not None:
            self.asked.setdefault(gateway, set()).add(self.operations)
            gateway.receive(event(self.operations))
        return self.operations

    def _some_gateway(self):
        names = sorted(self.cluster.gateways)
        return self.cluster.gateways[self.chance.choice(names)] if names else None

    def _migrate(self) -> None:
        """Somebody has found that requests should go on elsewhere."""
        gateway = self._some_gateway()
        if gateway is None or not self.cluster.migrates:
            return
        states = gateway.machine.router.requests.values()
        sources = sorted({each.decode for each in states if each.stage is Stage.DECODING})
        if sources:
            source, target = self.chance.choice(sources), self.chance.choice(self.names)
            wanted = MigrationsRequested(source, target, self.chance.randint(10, 120))
            gateway.machine.routing.gather(wanted)
            gateway.receive(TimePassed())

    def _start(self) -> None:
        """Who is not there comes up, in any role."""
        absent = [name for name in self.names if name not in self.cluster.workers]
        if absent:
            self.launcher.start(self.chance.choice(absent), self.chance.choice(self.draws.roles))

    def _leave(self) -> None:
        if self.cluster.workers and self.chance.randrange(3) == 0:
            name = self.chance.choice(sorted(self.cluster.workers))
            self.cluster.workers[name].receive(LeaveRequested())

    def _fail_start(self) -> None:
        """One that is being started cannot be."""
        for name in self.launcher.starting[:1]:
            self.launcher.give_up(name)
            gateway = self.cluster.gateways.get("gateway-0")
            if gateway is not None:
                gateway.receive(StartFailed(name, "no memory"))
                self.seen["starts failed"] += 1

    # How it goes on

    def _run_until(self, instant_ns: int) -> None:
        queue, cluster = self.queue, self.cluster
        while (next_ns := queue.next_ns()) is not None and next_ns <= instant_ns:
            queue.step()
            cluster.bus.deliver()
            cluster.check_outputs()
        queue.at(instant_ns, lambda _: None)
        queue.step()

    def _pass(self, seconds: float) -> None:
        self._run_until(self.queue.now_ns + round(seconds * SECOND_NS))

    def settle(self) -> None:
        """No more faults: everybody gets to the end, and nothing stays behind."""
        cluster = self.cluster
        if self.draws.planner is not None:
            self.draws.planner.quiet = True
        self._pass(0.3)
        cluster.start_worker(SPARE, Role.BOTH)
        for turn in range(300):
            if self.quiet():
                break
            if turn % 10 == 0:
                self._undrain()
            self._pass(0.1)
        assert self.quiet(), "nobody moves"

    def _undrain(self) -> None:
        for gateway in self.cluster.gateways.values():
            for member in gateway.machine.members:
                if not member.accepting:
                    self.ask(gateway, partial(_undrain_of, member.name))

    def quiet(self) -> bool:
        """Whether every request has ended, every operation too, and nobody holds anything or is
        about to leave."""
        cluster = self.cluster
        peers = {worker.peer for worker in cluster.workers.values()}
        for gateway in cluster.gateways.values():
            machine = gateway.machine
            if machine.router.requests or {each.peer for each in machine.members} != peers:
                return False
            if not self.asked.get(gateway, set()) <= gateway.operations.keys():
                return False
        if cluster.transfers.under_way or cluster.replaced:
            return False
        if any(lane_waits(channel) for channel in cluster.bus.channels.values()):
            return False
        return all(
            worker.machine.work.idle and worker.machine.role_state.accepting
            for worker in cluster.workers.values()
        )

    # What must hold

    def check(self) -> "ChanceRun":
        """Everything that must hold once everybody has come to the end."""
        self._check_clients()
        self._check_leases()
        self._pass(0.5)
        self._check_books()
        if self.world.tiers:
            self._check_tiers()
        return self

    def _check_clients(self) -> None:
        for client in self.cluster.clients.by_id.values():
            (ending,) = client.endings
            self.seen[ending] += 1
            expected = answer(client.request.prompt_tokens, client.request.sampling, CONTEXT_TOKENS)
            if ending == "finished":
                assert client.output == expected
            else:
                assert client.output == expected[: len(client.output)]
        for asked in self.asked:
            for ended in asked.operations.values():
                self.seen["operations refused" if ended.problem else "operations done"] += 1
                if isinstance(ended, AuditEnded):
                    assert all(not each.problem for each in ended.workers), ended

    def _check_leases(self) -> None:
        """What every worker says that it holds, as an operator hears it: nothing, but for blocks
        that are just being prefetched."""
        for gateway in self.cluster.gateways.values():
            for _ in range(10):
                held = [each for each in self._audited(gateway) if _holds_something(each)]
                if not held:
                    break
                self._pass(0.5)
            assert not held

    def _audited(self, gateway) -> list[Audited]:
        number = self.ask(gateway, AuditAsked)
        for _ in range(50):
            if number in gateway.operations:
                break
            self._pass(0.1)
        ended, workers = gateway.operations[number], self.cluster.workers
        assert not ended.problem, ended
        mine = [each for each in ended.workers if each.worker in workers]
        assert len(mine) == len(workers)
        return mine

    def _check_books(self) -> None:
        """Gateways know exactly what workers have received, and count nothing as under way."""
        for gateway in self.cluster.gateways.values():
            gateway.machine.audit()
            self._check_sharing(gateway)
            for name, worker in self.cluster.workers.items():
                tracked = gateway.machine.router.admission.fleet.workers[name]
                connection = worker.machine.gateways.of(gateway.name)
                assert tracked.events_sent == connection.received_events
                assert not tracked.sent_by
                assert tracked.sent == SentLoad()
            if self.draws.planner is not None and gateway.machine.autoscaling is not None:
                assert not gateway.machine.autoscaling.status(self.queue.now_ns).draining
        for worker in self.cluster.workers.values():
            worker.machine.audit()
            self.seen["preempted"] += worker.worker_machine.planner.preemptions
            pool = worker.worker_machine.sequences.pool
            assert pool.free_blocks == worker.pool.kind.block_count
            assert not worker.worker_machine.sequences.pinned
            self._check_index(worker.name, Tier.DEVICE, set(pool.listing()[0]))
        ledger = self.cluster.transfers.network.ledger
        settled = ledger.finished_bytes + ledger.wasted_bytes + ledger.dropped_bytes
        moving = sum(each.moved_bytes for each in self.cluster.transfers.under_way.values())
        assert abs(ledger.started_bytes - settled - moving) < 1e-3

    def _check_sharing(self, gateway) -> None:
        """It knows what each of the others has given out, and that nothing of it is under way."""
        sharing = gateway.machine.sharing
        if sharing is None:
            return
        others = {name: each for name, each in self.cluster.gateways.items() if each != gateway}
        assert sharing.others.keys() == others.keys()
        for name, other in others.items():
            known, use = sharing.others[name], other.machine.router.admission.use
            assert not known.use.wanted
            assert not known.use.waiting
            assert known.accounts.keys() == use.of.keys()
            for account, totals in use.of.items():
                received = known.accounts[account]
                assert received.input_tokens == totals.input_tokens
                assert received.output_tokens == totals.output_tokens
                assert not received.waiting
                self.seen["shared accounts"] += 1

    def _check_tiers(self) -> None:
        """Nobody's work is left, every store holds exactly what its owner says, but for what was
        lost without a word, and gateways believe exactly that."""
        for name, worker in self.cluster.workers.items():
            assert not worker.contents.staged
            stores = {Tier.HOST: worker.host, Tier.DISK: worker.disk}
            for tier, cache in worker.machine.tiers.hierarchy.caches.by_tier.items():
                listing, store = set(cache.store.listing()), stores[tier]
                assert not cache.leaving
                assert set(store.blocks) == listing - store.lost
                self._check_index(name, tier, listing)
        for name, node in self.cluster.pool_nodes.items():
            held = set(node.machine.contents.replicas.listing()[0])
            assert set(node.store.blocks) == held - node.store.lost
            self._check_index(name, Tier.REMOTE, held)

    def _check_index(self, name: str, tier: Tier, listing: set[bytes]) -> None:
        for gateway in self.cluster.gateways.values():
            pools = gateway.machine.router.admission.index._pools.get(name, {})
            # Who has forgotten a worker that was drained asks when it hears of it again.
            if tier in pools and not self.cluster.loses_reports:
                assert set(pools[tier].held) == listing


def lane_waits(channel) -> bool:
    return bool(channel.up.stalled or channel.down.stalled)


def _undrain_of(worker: str, number: int) -> UndrainAsked:
    return UndrainAsked(number, worker)


def _holds_something(audited: Audited) -> bool:
    nothing = Audited(audited.worker, 0, audited.cached_blocks, 0, 0, 0, 0, 0, 0, "")
    return audited != nothing


def play(seed: int, world: World, cluster: type[ChanceCluster] = ChanceCluster) -> ChanceRun:
    return ChanceRun(seed, world, cluster).play().check()
