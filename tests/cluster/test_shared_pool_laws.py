"""Laws of the shared pool: whatever clients bring, read or break off, and whichever gateways and
processes come and go, what is reported amounts exactly to what is there."""

from collections import Counter, deque
from random import Random

import pytest

from tandem.cluster.shared_pool.contents import HotBlocksConfig
from tandem.cluster.shared_pool.machine import PoolNodeConfig, PoolNodeMachine
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.facts.blocks import block_hash
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.messages.cluster import (
    PROTOCOL,
    Audit,
    Audited,
    Deregister,
    Drain,
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    RegisterAgain,
    Registered,
    RegisterPoolNode,
    TiersReported,
    Undrain,
)
from tandem.messages.gateway import TimePassed
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    ConnectPoolNode,
    CopyBlocks,
    ForgetBlocks,
    ForgetPoolNode,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    SendToGateway,
)
from tandem.messages.pool_node import (
    AnswerOffer,
    BlocksAsked,
    BlocksOffered,
    BlocksReceived,
    FetchHeld,
    ReplicaEnded,
    SendReplica,
)
from tandem.messages.router import BlocksListed, BlocksReported
from tandem.messages.worker import PrefixCacheReset
from tandem.policy.eviction.policies import make_eviction

ROOT = bytes(16)
SECOND_NS = 1_000_000_000


def chain_of(prompt: tuple[int, ...], tenant: str) -> list[BlockName]:
    """One block a token."""
    names: list[BlockName] = []
    parent = ROOT
    for token in prompt:
        digest = block_hash(parent, [token])
        names.append(BlockName(digest, parent, names[0].digest if names else digest, tenant))
        parent = digest
    return names


def terms_of(gateway: str) -> Registered:
    return Registered(gateway, SECOND_NS, 100 * SECOND_NS, SECOND_NS)


class GatewayView:
    """What one gateway believes of the process."""

    def __init__(self) -> None:
        self.held: set[bytes] | None = None
        self.number = 0
        self.audited: Audited | None = None

    def receive(self, message: object) -> None:
        match message:
            case BlocksListed(_, tier, hashes, number):
                assert tier is Tier.REMOTE
                self.held, self.number = set(hashes), number
            case BlocksReported(_, tier, changes):
                assert tier is Tier.REMOTE
                assert self.held is not None
                assert changes.sequence_number == self.number
                self.number += 1
                assert self.held >= set(changes.removed)
                self.held -= set(changes.removed)
                assert not self.held & set(changes.stored)
                self.held |= set(changes.stored)
            case Audited():
                assert message.problem == ""
                self.audited = message


class PoolNodeRun:
    """One process of the pool in a random run: its stores as sets, each with tasks that wait their
    turn."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = Random(seed)
        self.now_ns = 0
        self.seen: Counter[str] = Counter()
        capacities = {Tier.HOST: chance.randint(1, 30)}
        if chance.random() < 0.7:
            capacities[Tier.DISK] = chance.randint(1, 60)
        self.names: dict[bytes, BlockName] = {}
        self.stores: dict[Tier, dict[bytes, None]] = {tier: {} for tier in capacities}
        self.tasks: dict[Tier, deque] = {tier: deque() for tier in capacities}
        self.found = tuple(self.some_chain()[:5])
        if Tier.DISK in capacities:
            self.stores[Tier.DISK].update(dict.fromkeys(each.digest for each in self.found))
        self.config = PoolNodeConfig(
            RegisterPoolNode(PROTOCOL, "1", "pool-0", "one", "h:1", BlockFormat(ROOT, 8), 9),
            TiersConfig(
                capacities,
                lambda blocks: make_eviction(chance.choice(["lru", "fifo", "lfu"]), blocks),
                found=self.found if Tier.DISK in capacities else (),
                quotas={"greedy": 0.3} if chance.random() < 0.5 else {},
                limits=TierLimits(copy_blocks=chance.randint(1, 8)),
            ),
            HotBlocksConfig(window_ns=chance.choice([1, 60]) * SECOND_NS),
        )
        self.machine = PoolNodeMachine(self.config, 0)
        self.gateways: dict[str, GatewayView] = {}
        self.offers: dict[int, tuple[BlockName, ...]] = {}
        # What was wanted of whom, and has not come yet.
        self.coming: list[tuple[BlockName, ...]] = []
        self.reads: dict[int, tuple[BlockName, ...]] = {}
        self.replicas: list[str] = []
        self.connected: set[tuple[str, str]] = set()
        self.count = 0
        self.left: Leave | None = None

    def some_chain(self) -> list[BlockName]:
        chance = self.chance
        length = chance.randint(1, 14)
        shared = chance.randint(0, length)
        prompt = (chance.randrange(4),) * shared
        prompt += tuple(chance.randrange(3) for _ in range(length - shared))
        chain = chain_of(prompt, chance.choice(["", "", "greedy"]))
        self.names.update({each.digest: each for each in chain})
        return chain

    def handle(self, *events: object) -> None:
        for effect in self.machine.handle_together(events, self.now_ns):
            assert self.left is None
            self.perform(effect)

    def perform(self, effect: object) -> None:
        self.seen[type(effect).__name__] += 1
        match effect:
            case SendToGateway(gateway, message):
                self.seen[type(message).__name__] += 1
                self.gateways[gateway].receive(message)
            case AnswerOffer(offer_id, wanted, held):
                names = self.offers.pop(offer_id)
                assert not set(wanted) & set(held)
                mine = tuple(each for each in names if each.digest in wanted)
                assert not {m.digest for m in mine} & {n.digest for c in self.coming for n in c}
                if mine:
                    self.coming.append(mine)
            case FetchHeld(fetch_id, tiers, names):
                asked = self.reads.pop(fetch_id)
                assert names == asked[: len(names)]
                self.post_read(fetch_id, tiers, names)
            case CopyBlocks():
                self.tasks[effect.source].append(lambda: self.copy(effect))
            case ForgetBlocks(tier, digests):
                self.tasks[tier].append(lambda: self.forget(tier, digests))
            case SendReplica(node, _, names):
                assert node in {name for name, _ in self.connected}
                assert len(set(names)) == len(names)
                self.replicas.append(node)
            case ConnectPoolNode(node, incarnation):
                assert (node, incarnation) not in self.connected
                self.connected = {c for c in self.connected if c[0] != node} | {(node, incarnation)}
            case ForgetPoolNode(node, incarnation):
                self.connected.remove((node, incarnation))
            case Leave():
                self.left = effect

    # The stores.

    def post_read(self, fetch_id: int, tiers: tuple[Tier, ...], names) -> None:
        # What the machine has reported is there, unless it was lost or corrupt by itself.
        found = 0
        corrupt: tuple[bytes, ...] = ()
        missing: tuple[bytes, ...] = ()
        for tier, each in zip(tiers, names, strict=True):
            if each.digest not in self.stores[tier]:
                missing = (each.digest,)
                break
            if self.chance.random() < 0.02:
                corrupt = (each.digest,)
                del self.stores[tier][each.digest]
                self.seen["corrupt"] += 1
                break
            found += 1
        self.seen["missing"] += len(missing)
        # Reads go first, so what was there when the machine decided is read: only the news waits.
        event = BlocksFetched(fetch_id, found, corrupt=corrupt, missing=missing)
        self.tasks[Tier.HOST].append(lambda: self.handle(event))

    def keep(self, names: tuple[BlockName, ...]) -> None:
        some = [n for n in names if self.chance.random() < 0.95]
        self.stores[Tier.HOST].update(dict.fromkeys(n.digest for n in some))
        self.handle(BlocksReceived(names, tuple(n.digest for n in some)))

    def copy(self, order: CopyBlocks) -> None:
        there = [n for n in order.names if n.digest in self.stores[order.source]]

        def write() -> None:
            broken = self.chance.random() < 0.1
            kept = () if broken else tuple(n.digest for n in there)
            self.stores[order.target].update(dict.fromkeys(kept))
            problem = "the disk is full" if broken else ""
            self.handle(BlocksKept(order.copy_id, order.target, kept, problem))

        self.tasks[order.target].append(write)

    def forget(self, tier: Tier, digests: tuple[bytes, ...]) -> None:
        for digest in digests:
            self.stores[tier].pop(digest, None)

    # What may happen.

    def turn(self) -> None:
        chance = self.chance
        self.now_ns += chance.randrange(200_000_000)
        wakeup_ns = self.machine.next_wakeup()
        if wakeup_ns is not None and wakeup_ns <= self.now_ns:
            self.handle(TimePassed())
        what = chance.choice(
            [
                *[self.offer, self.arrive, self.read] * 2,
                *[self.work] * 3,
                *[self.gateway, self.sibling, self.pin, self.end_replica],
            ]
        )
        what()
        self.machine.audit()

    def offer(self) -> None:
        self.count += 1
        names = tuple(dict.fromkeys((*self.some_chain(), *self.some_chain())))
        # Of one content there is one name.
        names = tuple({n.digest: n for n in names}.values())
        self.offers[self.count] = names
        self.handle(BlocksOffered(self.count, names))

    def arrive(self) -> None:
        """Bytes of a client came, or it died."""
        if not self.coming:
            return
        names = self.coming.pop(self.chance.randrange(len(self.coming)))
        cut = self.chance.randint(0, len(names))
        if names[:cut]:
            self.tasks[Tier.HOST].append(lambda: self.keep(names[:cut]))
        if names[cut:]:
            self.seen["broken off"] += 1
            self.handle(BlocksReceived(names[cut:]))

    def read(self) -> None:
        self.count += 1
        names = tuple(self.some_chain())
        self.reads[self.count] = names
        self.handle(BlocksAsked(self.count, names))

    def work(self) -> None:
        busy = [queue for queue in self.tasks.values() if queue]
        if busy:
            self.chance.choice(busy).popleft()()

    def gateway(self) -> None:
        chance = self.chance
        name = chance.choice("gh")
        if name not in self.gateways or chance.random() < 0.2:
            self.gateways[name] = GatewayView()
            self.handle(GatewayConnected(name))
            if chance.random() < 0.9:
                self.handle(MessageFromGateway(name, terms_of(name)))
        elif chance.random() < 0.2:
            self.handle(GatewayGone(name))
            del self.gateways[name]
        elif chance.random() < 0.3:
            self.gateways[name] = GatewayView()
            self.handle(MessageFromGateway(name, RegisterAgain()))
            self.handle(MessageFromGateway(name, terms_of(name)))
        else:
            reset = PrefixCacheReset(external=chance.random() < 0.5)
            message = chance.choice([Audit(), Drain(), Undrain(), Undrain(), reset])
            self.handle(MessageFromGateway(name, message))

    def sibling(self) -> None:
        if not self.gateways:
            return
        gateway = self.chance.choice(sorted(self.gateways))
        start = self.chance.choice(["old", "new"])
        gone = PoolNodeGone("pool-1", start)
        joined = PoolNodeJoined("pool-1", start, "h:2")
        self.handle(MessageFromGateway(gateway, self.chance.choice([gone, joined, joined])))

    def pin(self) -> None:
        if self.gateways:
            digests = tuple(each.digest for each in self.some_chain())
            pin = PinBlocks(digests, self.chance.randrange(20 * SECOND_NS), 0)
            self.handle(MessageFromGateway(self.chance.choice(sorted(self.gateways)), pin))

    def end_replica(self) -> None:
        if self.replicas:
            self.handle(ReplicaEnded(self.replicas.pop()))

    def settle(self) -> None:
        """Everything that waits comes to its end."""
        while self.coming:
            self.arrive()
        while any(self.tasks.values()):
            self.work()
        while self.replicas:
            self.end_replica()


def check(node: PoolNodeRun) -> None:
    node.settle()
    machine = node.machine
    machine.audit()
    held = set(machine.contents.replicas.listing()[0])
    there = {digest for store in node.stores.values() for digest in store}
    # Blocks that were corrupt and not read again are still believed to be there.
    assert len(there - held) == 0
    for tier, cache in machine.contents.hierarchy.caches.by_tier.items():
        assert not cache.leaving
        assert set(cache.store.listing()) == set(node.stores[tier])
    for name, gateway in node.gateways.items():
        link = machine.gateways.of(name)
        if link is not None and link.terms is not None:
            node.seen["checked"] += 1
            assert gateway.held == held
            node.handle(MessageFromGateway(name, Audit()))
            assert gateway.audited is not None
            assert gateway.audited.cached_blocks == len(held)
    assert not node.offers
    assert not node.reads
    assert {name for name, _ in node.connected} == set(machine.siblings.names)


@pytest.mark.parametrize("chunk", range(6))
def test_what_is_reported_is_what_is_there(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * 25, (chunk + 1) * 25):
        node = PoolNodeRun(seed)
        for _ in range(node.chance.randint(10, 250)):
            node.turn()
        check(node)
        node.handle(LeaveRequested())
        assert node.left == Leave()
        assert node.machine.next_wakeup() is None
        assert node.machine.handle(TimePassed(), node.now_ns) == []
        seen.update(node.seen)
    often = ("CopyBlocks", "ForgetBlocks", "SendReplica", "checked", "corrupt", "broken off")
    often += ("BlocksListed", "BlocksReported", "TiersReported", "Deregister", "ForgetPoolNode")
    assert all(seen[what] >= 3 for what in often), seen


def alone(**changes) -> PoolNodeMachine:
    register = RegisterPoolNode(PROTOCOL, "1", "pool-0", "one", "h:1", BlockFormat(ROOT, 8), 9)
    return PoolNodeMachine(
        PoolNodeConfig(register, TiersConfig({Tier.HOST: 10}), HotBlocksConfig(**changes)), 0
    )


def terms(machine: PoolNodeMachine, now_ns: int = 0) -> list[object]:
    machine.handle(GatewayConnected("g"), now_ns)
    registered = MessageFromGateway("g", Registered("g", SECOND_NS, 5 * SECOND_NS, SECOND_NS))
    return machine.handle(registered, now_ns)


def stored(machine: PoolNodeMachine, chain: list[BlockName]) -> None:
    machine.handle(BlocksOffered(0, tuple(chain)), 0)
    machine.handle(BlocksReceived(tuple(chain), tuple(n.digest for n in chain)), 0)


def test_it_reports_at_every_interval_and_registers_again_after_silence():
    machine = alone()
    assert [type(e.message) for e in terms(machine)] == [BlocksListed, TiersReported]
    assert machine.next_wakeup() == SECOND_NS
    (report,) = machine.handle(TimePassed(), SECOND_NS)
    assert isinstance(report.message, TiersReported)
    for second in (2, 3, 4):
        machine.handle(TimePassed(), second * SECOND_NS)
    (register,) = machine.handle(TimePassed(), 5 * SECOND_NS)
    assert isinstance(register.message, RegisterPoolNode)


def test_blocks_in_demand_go_to_the_next_one_once():
    machine = alone(hot_reads=2)
    terms(machine)
    chain = chain_of((1, 2, 3), "")
    stored(machine, chain)
    machine.handle(MessageFromGateway("g", PoolNodeJoined("pool-1", "a", "h:2")), 0)

    def read(fetch_id: int) -> list[object]:
        effects = machine.handle(BlocksAsked(fetch_id, tuple(chain)), 0)
        return [effect for effect in effects if isinstance(effect, SendReplica)]

    assert read(1) == []
    assert read(2) == [SendReplica("pool-1", (Tier.HOST,) * 3, tuple(chain))]
    assert read(3) == []
    machine.handle(ReplicaEnded("pool-1"), 0)
    assert read(4) == []
    # When that one is gone, and another comes, it gets them anew.
    machine.handle(MessageFromGateway("g", PoolNodeGone("pool-1", "a")), 0)
    machine.handle(MessageFromGateway("g", PoolNodeJoined("pool-1", "b", "h:3")), 0)
    assert len(read(5)) == 1


def test_one_copy_is_enough_where_that_is_wanted():
    machine = alone(replicas=1)
    terms(machine)
    machine.handle(MessageFromGateway("g", PoolNodeJoined("pool-1", "a", "h:2")), 0)
    sent = []
    for token in range(20):
        chain = chain_of((token,), "")
        stored(machine, chain)
        for fetch_id in (2 * token, 2 * token + 1):
            effects = machine.handle(BlocksAsked(fetch_id, tuple(chain)), 0)
            copies = [each for each in effects if isinstance(each, SendReplica)]
            sent += copies
            for each in copies:
                machine.handle(ReplicaEnded(each.node), 0)
    # Only chains that belong to the other go there.
    assert 0 < len(sent) < 20


def test_who_drains_wants_nothing_new_and_still_gives():
    machine = alone()
    terms(machine)
    chain = chain_of((1, 2), "")
    stored(machine, chain)
    machine.handle(MessageFromGateway("g", Drain()), 0)
    more = chain_of((1, 2, 3), "")
    (answer,) = machine.handle(BlocksOffered(1, tuple(more)), 0)
    assert answer == AnswerOffer(1, (), tuple(each.digest for each in chain))
    fetch = machine.handle(BlocksAsked(2, tuple(more)), 0)[0]
    assert fetch == FetchHeld(2, (Tier.HOST,) * 2, tuple(chain))
    effects = machine.handle(MessageFromGateway("g", Drain(leave=True, again=True)), 0)
    assert effects == [SendToGateway("g", Deregister("pool-0")), Leave(again=True)]
