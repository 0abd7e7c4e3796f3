"""The prefix index: which worker and tier holds how much of a prompt, kept up to date by block
events, and the port that gives the block hashes of a request. Never sees KV bytes."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tandem.cluster.router.prefix_cache.expectations import Expectations
from tandem.cluster.router.prefix_cache.runs import BlockRuns, HolderSets
from tandem.facts.blocks import BlockChanges, CacheRoot, Chain, PromptChains, grown_chain
from tandem.facts.fleet import Tier
from tandem.facts.request import Request
from tandem.policy.views import TierHits

TokenIds: TypeAlias = "tuple[int, ...] | array[int]"


class PromptHashes(Protocol):
    """`known` is the part of the chain that was asked for before, under the same root; `tokens` are
    all tokens known by now, prompt first. A list may be extended in place."""

    def chain_of(
        self,
        request: Request,
        tokens: TokenIds,
        known: Chain,
        root: CacheRoot,
    ) -> Chain: ...


class ComputedHashes:
    """Hashes the tokens; the choices of one call have their prompt hashed once. A simulator gives
    the `prompts` that its workers use, too."""

    def __init__(self, block_size: int, prompts: PromptChains | None = None) -> None:
        self._block_size = block_size
        self._prompts = prompts or PromptChains(block_size)

    def chain_of(
        self,
        request: Request,
        tokens: TokenIds,
        known: Chain,
        root: CacheRoot,
    ) -> Chain:
        """See `PromptHashes`."""
        parent = root.hash(request.salt)
        if not known:
            known = self._prompts.chain(parent, request.prompt_tokens)
        return grown_chain(known, parent, tokens, self._block_size)


EXPECTED_FOR_NS = 2_000_000_000

# Blocks of a prefix that lie on the device; on device or host; on any tier of the worker.
Lengths = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What is known of one prompt, in tokens: `hits` of the workers that hold something, and how
    much of the prefix lies in the shared pool."""

    hits: dict[str, TierHits] = field(default_factory=dict)
    remote_tokens: int = 0


@dataclass(slots=True)
class _Pool:
    """One tier of one holder: its blocks, and the number of the next report to apply."""

    place: int
    held: dict[bytes, None] = field(default_factory=dict)
    next_sequence_number: int = 0


class PrefixIndex:
    """Follows the reports of all pools and answers lookups.

    A lookup goes along the runs of its chain and keeps, as bits of one integer, the workers whose
    prefix still goes on. The answer is exact at every instant: a block that a pool lost from the
    middle of a prompt ends the prefix there.

    `block_size` is the number of tokens a block; all chains are cut by it. Chains and parents are
    believed: hashes that do not follow from each other make the answers wrong, never unsafe.
    """

    def __init__(self, block_size: int, expected_for_ns: int = EXPECTED_FOR_NS) -> None:
        self._block_size = block_size
        self._sets = HolderSets()
        self._runs = BlockRuns(self._sets)
        self._pools: dict[str, dict[Tier, _Pool]] = {}
        self._expectations = Expectations(expected_for_ns)

    @property
    def resident_blocks(self) -> int:
        """Distinct blocks that lie anywhere."""
        return len(self._runs)

    def apply(self, worker: str, tier: Tier, changes: BlockChanges) -> bool:
        """Take in a pool's report. False: reports are missing before it, nothing was applied, and
        the caller must ask for a snapshot and `resynchronise`. A report that was applied already
        (or is older than the snapshot) changes nothing.

        The first report of a pool has number 0; a worker that restarts is forgotten first. For
        the tier REMOTE, `worker` names a process of the shared pool.
        """
        pool = self._pool(worker, tier)
        if changes.sequence_number != pool.next_sequence_number:
            return changes.sequence_number < pool.next_sequence_number
        parents = dict(zip(changes.stored, changes.stored_parents, strict=True))
        pool.next_sequence_number += 1
        held = pool.held
        if changes.removed:
            removed = [digest for digest in dict.fromkeys(changes.removed) if digest in held]
            for digest in removed:
                del held[digest]
            self._runs.remove(removed, pool.place)
        for digest in held.keys() & parents.keys():
            del parents[digest]
        if parents:
            held.update(dict.fromkeys(parents))
            self._runs.store(list(parents), list(parents.values()), pool.place)
        return True

    def resynchronise(
        self, worker: str, tier: Tier, hashes: Iterable[bytes], next_sequence_number: int
    ) -> None:
        """Replace what is known of one pool by its snapshot; the next report to apply follows."""
        pool = self._pool(worker, tier)
        snapshot = dict.fromkeys(hashes)
        removed = [digest for digest in pool.held if digest not in snapshot]
        stored = [digest for digest in snapshot if digest not in pool.held]
        self._runs.remove(removed, pool.place)
        self._runs.store(stored, (), pool.place)
        pool.held = snapshot
        pool.next_sequence_number = next_sequence_number

    def forget_worker(self, worker: str) -> None:
        """The worker is gone with all it held and was expected to hold. Unknown names are fine."""
        self._expectations.forget_worker(worker)
        pools = self._pools.pop(worker, None)
        if pools is not None:
            for pool in pools.values():
                self._runs.remove(list(pool.held), pool.place)
            self._sets.retire(worker)

    def expect(self, worker: str, chain: Sequence[bytes], now_ns: int) -> None:
        """A request with this chain was sent to the worker: for a while it counts as held on the
        device, until the pool's own reports do so. `now_ns` never goes back."""
        self._expectations.add(worker, chain, now_ns)

    def match(self, chain: Sequence[bytes], now_ns: int) -> PrefixMatch:
        """The longest known prefix at each worker.

        Device tokens are those of the leading blocks that all lie on the device; host tokens of
        those that follow without a gap on device or host; disk tokens of those that follow on any
        tier of the worker. An expected prefix counts as if it lay on the device.
        """
        lengths, remote_blocks = self._resident(chain)
        for worker, blocks in self._expectations.match(chain, now_ns).items():
            device, host, disk = lengths.get(worker, (0, 0, 0))
            lengths[worker] = (max(device, blocks), max(host, blocks), max(disk, blocks))
        return PrefixMatch(self._in_tokens(lengths), remote_blocks * self._block_size)

    def held(self, worker: str, chain: Sequence[bytes]) -> TierHits:
        """The same for one worker, without what it is only expected to hold."""
        lengths, _ = self._resident(chain)
        return self._in_tokens({worker: lengths.get(worker, (0, 0, 0))})[worker]

    def _resident(self, chain: Sequence[bytes]) -> tuple[dict[str, Lengths], int]:
        """The lengths at each worker that holds something, and the blocks of the prefix in the
        shared pool."""
        ends: list[tuple[int, int]] = []
        reached, alive = 0, -1
        for position, holders in self._runs.walk(chain):
            kept = holders.reach & alive
            if kept != alive and reached:
                ends.append((reached, alive ^ kept))
            alive = kept
            if not alive:
                break
            reached = position
        if reached and alive:
            ends.append((reached, alive))
        lengths: dict[str, Lengths] = {}
        remote_blocks = 0
        for end, reach in ends:
            for worker, digit in self._sets.digits(reach):
                if not worker:
                    remote_blocks = end
                elif digit == 7:
                    lengths[worker] = (end, end, end)
                else:
                    device, host, disk = lengths.get(worker, (0, 0, 0))
                    # What reaches further on a faster tier does so on the slower ones too.
                    lengths[worker] = (
                        end if digit & 1 else device,
                        end if digit & 2 else host,
                        end if digit & 4 else disk,
                    )
        return lengths, remote_blocks

    def _in_tokens(self, lengths: dict[str, Lengths]) -> dict[str, TierHits]:
        block_size = self._block_size
        # Many workers hold the same length (all of it, or a system prompt): one value serves all.
        made = {
            (device, host, disk): TierHits(
                device * block_size, (host - device) * block_size, (disk - host) * block_size
            )
            for device, host, disk in dict.fromkeys(lengths.values())
        }
        return {worker: made[blocks] for worker, blocks in lengths.items()}

    def _pool(self, worker: str, tier: Tier) -> _Pool:
        pools = self._pools.setdefault(worker, {})
        pool = pools.get(tier)
        if pool is None:
            pool = pools[tier] = _Pool(self._sets.place(worker, tier))
        return pool

    def audit(self) -> None:
        """Assert that blocks and pools agree on who holds what. For tests and for the auditor."""
        places: dict[bytes, int] = {}
        for pools in self._pools.values():
            for pool in pools.values():
                for digest in pool.held:
                    places[digest] = places.get(digest, 0) | pool.place
        self._runs.audit(places)
