"""The tokens of a sequence: a prompt that its sister sequences may share, and what follows it."""

from array import array
from collections.abc import Iterable, Sequence
from typing import overload


class KnownTokens(Sequence[int]):
    """Grows at its end. The prompt never changes and is not copied: 64 choices of one long prompt
    are one prompt. Slices are arrays of their own. `later` is what follows the prompt."""

    __slots__ = ("_prompt", "_prompt_tokens", "later")

    def __init__(self, prompt: Sequence[int], later: Iterable[int] = ()) -> None:
        self._prompt = prompt
        self._prompt_tokens = len(prompt)
        self.later = array("I", later)

    def __len__(self) -> int:
        return self._prompt_tokens + len(self.later)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> "array[int]": ...

    def __getitem__(self, place: int | slice) -> "int | array[int]":
        prompt_tokens = self._prompt_tokens
        if not isinstance(place, slice):
            place = range(len(self))[place]
            known = place < prompt_tokens
            return self._prompt[place] if known else self.later[place - prompt_tokens]
        first, end, step = place.indices(len(self))
        assert step == 1
        found = array("I", self._prompt[first:end])
        if end > prompt_tokens:
            found += self.later[max(0, first - prompt_tokens) : end - prompt_tokens]
        return found

    def extend(self, tokens: Iterable[int]) -> None:
        self.later.extend(tokens)
