"""The slower tiers of the simulated workers: what they hold, the copies that fill them in the
background, and what the router is told of it."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.cluster.router.request_state import RequestState
from tandem.cluster.tiers.store import TierMove, TierMoves, TierStore
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Tier
from tandem.messages.router import BlocksReported, RouterEvent, StartTransfer
from tandem.messages.worker import EmitTokens
from tandem.policy.eviction.pinned import Pin, Pinned
from tandem.twin.damage import Damage
from tandem.twin.network_paths import path_between_tiers
from tandem.twin.scenario import Pool, Scenario
from tandem.twin.shipping import Shipment, Shipping

PassageOf = Callable[[str], RequestState | None]
TellRouter = Callable[[RouterEvent, int], None]


class Tiers:
    """Owns what lies off the devices, by worker; `hierarchies` share the pool's store."""

    def __init__(self, scenario: Scenario, shipping: Shipping, tell_router: TellRouter) -> None:
        self._block_size = scenario.block_size
        self._eviction = scenario.policies.eviction
        self._shipping = shipping
        self._tell_router = tell_router
        self._sequence_numbers: dict[tuple[str, Tier], int] = {}
        self._parents: dict[bytes, bytes] = {}
        self._block_bytes: dict[str, float] = {}
        self.hierarchies: dict[str, TierMoves] = {}
        self.damage = Damage(self.hierarchies, self._parents, self.report)
        remote_blocks = scenario.remote_blocks
        self._pin_ns = round(scenario.pin_sessions_s * 1e9)
        self._pinned: dict[int, Pinned[bytes]] = {}
        self._remote = self._store(remote_blocks) if remote_blocks else None

    def add_worker(self, name: str, pool: Pool) -> None:
        kind = pool.kind
        self._block_bytes[name] = kind.cost.kv_bytes(self._block_size)
        tiers: dict[Tier, TierStore] = {}
        for tier, blocks in ((Tier.HOST, kind.host_blocks), (Tier.DISK, kind.disk_blocks)):
            if blocks:
                tiers[tier] = self._store(blocks)
        if self._remote is not None:
            tiers[Tier.REMOTE] = self._remote
        self.hierarchies[name] = TierMoves(tiers)

    def read(self, order: StartTransfer, state: RequestState, now_ns: int) -> tuple[bytes, ...]:
        """The blocks that are wanted, if the tier still holds what the index promised; reading
        keeps them from eviction."""
        first = order.first_token // self._block_size
        digests = state.chain[first : -(-order.end_token // self._block_size)]
        store = self.hierarchies[order.target].tiers.get(order.tier)
        if store is None or store.prefix(digests) < len(digests):
            return ()
        store.touch(digests, now_ns)
        return tuple(digests)

    def pin_ended(
        self, worker: str, emission: EmitTokens, state_of: PassageOf, now_ns: int
    ) -> None:
        """Where a session's answer ends with these tokens, keep for a while what the tiers of its
        workers have of it."""
        for wire_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True):
            state = state_of(wire_id) if self._pin_ns and reason else None
            if state is not None and state.submission.session:
                for name in dict.fromkeys((state.prefill, worker)):
                    self._pin(name, state, now_ns)

    def _pin(self, worker: str, state: RequestState, now_ns: int) -> None:
        pin = Pin(now_ns + self._pin_ns, state.view.priority)
        for store in self.hierarchies[worker].tiers.values():
            # The start first: without it, what follows is worth nothing.
            for digest in state.chain[: store.prefix(state.chain)]:
                self._pinned[id(store)].pin(digest, pin, now_ns)

    def write_through(self, worker: str, changes: BlockChanges, now_ns: int) -> None:
        """Blocks were sealed on a device: copy them to the slower tiers in the background."""
        hierarchy = self.hierarchies[worker]
        if hierarchy.tiers:
            self._parents.update(zip(changes.stored, changes.stored_parents, strict=True))
            for move in hierarchy.write_through(changes.stored):
                self.ship(worker, move, now_ns)

    def ship(self, worker: str, move: TierMove, now_ns: int) -> None:
        moved_bytes = len(move.digests) * self._block_bytes[worker]
        cargo = MovingBlocks(self, worker, move)
        path = path_between_tiers(worker, move.source, move.target)
        self._shipping.ship(Shipment(f"to {move.target}", moved_bytes, now_ns, cargo), path, now_ns)

    def _store(self, blocks: int) -> TierStore:
        if not self._pin_ns:
            return TierStore(blocks, self._eviction())
        pinned = Pinned(self._eviction(), blocks // 2)
        store = TierStore(blocks, pinned)
        self._pinned[id(store)] = pinned
        return store

    def lose_worker(self, worker: str) -> None:
        """Its host memory dies with it; its disk survives."""
        host = self.hierarchies[worker].tiers.get(Tier.HOST)
        if host is not None:
            host.clear()
        for tier in (Tier.HOST, Tier.DISK):
            self._sequence_numbers.pop((worker, tier), None)

    def relist(self, worker: str, now_ns: int) -> None:
        """A worker came back: what its disk still holds is news to the router."""
        disk = self.hierarchies[worker].tiers.get(Tier.DISK)
        if disk is not None and (resident := disk.listing()):
            self.report(worker, Tier.DISK, ((), resident), now_ns)

    def report(
        self,
        worker: str,
        tier: Tier,
        changes: tuple[tuple[bytes, ...], tuple[bytes, ...]],
        now_ns: int,
    ) -> None:
        """Tell the router which blocks a tier gave up, and which are new there."""
        removed, stored = changes
        if not removed and not stored:
            return
        number = self._sequence_numbers.get((worker, tier), 0)
        self._sequence_numbers[worker, tier] = number + 1
        parents = tuple(self._parents[digest] for digest in stored)
        news = BlockChanges(number, removed, stored, parents)
        self._tell_router(BlocksReported(worker, tier, news), now_ns)


@dataclass(frozen=True, slots=True)
class MovingBlocks:
    """Blocks on their way to a slower tier of a worker."""

    tiers: Tiers
    worker: str
    move: TierMove

    def arrived(self, now_ns: int) -> None:
        self.tiers.damage.mended(self.worker, self.move.target, self.move.digests)
        arrival = self.tiers.hierarchies[self.worker].arrived(self.move, now_ns)
        reporter = "" if self.move.target is Tier.REMOTE else self.worker
        changes = (arrival.evicted, arrival.added)
        self.tiers.report(reporter, self.move.target, changes, now_ns)
        for move in arrival.moves:
            self.tiers.ship(self.worker, move, now_ns)

    def lost(self, now_ns: int) -> None:
        del now_ns
        self.tiers.hierarchies[self.worker].lost(self.move)
