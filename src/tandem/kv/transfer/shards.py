"""Which rank of another worker holds which part of what this rank needs.

Arithmetic on layers and heads; knows no bytes, addresses or blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv_export import KvExport, KvShard


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
