"""Whether one worker can read another's KV, and whether an order to do so can be carried out.

Everything here came over the network: nothing about it is taken on trust.
"""

from collections.abc import Iterable

from tandem.facts.kv_export import KvExport, KvGeometry, KvShard, MoveKv
from tandem.kv.layout import DTYPE_BYTES, is_wire_dtype
from tandem.kv.transfer.shards import uncovered

# Far beyond any model and any pool; keeps all arithmetic within 64 bits.
MOST_CELLS = 1 << 20
MOST_TOKENS = 1 << 16
MOST_BLOCKS = 1 << 32
MOST_BYTES = 1 << 52
VERSION_LIMIT = 1 << 64


def objection(mine: KvExport, theirs: KvExport, wire: str | None = None) -> str | None:
    """Why `mine` can never read KV from `theirs` (through `wire`, if another precision is used on
    the way), in one sentence; None when it can."""
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
    if wire is not None and not is_wire_dtype(wire):
        return f"no codec for KV as {wire!r} on the way"
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
    if theirs.dtype not in DTYPE_BYTES:
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
