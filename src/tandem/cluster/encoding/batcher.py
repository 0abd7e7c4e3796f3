"""The queue before an encoder: who waits, who is encoded together, and whose time is over."""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from msgspec import Struct

from tandem.messages.encoding import (
    BatchEncoded,
    EncodeBatch,
    EncodingsArrived,
    EncodingsCancelled,
    EncodingTimePassed,
    ExpireEncodings,
    RefuseEncodings,
)
from tandem.policy.dynamic_batching import DynamicBatching

EncodingEvent = EncodingsArrived | EncodingsCancelled | BatchEncoded | EncodingTimePassed
EncodingEffect = EncodeBatch | RefuseEncodings | ExpireEncodings


class _Waiting(Struct):
    """A text in the queue. `rank`: by priority, then by arrival."""

    rank: tuple[int, int]
    tokens: int
    arrived_ns: int


class EncodingBatcher:
    """At most `batches` are under way at once, and `most_waiting` texts wait."""

    def __init__(self, batching: DynamicBatching, most_waiting: int, batches: int = 1) -> None:
        self.batching = batching
        self._most_waiting = most_waiting
        self._free_batches = batches
        self._serials, self._numbers = count(), count()
        # In the order of their arrival.
        self._waiting: dict[int, _Waiting] = {}
        # (rank, text) and (when it expires, text); texts that wait no more are passed over.
        self._by_rank: list[tuple[tuple[int, int], int]] = []
        self._by_expiry: list[tuple[int, tuple[int, int], int]] = []

    @property
    def waiting(self) -> int:
        """How many texts wait."""
        return len(self._waiting)

    def handle_together(self, events: Sequence[EncodingEvent], now_ns: int) -> list[EncodingEffect]:
        """What follows from events of one instant, and what is due by now."""
        effects: list[EncodingEffect] = []
        for event in events:
            match event:
                case EncodingsArrived():
                    effects += self._arrived(event, now_ns)
                case EncodingsCancelled(texts):
                    for text in texts:
                        self._waiting.pop(text, None)
                case BatchEncoded():
                    self._free_batches += 1
        if expired := self._expired(now_ns):
            effects.append(ExpireEncodings(expired))
        while self._free_batches and (texts := self._next_batch(now_ns)):
            self._free_batches -= 1
            effects.append(EncodeBatch(next(self._numbers), texts))
        return effects

    def next_wakeup(self) -> int | None:
        """When something is due, if nothing happens before."""
        due = [self._by_expiry[0][0]] if self._first_to_expire() else []
        if self._waiting and self._free_batches:
            oldest = next(iter(self._waiting.values()))
            due.append(oldest.arrived_ns + self.batching.max_queue_delay_ns)
        return min(due, default=None)

    def _arrived(self, event: EncodingsArrived, now_ns: int) -> list[EncodingEffect]:
        """All texts of a call wait, or none."""
        if len(self._waiting) + len(event.texts) > self._most_waiting:
            return [RefuseEncodings(event.texts)]
        for text, tokens in zip(event.texts, event.tokens, strict=True):
            assert text not in self._waiting
            waiting = _Waiting((event.priority, next(self._serials)), tokens, now_ns)
            self._waiting[text] = waiting
            heappush(self._by_rank, (waiting.rank, text))
            if event.timeout_ns:
                heappush(self._by_expiry, (now_ns + event.timeout_ns, waiting.rank, text))
        return []

    def _next_batch(self, now_ns: int) -> tuple[int, ...]:
        """The texts that are to be encoded now; none as long as others are waited for."""
        if not self._waiting:
            return ()
        first: list[tuple[tuple[int, int], int]] = []
        while self._by_rank and len(first) < self.batching.max_batch_size:
            rank, text = heappop(self._by_rank)
            if self._waits(text, rank):
                first.append((rank, text))
        oldest = next(iter(self._waiting.values()))
        tokens = [self._waiting[text].tokens for _, text in first]
        size = self.batching.batch_size(tokens, now_ns - oldest.arrived_ns)
        for entry in first[size:]:
            heappush(self._by_rank, entry)
        texts = tuple(text for _, text in first[:size])
        for text in texts:
            del self._waiting[text]
        return texts

    def _expired(self, now_ns: int) -> tuple[int, ...]:
        expired: list[int] = []
        while self._first_to_expire() and self._by_expiry[0][0] <= now_ns:
            _, _, text = heappop(self._by_expiry)
            del self._waiting[text]
            expired.append(text)
        return tuple(expired)

    def _first_to_expire(self) -> bool:
        """Whether the first entry by expiry is of a text that waits, if there is any."""
        while self._by_expiry:
            _, rank, text = self._by_expiry[0]
            if self._waits(text, rank):
                return True
            heappop(self._by_expiry)
        return False

    def _waits(self, text: int, rank: tuple[int, int]) -> bool:
        waiting = self._waiting.get(text)
        return waiting is not None and waiting.rank == rank
