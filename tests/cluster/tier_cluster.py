"""A cluster whose workers have slower tiers, and a process of the shared pool that comes, forgets
and goes."""

from dataclasses import dataclass, field, replace
from random import Random

from tandem.cluster.router.fleet import Capacity
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.worker.machine import WorkerConfig
from tandem.cost.worker import LinkCost
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.messages.cluster import (
    PROTOCOL,
    Audit,
    Audited,
    ListBlocks,
    PinBlocks,
    Register,
    RegisterAgain,
    Registered,
    RegisterPoolNode,
    TiersReported,
)
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.node import ConnectPoolNode, ForgetPoolNode
from tandem.messages.router import BlocksListed, BlocksReported
from tandem.policy.eviction.policies import EVICTIONS, make_eviction
from tests.cluster import node_cluster
from tests.cluster.node_cluster import Channel, Gate, NodeCluster, Process
from tests.cluster.tier_stores import Keys, Lanes, Store

FORMAT = BlockFormat(bytes(16), 64)
FAST = LinkCost(1e6)
COST = replace(
    node_cluster.COST, tiers={Tier.HOST: FAST, Tier.DISK: FAST, Tier.REMOTE: FAST}, network=FAST
)


class PoolStore(Store):
    """Says what changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[BlockChanges] = []
        self.count = 0

    def put(self, name: BlockName, keys: Keys) -> None:
        if name.digest not in self.blocks:
            self._say((), (name.digest,), (name.parent,))
        super().put(name, keys)

    def lose(self, digest: bytes) -> None:
        del self.blocks[digest]
        self._say((digest,), (), ())

    def _say(self, removed: tuple, stored: tuple, parents: tuple) -> None:
        self.changed.append(BlockChanges(self.count, removed, stored, parents))
        self.count += 1


@dataclass(eq=False)
class PoolProcess:
    """One start of a process of the pool."""

    incarnation: str
    store: PoolStore = field(default_factory=PoolStore)
    served: set[str] = field(default_factory=set)
    heard_ns: int = 0

    @property
    def peer(self) -> str:
        return f"pool-0/{self.incarnation}"


class TierCluster(NodeCluster):
    """`pool` is the living process of the shared pool. Disks outlive their workers."""

    block_format = FORMAT

    def __init__(self, configs: dict[str, WorkerConfig], gateways: int, chance: Random) -> None:
        self.lanes: dict[str, Lanes] = {}
        self.disks: dict[str, Store] = {}
        self.names: dict[bytes, BlockName] = {}
        self.pool: PoolProcess | None = None
        self.pool_starts = 0
        self.limits = TierLimits(
            stagings=chance.randint(1, 3),
            copies=chance.randint(1, 2),
            copy_blocks=chance.randint(1, 4),
            queued_blocks=chance.choice([2, 8, 100]),
            trial_fetches=1,
            trial_tokens=chance.choice([4, 1000]),
        )
        self.sizes = [chance.choice([0, 3, 20, 200]), chance.choice([0, 20, 200])]
        self.eviction = chance.choice(sorted(EVICTIONS))
        self.quotas = chance.choice([{}, {"": 0.5, "tenant": 0.25}])
        # Devices with room for little, so that much has to come back.
        small = {
            name: replace(
                config,
                reports_committed=True,
                block_count=-(-config.context_tokens // config.block_size) + chance.randrange(2),
            )
            for name, config in configs.items()
        }
        super().__init__(small, gateways, chance)

    def _capacity(self, register: Register) -> Capacity:
        return replace(super()._capacity(register), cost=COST)

    # Workers with tiers

    def tiers_of(self, name: str) -> TiersConfig:
        sizes = zip((Tier.HOST, Tier.DISK), self.sizes, strict=True)
        capacities = {tier: blocks for tier, blocks in sizes if blocks}
        # A process that still hangs writes to what it had: the file is locked while it lives.
        disk = self.disks[name] = Store(0, dict(self.disks.get(name, Store()).blocks))
        found = tuple(self.names[digest] for digest in disk.blocks) if self.sizes[1] else ()
        return TiersConfig(
            capacities,
            lambda blocks: make_eviction(self.eviction, blocks),
            found=found,
            remote=True,
            quotas=self.quotas,
            limits=self.limits,
        )

    def start_worker(self, name: str, role: Role) -> None:
        self.seen["disks found"] += bool(self.disks.get(name) and self.disks[name].blocks)
        super().start_worker(name, role)
        self.lanes_of(self.processes[-1])

    def lanes_of(self, process: Process) -> Lanes:
        lanes = self.lanes.get(process.peer)
        if lanes is None:
            slack = self.limits.slack_blocks
            disk = self.disks[process.name]
            assert all(each.stores[Tier.DISK] is not disk for each in self.lanes.values())
            disk.room = self.sizes[1] + slack
            stores = {Tier.HOST: Store(self.sizes[0] + slack), Tier.DISK: disk}
            lanes = self.lanes[process.peer] = Lanes(stores, process.engine, self.chance)
            lanes.seen = self.seen
            lanes.connected = None
        return lanes

    def perform(self, process: Process, effect) -> None:
        lanes = self.lanes_of(process)
        match effect:
            case ConnectPoolNode(_, incarnation, address):
                assert address == "there"
                assert lanes.connected is None
                lanes.connected = incarnation
                self.seen["pool joined"] += 1
            case ForgetPoolNode(_, incarnation):
                assert lanes.connected == incarnation
                lanes.connected = None
                self.seen["pool gone"] += 1
            case _:
                for name in getattr(effect, "names", ()):
                    self.names[name.digest] = name
                lanes.perform(effect)

    def routine(self) -> list[tuple]:
        choices = super().routine()
        for process in self.living():
            if not process.hung:
                lanes = self.lanes_of(process)
                choices += [(self.work, process, lanes, tier) for tier in lanes.busy]
        if self.pool is not None:
            for gateway in self.gates:
                if self.channels[gateway, self.pool.peer].down:
                    choices.append((self.tell_pool, gateway))
        return choices

    def work(self, process: Process, lanes: Lanes, tier: Tier) -> None:
        pool = self.pool
        there = pool is not None and lanes.connected == pool.incarnation
        lanes.stores[Tier.REMOTE] = pool.store if pool is not None and there else Store()
        lanes.pool_there = lambda: there
        for blocks in lanes.fetching.values():
            importing = process.node.work.machine.sequences.importing.values()
            reserved = {block for sequence in importing for block in sequence.residency.blocks}
            assert set(blocks) <= reserved, "nobody writes into blocks given back"
        events = lanes.step(tier)
        self.speak()
        if events:
            self.tell(process, events)

    # The pool

    def start_pool(self) -> None:
        self.pool_starts += 1
        self.pool = PoolProcess(str(self.pool_starts))
        self.pool.heard_ns = self.now_ns
        for gateway in self.gates:
            self._call(gateway)

    def _call(self, gateway: str) -> None:
        """The pool's channel to a gateway is made anew."""
        pool = self.pool
        assert pool is not None
        pool.served.discard(gateway)
        channel = self.channels[gateway, pool.peer] = Channel()
        register = RegisterPoolNode(
            PROTOCOL, "1", "pool-0", pool.incarnation, "there", FORMAT, 1000
        )
        channel.up.append(TO_GATEWAY.encode(register))

    def stop_pool(self) -> None:
        pool, self.pool = self.pool, None
        assert pool is not None
        for gateway in self.gates:
            self.channels[gateway, pool.peer].up.append(None)

    def lose_in_pool(self) -> None:
        """It gives up or forgets something, and says so sooner or later."""
        assert self.pool is not None
        blocks = self.pool.store.blocks
        if blocks:
            self.pool.store.lose(self.chance.choice(sorted(blocks)))
            self.speak()

    def pin(self, process: Process) -> None:
        """Somebody's session is to be kept."""
        cache = next(iter(process.node.tiers.hierarchy.caches.by_tier.values()), None)
        if cache is not None:
            message = PinBlocks(cache.store.listing()[:3], self.chance.choice([10**8, 10**10]))
            for gateway in self.gates:
                self.channels[gateway, process.peer].down.append(TO_WORKER.encode(message))

    def speak(self) -> None:
        """The pool's news go to whoever knows it."""
        if self.pool is None:
            return
        changed, self.pool.store.changed = self.pool.store.changed, []
        for gateway in self.pool.served:
            for changes in changed:
                self._say(gateway, BlocksReported("pool-0", Tier.REMOTE, changes))

    def _say(self, gateway: str, message) -> None:
        assert self.pool is not None
        self.channels[gateway, self.pool.peer].up.append(TO_GATEWAY.encode(message))

    def tell_pool(self, gateway: str) -> None:
        """The pool hears something from a gateway."""
        pool = self.pool
        assert pool is not None
        data = self.channels[gateway, pool.peer].down.popleft()
        message = None if data is None else TO_WORKER.decode(data)
        match message:
            case None | RegisterAgain():
                self._call(gateway)
            case Registered() | ListBlocks():
                pool.served.add(gateway)
                listed = tuple(pool.store.blocks)
                self._say(gateway, BlocksListed("pool-0", Tier.REMOTE, listed, pool.store.count))
            case Audit():
                self._say(gateway, Audited("pool-0", 0, 0, 0, 0, 0, 0, 0, 0, ""))

    def tick(self) -> None:
        super().tick()
        if self.pool is not None and self.now_ns - self.pool.heard_ns >= 10**8:
            self.pool.heard_ns = self.now_ns
            for gateway in self.pool.served:
                self._say(gateway, TiersReported("pool-0", ()))

    def start_gateway(self, name: str) -> None:
        super().start_gateway(name)
        if self.pool is not None:
            self._call(name)

    def _fence(self, gate: Gate, peer: str) -> None:
        if not peer.startswith("pool-0/"):
            super()._fence(gate, peer)
            return
        channel = self.channels[gate.name, peer]
        channel.down.clear()
        if self.pool is not None and self.pool.peer == peer:
            channel.down.append(None)

    def mischief(self) -> list[tuple]:
        choices = super().mischief()
        choices += [(self.start_pool,)] * (4 * (self.pool is None))
        if self.pool is not None:
            choices += [(self.lose_in_pool,)] * 4
            choices += [(self.stop_pool,)] * (self.chance.randrange(3) == 0)
        for process in self.living():
            choices.append((self.pin, process))
            if not process.hung:
                choices += [(self.restart, process)] * (self.chance.randrange(3) == 0)
        return choices

    def restart(self, process: Process) -> None:
        """It dies, and comes back with the disk that it had."""
        self.crash_worker(process)
        self.start_worker(process.name, self.role())
