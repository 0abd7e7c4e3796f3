"""Configuration of the tier engine: its limits, its callbacks, and the answers it still owes."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition

from tandem.messages.node import BlocksFetched, BlocksKept, BlocksStaged

TierEvent = BlocksStaged | BlocksKept | BlocksFetched


@dataclass(frozen=True, slots=True)
class TierEngineConfig:
    """Full blocks wait in `staging_bytes` of memory until they are kept, and copies between
    tiers go through `transit_bytes`. A fetch looks for its end after every `fetch_chunk_bytes`;
    whatever nobody waits for pauses after `chunk_bytes` for what somebody waits for. `pinned`: the
    memory is to be read and written by a GPU. What does not end within `close_s` is left behind."""

    staging_bytes: int = 64 << 20
    transit_bytes: int = 16 << 20
    chunk_bytes: int = 4 << 20
    fetch_chunk_bytes: int = 16 << 20
    pinned: bool = False
    close_s: float = 5.0

    def blocks_of(self, size_bytes: int, block_bytes: int) -> int:
        return max(1, size_bytes // block_bytes)


@dataclass(frozen=True, slots=True)
class TierCalls:
    """Called from the engine's threads: what was asked for is over (`told`, which must return at
    once); a thread broke, and nothing more may be over (`failed`); what time it is (`now_ns`, a
    monotonic clock)."""

    told: Callable[[TierEvent], None]
    failed: Callable[[], None]
    now_ns: Callable[[], int]


class Answers:
    """Every expected answer is told once, and none after `finish_answers`."""

    def __init__(self, told: Callable[[TierEvent], None]) -> None:
        self._told = told
        self._awaited = 0
        self._closing = False
        self._silent = False
        self._changed = Condition()

    @property
    def closing(self) -> bool:
        """Whoever is to answer should do so soon."""
        return self._closing

    def expect_answer(self) -> bool:
        """Whether something may still be asked for."""
        with self._changed:
            if self._closing:
                return False
            self._awaited += 1
            return True

    def give_answer(self, event: TierEvent) -> None:
        # Told under the lock: when `finish_answers` returns nobody is being told anything.
        with self._changed:
            if self._silent:
                return
            self._told(event)
            self._awaited -= 1
            self._changed.notify_all()

    def refuse_answers(self) -> None:
        """Expect nothing more."""
        with self._changed:
            self._closing = True

    def finish_answers(self, timeout_s: float) -> None:
        """Expect nothing more, and wait until all were given, or no longer."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: self._awaited == 0, timeout_s)
            self._silent = True
