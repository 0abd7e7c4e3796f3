"""The port between the API server and the encoders that are served beside the model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.facts.encoder import EncodedText, LabelSpec
from tandem.facts.metrics import MetricFamily

# A text, two of which the second is judged by the first (a query and a document), or the tokens of
# a text.
EncoderInput = str | tuple[str, str] | list[int]
# What a text becomes: a vector, or a score for each label.
Wanted = Literal["vector", "scores"]
Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncoderCard:
    """What the API server must know of an encoder: its name, a Unix time in seconds, and what it
    reads and gives. Without a `head` it has no labels."""

    name: str
    created_s: int
    context_tokens: int
    vocabulary_tokens: int
    features: int
    head: LabelSpec | None = None


class Encoders(Protocol):
    """Encoders by name."""

    @property
    def cards(self) -> Mapping[str, EncoderCard]: ...

    @property
    def failed(self) -> bool:
        """One of them broke: only a restart helps."""
        ...

    def metric_families(self) -> Iterable[MetricFamily]:
        """What Prometheus may know of all of them, at this moment."""
        ...

    def read(
        self,
        name: str,
        inputs: Sequence[EncoderInput],
        limit_tokens: int,
        *,
        truncate: bool,
        field: str,
    ) -> list[EncodedText]:
        """Each of at most `limit_tokens` tokens; longer ones are cut if `truncate`. Pure work, off
        the event loop where there is much. Raises `InvalidRequest` naming `field[i]`."""
        ...

    async def encode(
        self,
        name: str,
        texts: Sequence[EncodedText],
        wanted: Wanted,
        *,
        priority: int = 0,
        timeout_s: float = 0.0,
    ) -> list[Numbers]:
        """What these become, in their order: the lowest `priority` first, none of them later than
        `timeout_s` from now (0: whatever it takes). Raises `Overloaded` and `EngineFailed`."""
        ...
