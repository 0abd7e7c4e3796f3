"""What other workers export: whether their KV can be read here, whether an order to do so can be
carried out, and which of their ranks has which part of what this rank needs.

Everything here came over the network: nothing about it is taken on trust. Arithmetic on layers,
heads and counts; knows no bytes and no addresses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import KvExport, KvGeometry, KvShard, MoveKv
from tandem.kv.layout import STORED, is_wire_dtype

# Far beyond any model and any pool; keeps all arithmetic within 64 bits.
MOST_CELLS = 1 << 20
MOST_TOKENS = 1 << 16
MOST_BLOCKS = 1 << 32
MOST_BYTES = 1 << 52
VERSION_LIMIT = 1 << 64


def objection(mine: KvExport, theirs: KvExport) -> str | None:
    """Why `mine` can never read KV from `theirs`, in one sentence; None when it can."""
    if (theirs.model, theirs.revision) != (mine.model, mine.revision):
        return (
            f"it serves {theirs.model!r} at revision {theirs.revision!r}, "
            f"not {mine.model!r} at revision {mine.revision!r}"
        )
    if not theirs.identity or theirs.identity != mine.identity:
        return (
            f"it computes other numbers (identity {theirs.identity[:8] or 'unknown'}, not "
            f"{mine.identity[:8] or 'unknown'}): other weights, another configuration, precision "
            "or arithmetic"
        )
    problem = _strange_geometry(mine.geometry, theirs.geometry) or _strange_extent(theirs)
    if problem:
        return problem
    if missing := uncovered(theirs):
        return f"its ranks leave out {missing} of the model's (layer, KV head) pairs"
    names = {endpoint.connector for shard in mine.shards for endpoint in shard.endpoints}
    for shard in theirs.shards:
        offered = {endpoint.connector for endpoint in shard.endpoints}
        if names and not names & offered:
            return f"its rank {shard.rank} offers {_listed(offered)}, not {_listed(names)}"
    return None


def order_objection(order: MoveKv, mine: KvExport, theirs: KvExport) -> str | None:
    """Why this order makes no sense between two workers that may exchange KV."""
    if not 0 <= order.first_token < order.end_token < MOST_BYTES:
        return f"tokens {order.first_token} to {order.end_token} are no range"
    for whose, blocks, export in (
        ("the source", order.source_blocks, theirs),
        ("this worker", order.target_blocks, mine),
    ):
        size = export.geometry.block_size
        wanted = -(-order.end_token // size) - order.first_token // size
        if len(blocks) != wanted:
            return f"{wanted} blocks of {whose} hold these tokens, and {len(blocks)} are named"
        if min(blocks) < 0 or max(blocks) >= export.block_count:
            return f"{whose} has blocks 0 to {export.block_count - 1}, and others are named"
    if len(set(order.target_blocks)) != len(order.target_blocks):
        return "a block of this worker is named twice"
    if len(order.source_versions) != len(order.source_blocks):
        return "blocks and versions differ in number"
    # No block that was ever handed out has version 0: its metadata has not been written.
    if min(order.source_versions) < 1 or max(order.source_versions) >= VERSION_LIMIT:
        return "a version is out of range"
    return None


def _strange_geometry(mine: KvGeometry, theirs: KvGeometry) -> str | None:
    for what, own, other in (
        ("layers", mine.layers, theirs.layers),
        ("KV heads", mine.kv_heads, theirs.kv_heads),
        ("values a head", mine.head_dim, theirs.head_dim),
    ):
        if own != other:
            return f"its KV has {other} {what}, not {own}"
    if theirs.dtype not in STORED:
        return f"no codec for its KV, stored as {theirs.dtype!r}"
    sizes = sorted((mine.block_size, theirs.block_size))
    if not 0 < sizes[0] <= sizes[1] <= MOST_TOKENS or sizes[1] % sizes[0]:
        return f"blocks of {theirs.block_size} and of {mine.block_size} tokens do not divide"
    return None


def _strange_extent(theirs: KvExport) -> str | None:
    geometry = theirs.geometry
    if not 0 < theirs.block_count <= MOST_BLOCKS:
        return f"it claims to have {theirs.block_count} blocks"
    if geometry.layers * geometry.kv_heads > MOST_CELLS:
        return f"{geometry.layers} layers of {geometry.kv_heads} KV heads are beyond any model"
    row_bytes = geometry.head_dim * 8
    block_bytes = geometry.layers * 2 * geometry.kv_heads * geometry.block_size * row_bytes
    if block_bytes * theirs.block_count > MOST_BYTES:
        return f"it claims to have {theirs.block_count} blocks of {block_bytes} bytes"
    copies = theirs.encoded
    if copies and not (0 < copies.slots <= theirs.block_count and is_wire_dtype(copies.dtype)):
        return f"it claims to keep {copies.slots} blocks as {copies.dtype!r}"
    for shard in theirs.shards:
        if not _inside(geometry, shard):
            return (
                f"its rank {shard.rank} claims {shard.layers} layers from {shard.first_layer} and "
                f"{shard.heads} KV heads from {shard.first_head}, which the model does not have"
            )
    ranks = [shard.rank for shard in theirs.shards]
    if len(set(ranks)) != len(ranks):
        return "two of its shards claim one rank"
    return None


def _inside(geometry: KvGeometry, shard: KvShard) -> bool:
    return (
        0 <= shard.first_layer < shard.first_layer + shard.layers <= geometry.layers
        and 0 <= shard.first_head < shard.first_head + shard.heads <= geometry.kv_heads
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no connector"


@dataclass(frozen=True, slots=True)
class SharedRuns:
    """What this rank reads from one rank of a source: run `source[i]` of a block there is run
    `target[i]` of a block here. Runs count `(layer, k/v, head)` of the shard, row-major; `source`
    ascends."""

    shard: KvShard
    source: NDArray[np.int64]
    target: NDArray[np.int64]


def uncovered(export: KvExport) -> int:
    """How many (layer, head) cells of the model no shard holds."""
    held = np.zeros((export.geometry.layers, export.geometry.kv_heads), dtype=bool)
    for shard in export.shards:
        held[_extent(shard)] = True
    return int(held.size - held.sum())


def shared_runs(mine: KvShard, theirs: Sequence[KvShard]) -> tuple[SharedRuns, ...]:
    """From whom to read each run of `mine`, exactly once: from the rank that has most of what is
    still missing, among equals from the one that stands as far down the line as `mine`, so that
    readers of replicated heads spread over the replicas. Runs that nobody has are left out."""
    missing = np.zeros(_corner(mine, *theirs), dtype=bool)
    missing[_extent(mine)] = True
    turned = sorted(
        ((shard.rank - mine.rank) % len(theirs), index) for index, shard in enumerate(theirs)
    )
    waiting = [theirs[index] for _, index in turned]
    found = []
    while waiting:
        counts = [int(missing[_extent(shard)].sum()) for shard in waiting]
        best, count = max(enumerate(counts), key=itemgetter(1))
        if not count:
            break
        shard = waiting.pop(best)
        taken = np.zeros_like(missing)
        taken[_extent(shard)] = missing[_extent(shard)]
        missing &= ~taken
        found.append(_runs(shard, mine, np.argwhere(taken)))
    return tuple(found)


def _runs(theirs: KvShard, mine: KvShard, cells: NDArray[np.int64]) -> SharedRuns:
    """`cells` are (layer, head) of the whole model."""
    source, target = _run_numbers(theirs, cells), _run_numbers(mine, cells)
    order = np.argsort(source)
    return SharedRuns(theirs, source[order], target[order])


def _run_numbers(shard: KvShard, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    layer, head = (cells - (shard.first_layer, shard.first_head)).T
    sides = np.arange(2, dtype=np.int64)
    numbers: NDArray[np.int64] = (layer[:, None] * 2 + sides) * shard.heads + head[:, None]
    return numbers.reshape(-1)


def _extent(shard: KvShard) -> tuple[slice, slice]:
    return (
        slice(shard.first_layer, shard.first_layer + shard.layers),
        slice(shard.first_head, shard.first_head + shard.heads),
    )


def _corner(*shards: KvShard) -> tuple[int, int]:
    return (
        max(shard.first_layer + shard.layers for shard in shards),
        max(shard.first_head + shard.heads for shard in shards),
    )
