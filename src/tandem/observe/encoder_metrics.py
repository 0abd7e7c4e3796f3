"""Prometheus metrics of an encoder: its queue, its batches, and what became of texts."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import chain

from tandem.facts.metrics import MetricFamily
from tandem.observe.registry import GAUGE, TOKENS, ModelRegistry

BATCH_TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class TextEnd(StrEnum):
    """What became of a text: it was encoded, found the queue full, waited longer than its call
    allows, or its client left before."""

    ENCODED = "encoded"
    REFUSED = "refused"
    EXPIRED = "expired"
    ABORTED = "aborted"


class EncoderMetrics:
    """Under the name that the encoder is served as; `waiting` says how many texts wait."""

    def __init__(self, model_name: str, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._registry = ModelRegistry(model_name)
        ends = self._registry.counters(
            "encoder_texts", "Texts by what became of them", "outcome", TextEnd
        )
        self._ends = dict(zip(TextEnd, ends, strict=True))
        self._tokens = self._registry.counter("encoder_tokens", "Tokens of encoded texts")
        self._batch_texts = self._registry.histogram(
            "encoder_batch_texts", "Texts of a batch", BATCH_TEXTS
        )
        self._batch_tokens = self._registry.histogram(
            "encoder_batch_tokens", "Tokens of a batch", TOKENS
        )
        self._queue_time = self._registry.histogram(
            "encoder_queue_time_seconds", "Time from a text's arrival to the begin of its batch"
        )
        self._batch_time = self._registry.histogram(
            "encoder_batch_time_seconds", "Time that a batch took"
        )

    def batch_began(self, waited_s: Iterable[float]) -> None:
        """A batch of texts that have waited for so long."""
        for each in waited_s:
            self._queue_time.observe(each)

    def batch_ended(self, texts: int, tokens: int, seconds: float) -> None:
        """So many texts were encoded together."""
        self._ends[TextEnd.ENCODED].inc(texts)
        self._tokens.inc(tokens)
        self._batch_texts.observe(texts)
        self._batch_tokens.observe(tokens)
        self._batch_time.observe(seconds)

    def texts_left(self, count: int, end: TextEnd) -> None:
        """So many texts are not encoded, and why."""
        self._ends[end].inc(count)

    def families(self) -> Iterable[MetricFamily]:
        """All metrics as they are at this moment."""
        waiting = self._registry.figure(
            GAUGE, "encoder_texts_waiting", "Texts that wait", self._waiting()
        )
        return chain((waiting,), self._registry.families())
