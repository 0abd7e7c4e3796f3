"""KV outside its own engine: a worker's exported memory and the order to read from it; blocks off
the device, figures of tiers, and placement on the shared pool.

A worker has one shard a rank: some layers of some KV heads of every block.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta, Struct

from tandem.facts.blocks import BlockHash
from tandem.facts.bounds import Count, Seconds, Size
from tandem.facts.fleet import Tier


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """The KV of a whole model, over all ranks. `dtype` is that of the stored values, as
    `kv.layout` names them."""

    layers: Size
    kv_heads: Size
    head_dim: Size
    block_size: Size
    dtype: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A way to the memory of one rank: `description` is what the connector of that name, and
    nobody else, understands."""

    connector: str
    description: bytes


@dataclass(frozen=True, slots=True)
class KvShard:
    """What one rank holds of every block: `layers` from `first_layer`, `heads` KV heads from
    `first_head`, in memory that `endpoints` lead to, the preferred first."""

    rank: Count
    first_layer: Count
    layers: Count
    first_head: Count
    heads: Count
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class EncodedCopies:
    """A worker keeps copies of the blocks it published last in a narrower precision, as
    `kv.codec` names them, for the way to others: `slots` blocks of them on every rank."""

    dtype: str
    slots: int


@dataclass(frozen=True, slots=True)
class KvExport:
    """Everything another worker must know to read this one's KV. `model` and `revision` are names;
    `identity` is that of the numbers (`CacheRoot.identity`). Two workers that differ in one of
    these, or in geometry beyond block size and dtype, never exchange KV."""

    model: str
    revision: str
    geometry: KvGeometry
    block_count: Size
    shards: tuple[KvShard, ...]
    encoded: EncodedCopies | None = None
    identity: Annotated[str, Meta(max_length=64)] = ""


@dataclass(frozen=True, slots=True)
class MoveKv:
    """Read the KV of tokens `first_token .. end_token` of a request from blocks of the worker
    `source` (of that `incarnation`) into your own.

    `source_blocks[i]` holds the tokens of block `first_token // source block size + i`, and is
    still what was announced while its version is `source_versions[i]`; `target_blocks[i]`
    is to hold block `first_token // target block size + i`. The source's last block may be only
    partly filled; nothing beyond `end_token` is of use.
    """

    transfer_id: int
    request_id: str
    source: str
    incarnation: str
    first_token: Count
    end_token: Count
    source_blocks: tuple[Count, ...]
    source_versions: tuple[Count, ...]
    target_blocks: tuple[Count, ...]


class MoveReport(Struct, frozen=True):
    """How a move ended. When not `arrived`, `problem` says why, and what was written is of no use
    but for the first `tokens` of what was ordered. `moved_bytes` crossed the connector in `spans`
    contiguous pieces within `seconds`."""

    arrived: bool
    connector: str = ""
    moved_bytes: Count = 0
    spans: Count = 0
    seconds: Seconds = 0.0
    problem: str = ""
    tokens: Count = 0


class BlockName(Struct, frozen=True):
    """A full block. `digest` names its content, `parent` is the digest before it in its chain (for
    the first block the root's hash). `first` is the digest of the chain's first block: a chain lies
    together. The block counts to the quota of `tenant`."""

    digest: bytes
    parent: bytes
    first: bytes
    tenant: str = ""


def chain_names(root: bytes, digests: Sequence[bytes], tenant: str = "") -> tuple[BlockName, ...]:
    """The blocks of a chain from its first one on; `root` is the hash of its root."""
    parents = (root, *digests)
    return tuple(
        BlockName(digest, parent, digests[0], tenant)
        for digest, parent in zip(digests, parents, strict=False)
    )


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What the bytes of a block mean; only blocks of one format are exchanged. `root` is the hash
    of the cache root without a salt, `block_bytes` the size of a block over all layers and
    heads."""

    root: BlockHash
    block_bytes: Size


class TierFigures(Struct, frozen=True):
    """One tier as its owner knows it, since its start. `fetch_s_per_token` and
    `compute_s_per_token` are measured (0: not yet); where fetching loses, the tier is not `on` and
    `reason` says so. Blocks are `corrupt` when they failed their check, and were dropped. Of each
    tenant that has a share of its own, `tenant_blocks` are there."""

    tier: Tier
    on: bool
    blocks: Count
    capacity_blocks: Count
    stored_blocks: Count = 0
    fetched_blocks: Count = 0
    missed_blocks: Count = 0
    corrupt_blocks: Count = 0
    failures: Count = 0
    fetch_s_per_token: Seconds = 0.0
    compute_s_per_token: Seconds = 0.0
    reason: str = ""
    tenant_blocks: tuple[tuple[str, Count], ...] = ()


def placement(first: bytes, nodes: Iterable[str]) -> list[str]:
    """All nodes, the one that a chain belongs to first; when that is gone, the next one takes its
    place. `first` is the digest of the chain's first block. A node that joins or leaves moves only
    the chains that it gets or had: rendezvous hashing (Thaler and Ravishankar, "Using name-based
    mappings to increase hit rates", 1998)."""
    return sorted(nodes, key=lambda node: (_weight(first, node), node), reverse=True)


def _weight(first: bytes, node: str) -> bytes:
    return blake2b(node.encode(), digest_size=8, key=first).digest()
