"""On which processes of the shared pool does a chain of blocks lie?

Whoever writes, reads or copies asks here and gets the same answer, without asking anybody.
"""

from collections.abc import Iterable
from hashlib import blake2b


def placement(first: bytes, nodes: Iterable[str]) -> list[str]:
    """All nodes, the one that a chain belongs to first; when that is gone, the next one takes its
    place. `first` is the digest of the chain's first block. A node that joins or leaves moves only
    the chains that it gets or had: rendezvous hashing (Thaler and Ravishankar, "Using name-based
    mappings to increase hit rates", 1998)."""
    return sorted(nodes, key=lambda node: (_weight(first, node), node), reverse=True)


def _weight(first: bytes, node: str) -> bytes:
    return blake2b(node.encode(), digest_size=8, key=first).digest()
