"""The encoders of a server, by name: texts become tokens here, and what `LiveEncoder` makes of
these."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tandem.facts.encoder import EncodedText
from tandem.facts.encoding import EncoderCard, EncoderInput, Numbers, Wanted
from tandem.facts.errors import InvalidRequest
from tandem.facts.metrics import MetricFamily
from tandem.live.encoder import LiveEncoder
from tandem.text.encoder_input import encode_inputs
from tandem.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedEncoder:
    """One of them."""

    card: EncoderCard
    tokenizer: Tokenizer
    live: LiveEncoder


class LiveEncoders:
    """The port `Encoders`. Use it from one event loop, between `start` and `stop`."""

    def __init__(self, served: Sequence[ServedEncoder]) -> None:
        self._served = {each.card.name: each for each in served}

    @property
    def cards(self) -> Mapping[str, EncoderCard]:
        """See the port."""
        return {name: each.card for name, each in self._served.items()}

    @property
    def failed(self) -> bool:
        """One of them broke: only a restart helps."""
        return any(each.live.failed for each in self._served.values())

    def metric_families(self) -> Iterable[MetricFamily]:
        """See the port."""
        return chain.from_iterable(each.live.metrics.families() for each in self._served.values())

    def start(self) -> None:
        """On the event loop."""
        for each in self._served.values():
            each.live.start()

    async def stop(self) -> None:
        """Whoever waits gets an error."""
        for each in self._served.values():
            await each.live.stop()

    def read(
        self,
        name: str,
        inputs: Sequence[EncoderInput],
        limit_tokens: int,
        *,
        truncate: bool,
        field: str,
    ) -> list[EncodedText]:
        """See the port. All inputs are texts, or all are tokens."""
        served = self._served[name]
        texts = [each for each in inputs if not isinstance(each, list)]
        if texts:
            assert len(texts) == len(inputs)
            tokenizer = served.tokenizer
            return encode_inputs(tokenizer, texts, limit_tokens, truncate=truncate, field=field)
        tokens = [each for each in inputs if isinstance(each, list)]
        return [
            _of_tokens(each, f"{field}[{place}]", served.card, limit_tokens, truncate=truncate)
            for place, each in enumerate(tokens)
        ]

    async def encode(
        self,
        name: str,
        texts: Sequence[EncodedText],
        wanted: Wanted,
        *,
        priority: int = 0,
        timeout_s: float = 0.0,
    ) -> list[Numbers]:
        """See the port."""
        live = self._served[name].live
        return await live.encode(texts, wanted, priority=priority, timeout_s=timeout_s)


def _of_tokens(
    tokens: list[int], field: str, card: EncoderCard, limit_tokens: int, *, truncate: bool
) -> EncodedText:
    """What a client tokenised itself, special tokens included."""
    if not tokens:
        raise InvalidRequest(field, "must hold a token")
    if len(tokens) > limit_tokens and not truncate:
        problem = f"has {len(tokens)} tokens; the model reads at most {limit_tokens} at once"
        raise InvalidRequest(field, problem)
    if not all(0 <= token < card.vocabulary_tokens for token in tokens):
        problem = f"has tokens beyond the {card.vocabulary_tokens} that the model knows"
        raise InvalidRequest(field, problem)
    kept = tuple(tokens[:limit_tokens])
    return EncodedText(kept, (0,) * len(kept))
