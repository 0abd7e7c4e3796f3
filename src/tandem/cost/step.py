"""The shape of one engine step: the few numbers that its time depends on, and the port of step
times."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepShape:
    """`chunks` are the rows of more than one token, as (tokens before, tokens computed now);
    `decode_sequences` rows compute one token each and attend to `decode_context_tokens` in all.
    `sampled_rows` rows draw a token (and so pay the vocabulary projection)."""

    chunks: tuple[tuple[int, int], ...] = ()
    decode_sequences: int = 0
    decode_context_tokens: int = 0
    sampled_rows: int = 0

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.chunks) + self.decode_sequences


class StepTime(Protocol):
    """How long a step takes on one worker (all its tensor-parallel devices together).

    With pipeline parallelism these are the seconds of one stage; `stages` says how many there are.
    Implementations are frozen, use plain float arithmetic (the same bits on every machine) and are
    monotone: more tokens, more context or more sequences never take less time.
    """

    @property
    def stages(self) -> int: ...

    def seconds(self, shape: StepShape) -> float: ...

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        """A step of decodes alone, all sampled; equal to `seconds` of that shape but quick: the
        simulator asks this once a step."""
        ...
