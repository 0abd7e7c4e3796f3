"""KV blocks off the device: names, formats, figures of tiers, and placement on the shared pool."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from tandem.facts.fleet import Tier


@dataclass(frozen=True, slots=True)
class BlockName:
    """A full block. `digest` names its content, `parent` is the digest before it in its chain (for
    the first block the root's hash). `first` is the digest of the chain's first block: a chain lies
    together. The block counts to the quota of `tenant`."""

    digest: bytes
    parent: bytes
    first: bytes
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What the bytes of a block mean; only blocks of one format are exchanged. `root` is the hash
    of the cache root without a salt, `block_bytes` the size of a block over all layers and
    heads."""

    root: bytes
    block_bytes: int


@dataclass(frozen=True, slots=True)
class TierFigures:
    """One tier as its owner knows it, since its start. `fetch_s_per_token` and
    `compute_s_per_token` are measured (0: not yet); where fetching loses, the tier is not `on` and
    `reason` says so. Blocks are `corrupt` when they failed their check, and were dropped."""

    tier: Tier
    on: bool
    blocks: int
    capacity_blocks: int
    stored_blocks: int = 0
    fetched_blocks: int = 0
    missed_blocks: int = 0
    corrupt_blocks: int = 0
    failures: int = 0
    fetch_s_per_token: float = 0.0
    compute_s_per_token: float = 0.0
    reason: str = ""


def placement(first: bytes, nodes: Iterable[str]) -> list[str]:
    """All nodes, the one that a chain belongs to first; when that is gone, the next one takes its
    place. `first` is the digest of the chain's first block. A node that joins or leaves moves only
    the chains that it gets or had: rendezvous hashing (Thaler and Ravishankar, "Using name-based
    mappings to increase hit rates", 1998)."""
    return sorted(nodes, key=lambda node: (_weight(first, node), node), reverse=True)


def _weight(first: bytes, node: str) -> bytes:
    return blake2b(node.encode(), digest_size=8, key=first).digest()
