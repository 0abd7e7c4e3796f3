"""Has the answer reached a stop string, and how much of it is certainly before one?

The rule does not depend on how the text is cut into pieces: the match that ends first wins, and of
those that end together the longest.
"""

from collections.abc import Sequence


def partial_match_chars(text: str, needles: Sequence[str]) -> int:
    """Length of the longest end of `text` that may still grow into one of `needles`."""
    longest = 0
    for needle in needles:
        for chars in range(min(len(needle) - 1, len(text)), longest, -1):
            if text.endswith(needle[:chars]):
                longest = chars
                break
    return longest


class StopMatcher:
    """Lets text through until a stop string; holds back what may become one.

    `matched` is the stop string found, after which everything is swallowed.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain now."""
        if self.matched is not None:
            return ""
        text = self._held + text
        places = [(place + len(s), place, s) for s in self._stops if (place := text.find(s)) >= 0]
        if places:
            end, start, self.matched = min(places)
            self._held = ""
            return text[:end] if self._include_stop else text[:start]
        held_chars = partial_match_chars(text, self._stops)
        self._held = text[len(text) - held_chars :]
        return text[: len(text) - held_chars]

    def finish(self) -> str:
        """What was held back, since no more text comes."""
        held, self._held = self._held, ""
        return held
