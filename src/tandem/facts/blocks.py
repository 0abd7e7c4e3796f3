"""Content addressing of KV blocks: a hash over a block's tokens and everything before them.

Two blocks with one hash hold the same KV bytes wherever they lie, so a hash is the unit of reuse,
transfer and routing. The root of a chain covers whatever else shapes those bytes.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, NewType

from msgspec import Meta, Struct

from tandem.facts.bounds import Count

HASH_BYTES = 16
BlockHash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]

# Whose blocks these are, as a chain's root takes it: made by `salt_of` and by nothing else.
Salt = NewType("Salt", str)


def salt_of(tenant: str, cache_salt: str, adapter: str = "") -> Salt:
    """What keeps the cached prefixes of this tenant (empty: of callers without one) under this salt
    and with this adapter (its digest; empty: the model alone) apart from all others: no two of
    these have one salt, whatever clients write."""
    # The length is there for callers without a tenant too: without it, what they write could be
    # the prefix of somebody's name. Only nobody and nothing is written as nothing.
    owner = f"{len(tenant)}:{tenant}{cache_salt}" if tenant or cache_salt else ""
    # Without an adapter it begins with a digit, if with anything. Digests are of one length.
    return Salt(f"adapter {adapter} {owner}" if adapter else owner)


NO_SALT = salt_of("", "")
# A part that says nothing any more: without it, all that was kept would have other names.
_NOTHING = ""


@dataclass(frozen=True, slots=True)
class CacheRoot:
    """Everything beside the tokens that decides a block's bytes.

    `model` is a digest of the model's content (configuration, weights, and the precision that holds
    them), never its name. `arithmetic` says how it is computed: kernels and their version, device,
    precision. `layout` is the canonical description of shape and precision of the KV blocks. Whose
    blocks they are, and which adapter made them, stands in the salt.
    """

    model: str
    arithmetic: str
    layout: bytes

    @property
    def identity(self) -> str:
        """Of the numbers, however they are laid out: workers that differ in it never take each
        other's KV. Empty where it is not known, which is like nothing else."""
        if not self.model:
            return ""
        digest = blake2b(digest_size=HASH_BYTES)
        for part in (self.model, self.arithmetic, _NOTHING):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    def hash(self, salt: Salt) -> bytes:
        """The parent of the first block of every prompt under this salt."""
        return _hash_of_root(self, salt)


# Most requests have one of few salts.
@lru_cache(maxsize=256)
def _hash_of_root(root: CacheRoot, salt: Salt) -> bytes:
    digest = blake2b(digest_size=HASH_BYTES)
    for part in (root.model, root.arithmetic, _NOTHING, salt):
        # The length stands before the text, so that no two lists of parts look alike.
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    digest.update(root.layout)
    return digest.digest()


# Hashes of a sequence's full blocks, in order: a list is its own, a tuple belongs to several.
Chain = list[bytes] | tuple[bytes, ...]


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of one full block. The same in every process and on every machine."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=HASH_BYTES).digest()


def extend_chain(chain: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Append to `chain` the hashes of all full blocks of `tokens` that it does not hold yet."""
    parent = chain[-1] if chain else root
    first, end = len(chain) * block_size, len(tokens) // block_size * block_size
    if first >= end:
        return
    # Packed once: one block at a time costs more than its hash.
    packed = array("I", tokens[first:end]).tobytes()
    block_bytes = block_size * array("I").itemsize
    for start in range(0, len(packed), block_bytes):
        block = packed[start : start + block_bytes]
        parent = blake2b(parent + block, digest_size=HASH_BYTES).digest()
        chain.append(parent)


def grown_chain(chain: Chain, root: bytes, tokens: Sequence[int], block_size: int) -> Chain:
    """`chain` with the hashes of all full blocks of `tokens`. A list is extended in place; a tuple,
    which others have too, becomes a list of its own where there is anything to add."""
    if len(chain) >= len(tokens) // block_size:
        return chain
    own = list(chain) if isinstance(chain, tuple) else chain
    extend_chain(own, root, tokens, block_size)
    return own


class PromptChains:
    """Hashes of the blocks of the newest `prompts`: the n choices of one, which come one after the
    other, have them computed once, and share them until they go on in their own ways. With more
    than one prompt, several processes of a simulator may share this."""

    def __init__(self, block_size: int, prompts: int = 1) -> None:
        self._block_size = block_size
        self._prompts = prompts
        # By root and identity of the tokens, which are kept so that no others take their place.
        self._kept: dict[tuple[bytes, int], tuple[Sequence[int], tuple[bytes, ...]]] = {}

    def chain(self, root: bytes, tokens: Sequence[int]) -> Chain:
        """Of all full blocks of `tokens`, which never change."""
        key = root, id(tokens)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = tokens, self._chain_of(root, tokens)
            if len(self._kept) > self._prompts:
                del self._kept[next(iter(self._kept))]
        return kept[1]

    def _chain_of(self, root: bytes, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """That of the newest prompt, where this is an equal one, or a new one."""
        newest = next(reversed(self._kept), None)
        if newest is not None and newest[0] == root:
            known, same = self._kept[newest]
            if len(known) == len(tokens) and known == tokens:
                return same
        chain: list[bytes] = []
        extend_chain(chain, root, tokens, self._block_size)
        return tuple(chain)


class BlockChanges(Struct, frozen=True):
    """Blocks that a pool began or ceased to hold, in order of `sequence_number`.

    `stored_parents[i]` is the hash before `stored[i]` in its chain. Within one message removals
    come first.
    """

    sequence_number: Count
    removed: tuple[BlockHash, ...]
    stored: tuple[BlockHash, ...]
    stored_parents: tuple[BlockHash, ...]
