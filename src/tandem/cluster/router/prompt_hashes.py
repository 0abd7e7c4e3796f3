"""Where a router gets the block hashes of a request's known tokens from: computed from the tokens,
or, in a replay that has no tokens, taken from a journal."""

from array import array
from typing import Protocol, TypeAlias

from tandem.facts.blocks import CacheRoot, Chain, PromptChains, grown_chain
from tandem.facts.request import Request

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
    """Hashes the tokens; the choices of one call have their prompt hashed once."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._prompts = PromptChains(block_size)

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
