"""A tree of guesses while it grows: which of them are gone on from, and which are drafted (after
EAGLE-2, Li et al. 2024: the likeliest, by the product of the shares on the way to each).
"""

from collections.abc import Sequence

import torch

from tandem.facts.steps import MOST_DRAFT_TOKENS
from tandem.facts.token_tree import TokenTree
from tandem.kernels.sampling import NO_TOKEN, DraftCandidates

ROOT = -1


class GrowingTree:
    """The `most` likeliest guesses are to be drafted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        # Logarithms of how likely it is that all on the way to a guess are kept, and it.
        self._likely: list[float] = []
        # Guesses that were gone on from, in that order.
        self.grown: list[int] = []

    def grow(self, number: int, tokens: Sequence[int], shares: Sequence[float]) -> None:
        """These may come behind guess `number`, or behind what is known (`ROOT`), with logarithms
        of their shares."""
        likely, depth = 0.0, 1
        if number != ROOT:
            self.grown.append(number)
            likely, depth = self._likely[number], self.depths[number] + 1
        for token, share in zip(tokens, shares, strict=True):
            if token != NO_TOKEN:
                self.tokens.append(token)
                self.parents.append(number)
                self.depths.append(depth)
                self._likely.append(likely + share)

    def path_tokens(self, number: int) -> list[int]:
        """The tokens that lead to this guess, and its own; none to `ROOT`."""
        found: list[int] = []
        while number != ROOT:
            found.append(self.tokens[number])
            number = self.parents[number]
        return found[::-1]

    def worth_growing(self, most: int) -> list[int]:
        """The guesses to go on from next, at most so many: behind whom one could still come that is
        among the likeliest."""
        best = self._best()
        # Nobody is likelier than whom it comes behind: behind the last comes nobody that counts.
        able = best if len(best) < self._most else best[:-1]
        room = MOST_DRAFT_TOKENS - len(self.grown)
        return [number for number in able if number not in self.grown][: min(most, room)]

    def tree(self) -> TokenTree:
        """The likeliest guesses."""
        best = self._best()
        place = {number: at for at, number in enumerate(best)} | {ROOT: ROOT}
        tokens = tuple(self.tokens[number] for number in best)
        parents = tuple(place[self.parents[number]] for number in best)
        return TokenTree(tokens, () if parents == tuple(range(-1, len(best) - 1)) else parents)

    def _best(self) -> list[int]:
        order = sorted(range(len(self.tokens)), key=lambda number: -self._likely[number])
        return order[: self._most]


def candidate_shares(candidates: DraftCandidates) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and logarithms of their shares among the candidates of their row."""
    shares_RN = torch.log_softmax(candidates.scores, dim=1)
    return candidates.tokens.tolist(), shares_RN.tolist()
