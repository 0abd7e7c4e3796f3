"""KV blocks off the device: how they are named, and how their tiers fare."""

from dataclasses import dataclass

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
    `reason` says so. Blocks are `spoilt` when they failed their check, and were dropped."""

    tier: Tier
    on: bool
    blocks: int
    capacity_blocks: int
    stored_blocks: int = 0
    fetched_blocks: int = 0
    missed_blocks: int = 0
    spoilt_blocks: int = 0
    failures: int = 0
    fetch_s_per_token: float = 0.0
    compute_s_per_token: float = 0.0
    reason: str = ""
