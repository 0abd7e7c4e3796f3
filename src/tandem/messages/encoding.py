"""Events (past tense) and effects (imperative) of the machine that batches texts for an encoder,
which makes vectors or scores of them. Each text has a number that its sender chose."""

from msgspec import Struct

from tandem.facts.bounds import Count, Nanoseconds


class EncodingsArrived(Struct, frozen=True):
    """These texts, of so many `tokens` each, want to be encoded; the lowest `priority` first, and
    none later than `timeout_ns` from now (0: whenever)."""

    texts: tuple[int, ...]
    tokens: tuple[Count, ...]
    priority: int = 0
    timeout_ns: Nanoseconds = 0


class EncodingsCancelled(Struct, frozen=True):
    """Nobody waits for these any more; those whose batch is under way are encoded all the same."""

    texts: tuple[int, ...]


class BatchEncoded(Struct, frozen=True):
    """What `EncodeBatch` asked for is done, or failed."""

    batch: Count


class EncodingTimePassed(Struct, frozen=True):
    """The instant of `next_wakeup` has come."""


class EncodeBatch(Struct, frozen=True):
    """These together, in one pass."""

    batch: Count
    texts: tuple[int, ...]


class RefuseEncodings(Struct, frozen=True):
    """Too many wait already."""

    texts: tuple[int, ...]


class ExpireEncodings(Struct, frozen=True):
    """These waited as long as they may; they are not encoded."""

    texts: tuple[int, ...]
