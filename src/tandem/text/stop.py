"""Stop strings: whether an answer has reached one, and how much of it is certainly before one.

The rule does not depend on how the text is cut into pieces: the match that ends first wins, and of
those that end together the longest. The work a character is constant, however many stop strings
there are: they make one automaton, which all choices of a call share.
"""

from collections import deque

from tandem.text.aho_corasick import AhoCorasick


def partial_match_chars(text: str, needle: str) -> int:
    """Length of the longest end of `text` that may still grow into `needle`."""
    for chars in range(min(len(needle) - 1, len(text)), 0, -1):
        if text.endswith(needle[:chars]):
            return chars
    return 0


class StopMatcher:
    """Lets the text of one choice through until a stop string; holds back what may become one.

    `matched` is the stop string found, after which everything is swallowed.
    """

    def __init__(self, stops: AhoCorasick, *, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._node = 0
        # What is held back: pieces in their order, `_held_chars` in all.
        self._held: deque[str] = deque()
        self._held_chars = 0
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain now."""
        if self.matched is not None:
            return ""
        stops, node = self._stops, self._node
        if not stops.strings:
            return text
        for place, char in enumerate(text):
            node = stops.step(node, char)
            stop = stops.matched(node)
            if stop is not None:
                self.matched = stop
                self._hold(text[: place + 1])
                return self._release(0 if self._include_stop else len(stop), swallow=True)
        self._node = node
        self._hold(text)
        return self._release(stops.held_chars(node), swallow=False)

    def finish(self) -> str:
        """What was held back, since no more text comes."""
        return self._release(0, swallow=False)

    def _hold(self, text: str) -> None:
        if text:
            self._held.append(text)
            self._held_chars += len(text)

    def _release(self, keep_chars: int, *, swallow: bool) -> str:
        """All that is held but the last `keep_chars`, which stay or are swallowed."""
        parts = []
        while self._held_chars > keep_chars:
            part = self._held.popleft()
            surplus = self._held_chars - keep_chars
            if surplus < len(part):
                self._held.appendleft(part[surplus:])
                part = part[:surplus]
            parts.append(part)
            self._held_chars -= len(part)
        if swallow:
            self._held.clear()
            self._held_chars = 0
        return "".join(parts)
