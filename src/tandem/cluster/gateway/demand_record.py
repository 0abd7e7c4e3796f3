"""What clients asked of this gateway lately, as far as a simulator needs it: bounded in time, in
requests and in bytes."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.cluster.audit import invariant
from tandem.facts.shapes import RecordedRequest

# What is kept at most, whatever arrives: about 20 MB.
KEPT_REQUESTS = 4096
KEPT_DIGEST_BYTES = 16 << 20


@dataclass(slots=True)
class Entry:
    """One request, while its answer grows."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    tenant: str
    service_class: str
    digests: bytes = b""
    kept: bool | None = None
    is_recorded: bool = True

    @property
    def frozen(self) -> RecordedRequest:
        """As it is known now."""
        return RecordedRequest(
            self.arrival_ns,
            self.prompt_tokens,
            self.output_tokens,
            self.digests,
            self.tenant,
            self.service_class,
            self.kept,
        )


class DemandRecord:
    """The requests of the last `window_s`, oldest first."""

    def __init__(self, window_s: float) -> None:
        self._window_ns = round(window_s * 1e9)
        self._entries: deque[Entry] = deque()
        self._digest_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def request_submitted(self, entry: Entry) -> None:
        """A client wants this."""
        self._entries.append(entry)
        oldest_ns = entry.arrival_ns - self._window_ns
        while len(self._entries) > KEPT_REQUESTS or self._entries[0].arrival_ns < oldest_ns:
            self._forget_oldest()

    def hashed(self, entry: Entry, chain: Sequence[bytes]) -> None:
        """The hashes of its prompt's full blocks are known."""
        if entry.digests or not chain or not entry.is_recorded:
            return
        entry.digests = b"".join(chain)
        self._digest_bytes += len(entry.digests)
        while self._digest_bytes > KEPT_DIGEST_BYTES:
            self._forget_oldest()

    def entries(self) -> list[Entry]:
        """All that is kept, oldest first."""
        return list(self._entries)

    def audit(self) -> None:
        """Assert that the bytes are counted right."""
        counted = sum(len(each.digests) for each in self._entries)
        invariant(counted == self._digest_bytes, "the bytes of recorded digests are counted")

    def _forget_oldest(self) -> None:
        entry = self._entries.popleft()
        self._digest_bytes -= len(entry.digests)
        # Its answer may still grow.
        entry.digests, entry.is_recorded = b"", False


def measured_share(requests: Iterable[Entry]) -> float | None:
    """Of those whose end is known, the share that kept its SLO."""
    known = [each.kept for each in requests if each.kept is not None]
    return sum(known) / len(known) if known else None
