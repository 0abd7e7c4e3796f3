"""Guesses at the next tokens of a sequence, of which several may stand for one place: a tree, or a
chain where each place has one (token trees of SpecInfer, Miao et al. 2024, and Medusa).
"""

from collections.abc import Sequence

from msgspec import Struct


class TokenTree(Struct, frozen=True):
    """Token i comes behind token `parents[i]`, which is an earlier one, or behind what is known
    (-1). Without `parents` each comes behind the one before it. A part from the first token on is a
    tree, too: the likeliest tokens come first."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """How many of these stand behind each other at most."""
        if not self.parents:
            return len(self.tokens)
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return max(depths)

    def parent(self, number: int) -> int:
        return self.parents[number] if self.parents else number - 1

    def first(self, count: int) -> "TokenTree":
        """At most so many tokens of it."""
        return TokenTree(self.tokens[:count], self.parents[:count])

    def chain(self) -> "TokenTree":
        """The likeliest of its paths: what comes first behind each token."""
        if not self.parents:
            return self
        tokens: list[int] = []
        here = -1
        for number, token in enumerate(self.tokens):
            if self.parents[number] == here:
                tokens.append(token)
                here = number
        return TokenTree(tuple(tokens))

    def sound(self, vocabulary_tokens: int, most: int) -> "TokenTree":
        """As much of what somebody says is a tree as can be drafted: of at most `most` tokens."""
        if self.parents and len(self.parents) != len(self.tokens):
            return NO_GUESSES
        for number, token in enumerate(self.tokens[:most]):
            if not (0 <= token < vocabulary_tokens and -1 <= self.parent(number) < number):
                return self.first(number)
        return self.first(most)

    def path(self, number: int) -> tuple[int, ...]:
        """The numbers of the tokens that lead to this one, and its own; none to -1."""
        if not self.parents:
            return tuple(range(number + 1))
        found: list[int] = []
        while number >= 0:
            found.append(number)
            number = self.parents[number]
        return tuple(reversed(found))

    def walk(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the tokens that are kept, one behind the other, where these were drawn:
        behind what is known, and behind each token."""
        path: list[int] = []
        here = -1
        for number, token in enumerate(self.tokens):
            # Whoever comes behind another stands behind it here, too.
            if self.parent(number) == here and drawn[here + 1] == token:
                path.append(number)
                here = number
        return tuple(path)


NO_GUESSES = TokenTree()
