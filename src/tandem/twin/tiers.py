"""The tier engine of a simulated worker: what live is done by threads over memory, disk and the
shared pool is done here by transfers over the links between them. Books of names only; what each
tier holds and gives up is decided by the worker's own machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.cluster.node.inbound_transfers import Order
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.node import BlocksFetched, BlocksKept, BlocksStaged, NodeEvent
from tandem.twin.block_contents import BlockContents
from tandem.twin.network.paths import path_between_tiers
from tandem.twin.recorder import Recorder
from tandem.twin.shared_pool import PoolRead, SimulatedPoolClient
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.transfers import Transfers

STAGED = "to staging"


@dataclass(slots=True)
class FetchUnderWay:
    """`names[i]` comes from `tiers[i]` into `target_blocks[i]`; `limit` is the first
    block that is not to be had. The `parts` are not over yet, each with the transfer that brings
    it, if it is known."""

    fetch_id: int
    tiers: Sequence[Tier]
    names: Sequence[BlockName]
    target_blocks: Sequence[int]
    order: Order | None
    limit: int
    started_ns: int
    parts: dict[Tier, int | PoolRead | None] = field(default_factory=dict)
    moved_bytes: float = 0.0
    corrupt: tuple[bytes, ...] = ()
    missing: tuple[bytes, ...] = ()
    problem: str = ""

    def ends_at(self, index: int, *, missing: bool = False, corrupt: bool = False) -> None:
        """Block `index` is not to be had: nobody needs those behind it."""
        digest = self.names[index].digest
        self.limit = min(self.limit, index)
        self.missing += (digest,) if missing else ()
        self.corrupt += (digest,) if corrupt else ()


class SimulatedTiers:
    """One worker's. `stores` are its memory and its disk; `pool` is its way to the shared pool.
    What is done goes to `post`."""

    def __init__(
        self,
        worker: str,
        block_size: int,
        block_bytes: float,
        stores: Mapping[Tier, SimulatedStore],
        pool: SimulatedPoolClient | None,
        transfers: Transfers,
        recorder: Recorder,
        *,
        order_of: Callable[[int], Order | None],
        clock: Callable[[], int],
        post: Callable[[NodeEvent], None],
        contents: BlockContents | None = None,
    ) -> None:
        self.stores = stores
        self._worker = worker
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._pool = pool
        self._transfers = transfers
        self._recorder = recorder
        self._order_of = order_of
        self._clock = clock
        self._post = post
        self._contents = contents
        self._fetches: dict[int, FetchUnderWay] = {}

    def stage_blocks(self, copy_id: int, blocks: tuple[int, ...]) -> None:
        """Over the link between device and host memory."""

        def ended(arrived: bool, _seconds: float) -> None:
            staged = arrived and self.stores[Tier.HOST].up
            if staged and self._contents is not None:
                self._contents.stage_contents(copy_id, blocks)
            self._post(BlocksStaged(copy_id, staged))

        self._transfers.start(
            STAGED,
            len(blocks) * self._block_bytes,
            path_between_tiers(self._worker, Tier.DEVICE, Tier.HOST),
            ended,
            urgent=False,
        )

    def keep_staged(
        self,
        copy_id: int,
        tier: Tier,
        rows: tuple[int, ...],
        names: tuple[BlockName, ...],
    ) -> None:
        """From the staging memory, which is host memory."""
        if self._contents is not None:
            self._contents.keep_contents(copy_id, rows, names)
        if tier is Tier.REMOTE:
            assert self._pool is not None
            self._pool.offer(names, lambda kept, problem: self._kept(copy_id, tier, kept, problem))
        else:
            self._write(copy_id, tier, names, () if tier is Tier.HOST else (Tier.HOST, tier))

    def drop_staged(self, copy_id: int) -> None:
        """Memory for it is taken into account nowhere else."""
        if self._contents is not None:
            self._contents.drop_contents(copy_id)

    def copy_between_tiers(
        self, copy_id: int, source: Tier, target: Tier, names: tuple[BlockName, ...]
    ) -> None:
        if source is Tier.REMOTE:
            assert self._pool is not None
            self._pool.read(
                names,
                f"to {target}",
                lambda read: self._write(copy_id, target, names[: read.blocks], ()),
                urgent=False,
            )
            return
        store = self.stores[source]
        if not store.up:
            self._kept(copy_id, target, (), f"tier {source} is down")
            return
        found = [
            name
            for name in names
            if name.digest in store.blocks and name.digest not in store.corrupt
        ]
        self._write(copy_id, target, found, (source, target))

    def forget_in_tier(self, tier: Tier, digests: tuple[bytes, ...]) -> None:
        self.stores[tier].discard(digests)

    def fetch_blocks(
        self,
        fetch_id: int,
        tiers: tuple[Tier, ...],
        names: tuple[BlockName, ...],
        target_blocks: tuple[int, ...],
    ) -> None:
        """All tiers at the same time, each up to its first block that is not to be had."""
        fetch = self._fetches[fetch_id] = FetchUnderWay(
            fetch_id,
            tiers,
            names,
            target_blocks,
            self._order_of(fetch_id),
            len(names),
            self._clock(),
        )
        fetch.parts = dict.fromkeys(tiers)
        for tier in list(fetch.parts):
            self._fetch_part(fetch, tier)

    def end_fetch(self, fetch_id: int) -> None:
        fetch = self._fetches.get(fetch_id)
        if fetch is None:
            return
        fetch.limit, fetch.problem = 0, "stopped"
        for part in fetch.parts.values():
            if isinstance(part, PoolRead):
                part.cancel()
            elif part is not None:
                self._transfers.cancel(part)
        fetch.parts.clear()
        self._finish(fetch)

    def _fetch_part(self, fetch: FetchUnderWay, tier: Tier) -> None:
        rows = [index for index, of in enumerate(fetch.tiers) if of is tier]
        names = [fetch.names[index] for index in rows]
        if tier is Tier.REMOTE:
            assert self._pool is not None
            read = self._pool.read(
                names,
                str(tier),
                lambda read: self._pool_part_ended(fetch, rows, read),
                urgent=True,
            )
            if read.parts:
                # Otherwise nobody of the pool was there, and it is over already.
                fetch.parts[tier] = read
            return
        store = self.stores[tier]
        if not store.up:
            fetch.ends_at(rows[0])
            fetch.problem = f"tier {tier} is down"
            self._part_over(fetch, tier)
            return
        found = store.first_missing(names)
        if found < len(names):
            fetch.ends_at(rows[found], missing=True)
            self._transfers.miss(str(tier))
        if not found:
            self._part_over(fetch, tier)
            return

        def ended(arrived: bool, _seconds: float) -> None:
            if not arrived:
                fetch.ends_at(rows[0])
                fetch.problem = fetch.problem or "the transfer was lost"
            else:
                self._check(fetch, store, rows[:found], names[:found])
                fetch.moved_bytes += found * self._block_bytes
            self._part_over(fetch, tier)

        fetch.parts[tier] = self._transfers.start(
            str(tier),
            found * self._block_bytes,
            path_between_tiers(self._worker, tier, Tier.DEVICE),
            ended,
            urgent=True,
        )

    def _check(
        self,
        fetch: FetchUnderWay,
        store: SimulatedStore,
        rows: Sequence[int],
        names: Sequence[BlockName],
    ) -> None:
        sound = store.first_corrupt(names)
        if sound < len(names):
            fetch.ends_at(rows[sound], corrupt=True)
            self._transfers.miss(str(fetch.tiers[rows[sound]]))
            store.discard([names[sound].digest])

    def _pool_part_ended(self, fetch: FetchUnderWay, rows: Sequence[int], read: PoolRead) -> None:
        if read.blocks < len(rows):
            index = rows[read.blocks]
            fetch.ends_at(index, missing=read.missing, corrupt=read.corrupt)
            fetch.problem = fetch.problem or read.problem
        fetch.moved_bytes += read.blocks * self._block_bytes
        self._part_over(fetch, Tier.REMOTE)

    def _part_over(self, fetch: FetchUnderWay, tier: Tier) -> None:
        fetch.parts.pop(tier, None)
        if not fetch.parts:
            self._finish(fetch)

    def _finish(self, fetch: FetchUnderWay) -> None:
        # An end may be called for twice while the last part ends.
        if self._fetches.pop(fetch.fetch_id, None) is None:
            return
        if self._contents is not None:
            self._contents.fetch_contents(fetch.names[: fetch.limit], fetch.target_blocks)
            self._contents.spoil_contents(fetch.target_blocks[fetch.limit :])
        # What is prefetched is found on the device later, or not at all.
        if (order := fetch.order) is not None:
            left_tokens = order.end_token - order.first_token
            for tier in fetch.tiers[: fetch.limit]:
                tokens = min(self._block_size, left_tokens)
                self._recorder.reused(order.request_id, tier, tokens)
                left_tokens -= tokens
        self._post(
            BlocksFetched(
                fetch.fetch_id,
                fetch.limit,
                round(fetch.moved_bytes),
                (self._clock() - fetch.started_ns) / 1e9,
                fetch.corrupt,
                fetch.missing,
                fetch.problem,
            )
        )

    def _write(
        self, copy_id: int, tier: Tier, names: Sequence[BlockName], way: tuple[Tier, ...]
    ) -> None:
        """Over the links from the first of `way` to the other; an empty one takes no time."""
        store = self.stores[tier]
        if not store.up:
            self._kept(copy_id, tier, (), f"tier {tier} is down")
            return
        if not way or not names:
            self._put(copy_id, tier, names)
            return

        def ended(arrived: bool, _seconds: float) -> None:
            if arrived and store.up:
                self._put(copy_id, tier, names)
            else:
                self._kept(copy_id, tier, (), "the transfer was lost")

        self._transfers.start(
            f"to {tier}",
            len(names) * self._block_bytes,
            path_between_tiers(self._worker, *way),
            ended,
            urgent=False,
        )

    def _put(self, copy_id: int, tier: Tier, names: Sequence[BlockName]) -> None:
        kept = self.stores[tier].put(names)
        self._kept(copy_id, tier, kept, "" if len(kept) == len(names) else f"tier {tier} is full")

    def _kept(self, copy_id: int, tier: Tier, kept: tuple[bytes, ...], problem: str = "") -> None:
        self._post(BlocksKept(copy_id, tier, kept, problem))
