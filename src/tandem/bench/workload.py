"""The workload of a benchmark, planned before it starts: arrivals, lengths, and prompts with what
they share.

A prompt is a row of segments; a segment's content follows from its key alone, so equal keys are
equal tokens and every prefix hit of the workload is visible here. The same seed plans the same.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tandem.bench.laws import Arrivals, LengthLaw, Tokens, draw_arrivals, draw_pairs
from tandem.bench.tasks.task import ADJECTIVES, NOUNS, VALUES
from tandem.facts.trace import TraceRow

_WORDS = tuple(f" {word}" for word in (*ADJECTIVES, *NOUNS, *VALUES))


class Content(IntEnum):
    """The first number of a segment's key: what the segment stands for."""

    SHARED_PREFIX = 1
    QUESTION = 2
    ANSWER = 3
    TRACE_BLOCK = 4
    WARMUP = 5


class _Stream(IntEnum):
    """Separate random streams, so that a longer prompt law does not move the arrivals."""

    INPUT_LENGTHS = 1
    OUTPUT_LENGTHS = 2
    PREFIX_GROUPS = 3
    ARRIVALS = 4
    SPREAD = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of `tokens` tokens whose content is a function of `key`; a shorter one is a prefix."""

    key: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: its prompt's segments and the tokens it asks for."""

    index: int
    segments: tuple[Segment, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests that follow each other; each waits for the one before, then `think_s` more."""

    arrival_s: float
    turns: tuple[PlannedRequest, ...]
    think_s: float = 0.0


@dataclass(frozen=True)
class Synthetic:
    """A workload drawn from laws. The shared prefix comes on top of `input_law`, as in vLLM.

    `length_pairs` [pairs, 2], when given, replaces both laws. A conversation of several turns sends
    its whole history each time; the place of the answers is taken by seeded tokens as long as the
    answers asked for, so the plan depends on no server.
    """

    num_prompts: int
    input_law: LengthLaw
    output_law: LengthLaw
    length_pairs: Tokens | None = None
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    turns: int = 1
    think_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Replay:
    """A recorded workload: `speed` 2 plays it in half the time, `scale_lengths` 0.1 at a tenth of
    all lengths; `spread_s` adds up to that many seconds to each arrival, for traces whose clock is
    coarse."""

    rows: tuple[TraceRow, ...]
    speed: float = 1.0
    scale_lengths: float = 1.0
    spread_s: float = 0.0
    seed: int = 0


def plan_synthetic(settings: Synthetic) -> list[Conversation]:
    """The conversations, all arriving at 0: `arrive` spreads them."""
    count = settings.num_prompts
    if settings.length_pairs is None:
        inputs = settings.input_law.draw(count, _rng(settings.seed, _Stream.INPUT_LENGTHS))
        outputs = settings.output_law.draw(count, _rng(settings.seed, _Stream.OUTPUT_LENGTHS))
    else:
        rng = _rng(settings.seed, _Stream.INPUT_LENGTHS)
        inputs, outputs = draw_pairs(settings.length_pairs, count, rng).T
    group_rng = _rng(settings.seed, _Stream.PREFIX_GROUPS)
    groups = group_rng.integers(0, settings.prefix_groups, size=count)
    conversations = []
    for first in range(0, count, settings.turns):
        history: tuple[Segment, ...] = ()
        if settings.shared_prefix_tokens:
            key = (Content.SHARED_PREFIX, int(groups[first]))
            history = (Segment(key, settings.shared_prefix_tokens),)
        turns = []
        for index in range(first, min(first + settings.turns, count)):
            history = (*history, Segment((Content.QUESTION, index), int(inputs[index])))
            turns.append(PlannedRequest(index, history, int(outputs[index])))
            history = (*history, Segment((Content.ANSWER, index), int(outputs[index])))
        conversations.append(Conversation(0.0, tuple(turns), settings.think_s))
    return conversations


def plan_replay(settings: Replay) -> list[Conversation]:
    """One conversation a row, in the order of arrival, arriving as in the trace."""
    extra_s = _rng(settings.seed, _Stream.SPREAD).uniform(
        0.0, settings.spread_s, size=len(settings.rows)
    )
    # numpy numbers are compared and serialised slowly; the plan holds plain ones.
    arrivals_s = [
        (row.arrival_s + float(extra)) / settings.speed
        for row, extra in zip(settings.rows, extra_s, strict=True)
    ]
    conversations = []
    for index in sorted(range(len(arrivals_s)), key=lambda i: (arrivals_s[i], i)):
        row = settings.rows[index]
        request = PlannedRequest(
            index,
            trace_segments(row, index, settings.scale_lengths),
            max(1, round(row.output_tokens * settings.scale_lengths)),
        )
        conversations.append(Conversation(arrivals_s[index], (request,)))
    return conversations


def trace_segments(row: TraceRow, index: int, scale_lengths: float) -> tuple[Segment, ...]:
    """The prompt of a trace row: one segment a block id, what no id covers is the request's own.

    Block i covers the tokens from round(i * block * scale) to round((i + 1) * block * scale). An id
    always stands at one place of a prefix, so its span is the same wherever it occurs and equal
    ids stay equal tokens at any scale.
    """
    prompt_tokens = max(1, round(row.prompt_tokens * scale_lengths))
    block_tokens = row.block_tokens * scale_lengths
    segments, covered_tokens = [], 0
    for position, block_id in enumerate(row.block_ids, start=1):
        end = min(round(position * block_tokens), prompt_tokens)
        if end > covered_tokens:
            segments.append(Segment((Content.TRACE_BLOCK, block_id), end - covered_tokens))
            covered_tokens = end
    if covered_tokens < prompt_tokens:
        segments.append(Segment((Content.QUESTION, index), prompt_tokens - covered_tokens))
    return tuple(segments)


def arrive(conversations: list[Conversation], arrivals: Arrivals, seed: int) -> list[Conversation]:
    """The same conversations at the instants of an arrival process."""
    instants_s = draw_arrivals(arrivals, len(conversations), _rng(seed, _Stream.ARRIVALS))
    return [
        replace(conversation, arrival_s=float(instant_s))
        for instant_s, conversation in zip(instants_s, conversations, strict=True)
    ]


def clip_prompts(conversations: list[Conversation], limit_tokens: int) -> list[Conversation]:
    """The same requests with no prompt longer than `limit_tokens`; a longer one loses its end."""
    return [
        replace(
            conversation, turns=tuple(_clipped(turn, limit_tokens) for turn in conversation.turns)
        )
        for conversation in conversations
    ]


def plan_warmup(count: int, conversations: list[Conversation]) -> list[Conversation]:
    """`count` requests as long as the first ones of the plan, sharing nothing with them."""
    requests = [turn for conversation in conversations for turn in conversation.turns]
    warmup = []
    for index in range(count):
        like = requests[index % len(requests)]
        segment = Segment((Content.WARMUP, index), like.prompt_tokens)
        request = PlannedRequest(index, (segment,), like.output_tokens)
        warmup.append(Conversation(0.0, (request,)))
    return warmup


@dataclass(frozen=True)
class ContentSource:
    """The tokens or words of a planned prompt: a pure function of seed, sweep point and keys.

    `point` separates the runs of a sweep: were their prompts equal, every run after the first
    would be answered out of the server's prefix cache."""

    seed: int
    point: int = 0

    def token_ids(self, segments: tuple[Segment, ...], vocabulary_tokens: int) -> list[int]:
        """Random ids below `vocabulary_tokens`."""
        ids: list[int] = []
        for segment in segments:
            ids += self._draw(segment, vocabulary_tokens).tolist()
        return ids

    def text(self, segments: tuple[Segment, ...]) -> str:
        """One random word a token; most tokenizers make about one token of each."""
        words = [
            _WORDS[place] for segment in segments for place in self._draw(segment, len(_WORDS))
        ]
        return "".join(words).lstrip()

    def _draw(self, segment: Segment, below: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([self.seed, self.point, *segment.key])
        return rng.integers(0, below, size=segment.tokens)


def _clipped(request: PlannedRequest, limit_tokens: int) -> PlannedRequest:
    kept: list[Segment] = []
    room_tokens = limit_tokens
    for segment in request.segments:
        if room_tokens > 0:
            kept.append(replace(segment, tokens=min(segment.tokens, room_tokens)))
        room_tokens -= segment.tokens
    return replace(request, segments=tuple(kept))


def _rng(seed: int, stream: _Stream) -> np.random.Generator:
    return np.random.default_rng([seed, stream])
