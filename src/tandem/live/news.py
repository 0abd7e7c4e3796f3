"""What happened lately in a server, for whoever looks at it: the latest of each kind, in words."""

from collections import deque

from tandem.facts.overview import Remark

# Of each kind.
MOST_REMARKS = 20


class News:
    """Remarks of some kinds, none of which pushes those of another one out. An `account` is whose
    business a remark is (None: everybody's)."""

    def __init__(self, most: int = MOST_REMARKS) -> None:
        self._most = most
        self._kinds: dict[str, deque[tuple[int, str, str | None]]] = {}

    def add(self, now_ns: int, kind: str, text: str, account: str | None = None) -> None:
        kept = self._kinds.setdefault(kind, deque(maxlen=self._most))
        kept.append((now_ns, text, account))

    def remarks(self, account: str | None, now_ns: int) -> tuple[Remark, ...]:
        """Those that this account may see (None: all), latest last."""
        seen = [
            (at_ns, kind, text)
            for kind, kept in self._kinds.items()
            for at_ns, text, owner in kept
            if account is None or owner in (None, account)
        ]
        return tuple(
            Remark((now_ns - at_ns) / 1e9, kind, text) for at_ns, kind, text in sorted(seen)
        )
