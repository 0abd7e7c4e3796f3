"""Aho-Corasick automaton: which of many strings a text that still arrives ends with. The work a
character is constant, however many strings there are ("Efficient string matching", 1975)."""

from array import array
from collections import deque
from collections.abc import Sequence

_NONE = 0


class AhoCorasick:
    """The automaton of `strings`; 16 bytes a character of theirs. Nothing in it changes.

    A node is a beginning of some string, the root 0 the empty one. Nodes made for one string
    follow each other, so that the first child of a node is the node after it, known by its
    character alone; only further children stand in a table.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        assert all(strings), "an empty string matches everywhere"
        self.strings = tuple(strings)
        # By node: the character that leads to node + 1 (its code plus 1, or 0 for none), the
        # longest other node that this one ends with, how many characters it is, and which string
        # ends with it (counted from 1).
        self._first = array("I", [0])
        self._fallback = array("I", [0])
        self._chars = array("I", [0])
        self._match = array("I", [_NONE])
        self._further: dict[tuple[int, str], int] = {}
        for place, string in enumerate(self.strings):
            self._insert(string, place + 1)
        self._link()

    def _insert(self, string: str, number: int) -> None:
        node = 0
        for depth, char in enumerate(string, 1):
            child = self._child(node, char)
            if not child:
                child = len(self._first)
                if child == node + 1:
                    self._first[node] = ord(char) + 1
                else:
                    self._further[node, char] = child
                self._first.append(0)
                self._fallback.append(0)
                self._chars.append(depth)
                self._match.append(_NONE)
            node = child
        if not self._match[node]:
            self._match[node] = number

    def _child(self, node: int, char: str) -> int:
        if self._first[node] == ord(char) + 1:
            return node + 1
        return self._further.get((node, char), 0)

    def _link(self) -> None:
        children: dict[int, list[tuple[str, int]]] = {}
        for (node, char), child in self._further.items():
            children.setdefault(node, []).append((char, child))
        nodes = deque([0])
        while nodes:
            node = nodes.popleft()
            below = children.pop(node, [])
            if self._first[node]:
                below = [(chr(self._first[node] - 1), node + 1), *below]
            for char, child in below:
                fallback = self.step(self._fallback[node], char) if node else 0
                self._fallback[child] = fallback
                # Of the strings that end together the longest wins: its own before a shorter end's.
                if not self._match[child]:
                    self._match[child] = self._match[fallback]
                nodes.append(child)

    def step(self, node: int, char: str) -> int:
        """The longest beginning of a string that the text ends with after `char`. Steps back
        are paid for by earlier characters: over a text the work is linear."""
        first, further, code = self._first, self._further, ord(char) + 1
        while True:
            if first[node] == code:
                return node + 1
            child = further.get((node, char), 0) if further else 0
            if child or not node:
                return child
            node = self._fallback[node]

    def matched(self, node: int) -> str | None:
        """The string that ends here, if one does."""
        number = self._match[node]
        return self.strings[number - 1] if number else None

    def held_chars(self, node: int) -> int:
        """How many of the last characters may still become a string."""
        return self._chars[node]
