"""Fetches: KV blocks read from slower tiers into reserved device blocks, each from one tier and
never twice at once. Prefetch: blocks of queued requests are brought into host memory before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.cluster.audit import invariant
from tandem.cluster.tiers.benefit_gate import BenefitGate, LinkUse
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.tier_caches import CacheEffect, Counts, Effects
from tandem.cluster.tiers.write_through import SharedContent
from tandem.cluster.worker.machine import WorkerMachine
from tandem.cluster.worker.sequence import Phase
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, MoveReport
from tandem.messages.node import BlocksFetched, FetchBlocks
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived

FetchEffects = list[FetchBlocks | CacheEffect]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One order: block `names[i]` belongs into `blocks[i]`, and the gateway has seen it on `tier`:
    only then the pool is asked."""

    fetch_id: int
    names: tuple[BlockName, ...]
    blocks: tuple[int, ...]
    tier: Tier


def prefetch_of(fetch_id: int) -> int:
    """The prefetch of the worker machine that a fetch is for, and the fetch for a prefetch: they
    count downwards, as no move does."""
    return -1 - fetch_id


def is_prefetch(fetch_id: int) -> bool:
    """Whether a fetch is for no request yet."""
    return fetch_id < 0


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A fetch that began at `begun_ns`; for each tier that it reads, what its link gave it then.
    Prefetches have no part of it, since they give way."""

    wanted: Wanted
    order: FetchBlocks
    begun_ns: int
    link_begins: Mapping[Tier, float]


@dataclass(frozen=True, slots=True)
class Ended:
    """A fetch is over. Whether its `report.tokens` are all that was ordered is for the caller."""

    fetch_id: int
    report: MoveReport


class Fetches:
    """Owns the fetches by id. Those that want a block which is being brought into the host memory
    wait for it: nothing is read twice at the same time. `pool_counts` are of the shared pool."""

    def __init__(self, block_size: int, hierarchy: TierHierarchy, shared: SharedContent) -> None:
        self.block_size = block_size
        self.pool_counts = Counts()
        self._hierarchy = hierarchy
        self._shared = shared
        self._waiting: dict[int, Wanted] = {}
        self._under_way: dict[int, UnderWay] = {}
        self._links: dict[Tier, LinkUse] = {tier: LinkUse() for tier in Tier}
        # Those under way that are not wanted any more: how they end is no evidence about the tiers.
        self._stopped: set[int] = set()

    def start_fetch(self, wanted: Wanted, now_ns: int) -> tuple[FetchEffects, Ended | None]:
        """Begin, or wait. Gives its end at once when no tier has any of it."""
        rising = self._hierarchy.rising
        if any(name.digest in rising for name in wanted.names):
            self._waiting[wanted.fetch_id] = wanted
            return [], None
        tiers = self._places(wanted)
        if not tiers:
            return [], _nothing(wanted.fetch_id, "no slower tier has it")
        count = len(tiers)
        fetch = FetchBlocks(wanted.fetch_id, tiers, wanted.names[:count], wanted.blocks[:count])
        distinct = dict.fromkeys(tiers)
        read = () if is_prefetch(wanted.fetch_id) else distinct
        begins = {tier: self._links[tier].begin_fetch(now_ns) for tier in read}
        self._under_way[wanted.fetch_id] = UnderWay(wanted, fetch, now_ns, begins)
        for tier in distinct:
            if tier is not Tier.REMOTE:
                self._hierarchy.caches.read(tier, _of_tier(fetch, tier), now_ns)
        return [fetch], None

    def go_on(self, now_ns: int) -> tuple[FetchEffects, list[Ended]]:
        """A copy has ended: some need not wait any longer."""
        effects: FetchEffects = []
        ended: list[Ended] = []
        waiting, self._waiting = self._waiting, {}
        for wanted in waiting.values():
            begun, end = self.start_fetch(wanted, now_ns)
            effects += begun
            if end is not None:
                ended.append(end)
        return effects, ended

    def stop_fetch(self, fetch_id: int) -> Ended | None:
        """It is not wanted any more. Its end, if it has not begun; else that is still to come."""
        if self._waiting.pop(fetch_id, None) is None:
            self._stopped.add(fetch_id)
            return None
        return _nothing(fetch_id, "not wanted any more")

    def fetch_ended(
        self, event: BlocksFetched, benefit: BenefitGate, now_ns: int
    ) -> tuple[Effects, Ended]:
        """Nobody writes for this fetch any more."""
        under_way = self._under_way.pop(event.fetch_id)
        wanted, fetch = under_way.wanted, under_way.order
        share = self._link_share(under_way, now_ns)
        effects: Effects = []
        for tier in dict.fromkeys(fetch.tiers):
            effects += self._learn(tier, fetch, event)
        if event.fetch_id in self._stopped:
            self._stopped.remove(event.fetch_id)
        else:
            self._judge(fetch, event, share, benefit, now_ns)
        tiers = dict.fromkeys(fetch.tiers[: event.blocks])
        report = MoveReport(
            arrived=False,
            connector="+".join(tiers),
            moved_bytes=event.moved_bytes,
            spans=event.blocks,
            seconds=event.seconds,
            problem=event.problem or _problem(event, wanted),
            tokens=event.blocks * self.block_size,
        )
        return effects, Ended(event.fetch_id, report)

    def audit(self) -> None:
        """Assert that whoever waits has something to wait for."""
        stopped = self._stopped <= self._under_way.keys()
        invariant(stopped, "only fetches under way are being stopped")
        rising = self._hierarchy.rising
        for wanted in self._waiting.values():
            some = any(name.digest in rising for name in wanted.names)
            invariant(some, "a fetch that waits has a block on its way up")

    def ids(self) -> set[int]:
        """Of all that have not ended."""
        return {*self._waiting, *self._under_way}

    def counts_of(self, tier: Tier) -> Counts:
        """What is counted of a tier, the pool included."""
        if tier is Tier.REMOTE:
            return self.pool_counts
        return self._hierarchy.caches.by_tier[tier].counts

    def _places(self, wanted: Wanted) -> tuple[Tier, ...]:
        """Where to read each block from, up to the first that is nowhere."""
        tiers: list[Tier] = []
        for name in wanted.names:
            tier = self._hierarchy.caches.tier_of(name.digest)
            if tier is None and wanted.tier is Tier.REMOTE and self._shared.there:
                tier = Tier.REMOTE
            if tier is None:
                break
            tiers.append(tier)
        return tuple(tiers)

    def _learn(self, tier: Tier, fetch: FetchBlocks, event: BlocksFetched) -> Effects:
        """Update the contents of a tier by the end of a fetch."""
        asked = _of_tier(fetch, tier)
        came = [name.digest for name, of in _rows(fetch, event.blocks) if of is tier]
        corrupt = [digest for digest in asked if digest in event.corrupt]
        missing = [digest for digest in asked if digest in event.missing]
        shared = tier is Tier.REMOTE
        counts = self.counts_of(tier)
        counts.fetched += len(came)
        counts.corrupt += len(corrupt)
        counts.missed += len(missing)
        self._shared.came(came, shared=shared)
        if shared:
            self._shared.lost([*corrupt, *missing])
            return []
        return [*self._hierarchy.caches.drop(tier, [*corrupt, *missing])]

    def _link_share(self, under_way: UnderWay, now_ns: int) -> float:
        """How much of its link's time a fetch had, 0 to 1; the least of its tiers'."""
        share_ns = [
            self._links[tier].end_fetch(begun, now_ns)
            for tier, begun in under_way.link_begins.items()
        ]
        seen_ns = now_ns - under_way.begun_ns
        return min(share_ns) / seen_ns if share_ns and seen_ns else 1.0

    def _judge(
        self,
        fetch: FetchBlocks,
        event: BlocksFetched,
        share: float,
        benefit: BenefitGate,
        now_ns: int,
    ) -> None:
        tiers = dict.fromkeys(fetch.tiers)
        if event.problem and event.blocks < len(fetch.tiers):
            failed = fetch.tiers[event.blocks]
            self.counts_of(failed).failures += 1
            benefit.failed(failed, event.problem, now_ns)
        elif len(tiers) == 1 and event.blocks and event.seconds > 0.0:
            # A fetch from several tiers has no time of each.
            benefit.worked(fetch.tiers[0])
            if is_prefetch(event.fetch_id):
                # It gives way to what requests wait for: how long it takes is no evidence.
                return
            tokens = event.blocks * self.block_size
            benefit.fetched(fetch.tiers[0], tokens, share * event.seconds, now_ns)


def _rows(fetch: FetchBlocks, blocks: int) -> list[tuple[BlockName, Tier]]:
    return list(zip(fetch.names[:blocks], fetch.tiers[:blocks], strict=True))


def _of_tier(fetch: FetchBlocks, tier: Tier) -> Sequence[bytes]:
    return [name.digest for name, of in _rows(fetch, len(fetch.names)) if of is tier]


def _nothing(fetch_id: int, problem: str) -> Ended:
    return Ended(fetch_id, MoveReport(arrived=False, problem=problem))


def _problem(event: BlocksFetched, wanted: Wanted) -> str:
    if event.corrupt:
        return "a block was corrupt"
    return "" if event.blocks == len(wanted.names) else "a block was not there any more"


# So many requests are looked after at once; others have their blocks read when they start.
WAITING_REQUESTS = 64


@dataclass(slots=True)
class Asked:
    """The first `blocks` of a request can be had off the device, also from the pool if `shared`;
    those before `position` have been seen to."""

    blocks: int
    shared: bool
    position: int


class Prefetch:
    """Each block is asked for once; what does not come then is computed, or read when it is its
    turn."""

    def __init__(
        self,
        hierarchy: TierHierarchy,
        shared: SharedContent,
        machine: WorkerMachine,
    ) -> None:
        self._hierarchy = hierarchy
        self._shared = shared
        self._machine = machine
        self._waiting: dict[str, Asked] = {}

    def requests_queued(self, event: RequestsArrived | ImportsArrived | PrefillsArrived) -> Effects:
        """Those of these that did not start at once want their blocks soon."""
        if Tier.HOST not in self._hierarchy.caches.by_tier:
            return []
        imports = event.imports if isinstance(event, RequestsArrived) else event.import_tokens
        # What another worker sends is not asked of the pool.
        pulls = not isinstance(event, ImportsArrived)
        block_size = self._machine.config.block_size
        for request, tokens in zip(event.requests, imports, strict=True):
            sequence = self._machine.unfinished.get(request.request_id)
            waits = sequence is not None and sequence.phase is Phase.WAITING
            blocks = tokens // block_size
            if sequence is None or not waits or len(self._waiting) >= WAITING_REQUESTS:
                continue
            cached = sequence.prefix_hit.likely_cached_tokens // block_size
            if blocks > cached:
                self._waiting[request.request_id] = Asked(blocks, pulls, cached)
        return self.go_on()

    def go_on(self) -> Effects:
        """Ask for as much as may be on its way at once, for those first that came first."""
        effects = Effects()
        for request_id in list(self._waiting):
            if not self._hierarchy.rising_room:
                break
            asked = self._waiting[request_id]
            effects += self._ask(request_id, asked)
            if asked.position >= asked.blocks:
                del self._waiting[request_id]
        return effects

    def _ask(self, request_id: str, asked: Asked) -> Effects:
        sequence = self._machine.unfinished.get(request_id)
        if sequence is None or sequence.phase is not Phase.WAITING:
            asked.position = asked.blocks
            return []
        room = self._hierarchy.rising_room
        names: dict[Tier, list[BlockName]] = {Tier.DISK: [], Tier.REMOTE: []}
        end = asked.blocks = min(asked.blocks, len(sequence.chain))
        while asked.position < end and room:
            position, asked.position = asked.position, asked.position + 1
            tier = self._hierarchy.caches.tier_of(sequence.chain[position])
            if tier is None and asked.shared and self._shared.there:
                tier = Tier.REMOTE
            if tier in names:
                names[tier].append(sequence.block_name(position))
                room -= 1
        effects = Effects()
        for tier, wanted in names.items():
            effects += self._hierarchy.promote(tier, wanted)
        return effects
