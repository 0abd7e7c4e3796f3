"""The hit ratio of one shared prefix cache over a trace.

No engine, no time to compute: only which blocks are resident when a request asks. Answers are not
cached. A hit is the longest prefix of a request's block ids that are all resident; its tokens are
those of its blocks, and no more than the prompt has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Protocol

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.policy.eviction.policies import make_eviction


class BlockCache(Protocol):
    """A cache that a trace is replayed against."""

    def admit(self, block_ids: Sequence[int], now_ns: int) -> int:
        """How many of the first blocks were resident; then all of them are."""
        ...


class BoundedCache:
    """At most `capacity_blocks` blocks, with one of the `EVICTIONS`; None never evicts.

    A request's blocks are touched or inserted last to first, so that the root ends as the most
    recent one and never goes before its children; only then are victims taken.
    """

    def __init__(self, capacity_blocks: int | None, eviction: str = "lru") -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise InvalidConfiguration(f"capacity must be at least 1 block, got {capacity_blocks}")
        self._capacity = capacity_blocks
        self._order = make_eviction(eviction, capacity_blocks or 0)
        self._resident: set[int] = set()

    def admit(self, block_ids: Sequence[int], now_ns: int) -> int:
        resident = self._resident
        hit_blocks = _leading(block_ids, resident)
        if self._capacity is None:
            resident.update(block_ids)
            return hit_blocks
        touch, insert = self._order.touch, self._order.insert
        for block_id in reversed(block_ids):
            if block_id in resident:
                touch(block_id, now_ns)
            else:
                resident.add(block_id)
                insert(block_id, now_ns)
        while len(resident) > self._capacity:
            victim = self._order.victim(now_ns)
            assert victim is not None, "a full cache has something to give up"
            self._order.remove(victim)
            resident.remove(victim)
        return hit_blocks


class ExpiringCache:
    """Any number of blocks, each for `ttl_s` seconds after its last use (a later use renews it)."""

    def __init__(self, ttl_s: float) -> None:
        if not ttl_s > 0:
            raise InvalidConfiguration(f"ttl must be more than 0 seconds, got {ttl_s:g}")
        self._ttl_ns = round(ttl_s * 1e9)
        self._used_ns: dict[int, int] = {}

    def admit(self, block_ids: Sequence[int], now_ns: int) -> int:
        used_ns, hit_blocks = self._used_ns, 0
        for block_id in block_ids:
            last_ns = used_ns.get(block_id)
            if last_ns is None or now_ns - last_ns > self._ttl_ns:
                break
            hit_blocks += 1
        for block_id in block_ids:
            used_ns[block_id] = now_ns
        return hit_blocks


@dataclass(frozen=True, slots=True)
class CacheHits:
    """What a replay found. `mean_request_share` is the mean over the requests of each one's own
    share of hit tokens, in which a short prompt weighs as much as a long one."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    blocks: int
    hit_blocks: int
    unique_blocks: int
    mean_request_share: float

    @property
    def token_share(self) -> float:
        """Hit tokens of all prompt tokens, 0 to 1."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def block_share(self) -> float:
        """Hit blocks of all blocks asked for, 0 to 1."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0


def replay_cache(rows: Sequence[TraceRow], cache: BlockCache) -> CacheHits:
    """Every row in the order given. Rows with different block sizes cannot share one cache: raises
    `InvalidConfiguration`."""
    sizes = {row.block_tokens for row in rows}
    if len(sizes) > 1:
        found = ", ".join(map(str, sorted(sizes)))
        raise InvalidConfiguration(
            f"trace rows must have one block size, got {found} tokens: replay each trace alone"
        )
    hit_tokens, hit_blocks, shares = 0, 0, []
    for row in rows:
        found_blocks = cache.admit(row.block_ids, round(row.arrival_s * 1e9))
        found_tokens = min(found_blocks * row.block_tokens, row.prompt_tokens)
        hit_blocks += found_blocks
        hit_tokens += found_tokens
        shares.append(found_tokens / row.prompt_tokens)
    return CacheHits(
        requests=len(rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        hit_tokens=hit_tokens,
        blocks=sum(len(row.block_ids) for row in rows),
        hit_blocks=hit_blocks,
        unique_blocks=len({block_id for row in rows for block_id in row.block_ids}),
        mean_request_share=fsum(shares) / len(shares) if shares else 0.0,
    )


def _leading(block_ids: Sequence[int], resident: set[int]) -> int:
    for place, block_id in enumerate(block_ids):
        if block_id not in resident:
            return place
    return len(block_ids)
