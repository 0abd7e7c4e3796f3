"""Costs of a worker in seconds: the one estimate that policies and the twin share. It stands on the
port of step times and the shape of a step, the few numbers that its time depends on.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from msgspec import Struct

from tandem.facts.correction import UNCORRECTED, Correction
from tandem.facts.fleet import Tier


class StepShape(Struct, frozen=True):
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


class LinkCost(Struct, frozen=True):
    """`seconds` to bring bytes over one link: latency plus bytes over bandwidth."""

    bytes_per_s: float = inf
    latency_s: float = 0.0

    def seconds(self, moved_bytes: float) -> float:
        return self.latency_s + moved_bytes / self.bytes_per_s if moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ServingCost:
    """Seconds of serving beside the engine's steps, as measured on one machine. A gateway's event
    loop is busy for `request_s` with a request, for `message_s` with the tokens that a worker sends
    together, and for `token_s` with each event to a client; one waits for the other. Besides,
    `request_wait_s` and `prompt_token_s` for each prompt token pass from the client's call until
    the worker starts its step. A step takes `cold_s` more when the worker has computed nothing for
    `cold_after_s`. While another worker of the machine computes, steps with prompt tokens take
    `prefill_slowdown` times as long and those of decodes alone `decode_slowdown` times: a process
    that computes without a break gives way to one that sleeps between steps."""

    request_s: float = 0.0
    request_wait_s: float = 0.0
    prompt_token_s: float = 0.0
    message_s: float = 0.0
    token_s: float = 0.0
    cold_s: float = 0.0
    cold_after_s: float = 0.0
    prefill_slowdown: float = 1.0
    decode_slowdown: float = 1.0

    @property
    def shares_cores(self) -> bool:
        """Whether workers of one machine slow each other."""
        return self.prefill_slowdown > 1.0 or self.decode_slowdown > 1.0

    def pace(self, *, prefills: bool, others: int) -> float:
        """The share of its speed that a step has while so many other workers compute."""
        slowdown = self.prefill_slowdown if prefills else self.decode_slowdown
        return 1.0 / (1.0 + (slowdown - 1.0) * others)

    def entry_seconds(self, prompt_tokens: int) -> float:
        """From the client's call until the worker could start on the prompt, and from the first
        token's draw to the client, where nobody else is served."""
        way_s = self.request_s + self.request_wait_s + self.message_s + self.token_s
        return way_s + prompt_tokens * self.prompt_token_s


NO_SERVING_COST = ServingCost()


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """Prices of one worker. `chunk_tokens` is how many prompt tokens a step of it takes at most;
    `tiers` are the links to the KV that is not on the device, `network` the one to other workers;
    `serving` is what stands between clients and the steps, of which `step_time` knows already what
    each step takes longer. `correction` is what of measurements is in all that (`cost.correction`).
    """

    step_time: StepTime
    kv_bytes_per_token: float
    chunk_tokens: int
    tiers: dict[Tier, LinkCost] = field(default_factory=dict)
    network: LinkCost = field(default_factory=LinkCost)
    correction: Correction = UNCORRECTED
    serving: ServingCost = NO_SERVING_COST

    def prefill_seconds(self, tokens: int, context_tokens: int = 0) -> float:
        """Compute `tokens` of one prompt after `context_tokens` that are there already, alone."""
        seconds, longest = self._chunk_seconds(tokens, context_tokens)
        # Chunks follow each other through equal stages: the slowest one sets how long the others
        # stand idle before the first and after the last (a flow shop's makespan).
        return seconds + (self.step_time.stages - 1) * longest

    def queue_seconds(self, queued_tokens: int, prompt_tokens: int = 0) -> float:
        """Work off prompts of which only the sum is known, and that one has about `prompt_tokens`:
        shorter ones than a chunk share steps, and each attends to itself alone."""
        if not queued_tokens:
            return 0.0
        typical_tokens = max(prompt_tokens, self.chunk_tokens)
        seconds, _ = self._chunk_seconds(typical_tokens, 0)
        return queued_tokens / typical_tokens * seconds

    def _chunk_seconds(self, tokens: int, context_tokens: int) -> tuple[float, float]:
        """All chunks of one prompt together in one stage, and the longest of them."""
        seconds, longest, end = 0.0, 0.0, context_tokens + tokens
        while context_tokens < end:
            count = min(self.chunk_tokens, end - context_tokens)
            last = context_tokens + count == end
            shape = StepShape(chunks=((context_tokens, count),), sampled_rows=int(last))
            chunk_seconds = self.step_time.seconds(shape)
            seconds, longest = seconds + chunk_seconds, max(longest, chunk_seconds)
            context_tokens += count
        return seconds, longest

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        """The gap between two tokens of each of `sequences` that attend to `context_tokens` in
        all."""
        step_time = self.step_time
        if step_time.stages == 1 and sequences:
            return step_time.decode_seconds(sequences, context_tokens)
        return step_time.stages * self.decode_stage_seconds(sequences, context_tokens)

    def decode_stage_seconds(self, sequences: int, context_tokens: int) -> float:
        """What one stage does for these between two tokens of theirs: a pipeline is kept full by as
        many steps as there are stages, each of an even share of the sequences."""
        if not sequences:
            return 0.0
        share = -(-sequences // self.step_time.stages)
        return self.step_time.decode_seconds(share, -(-context_tokens * share // sequences))

    def kv_bytes(self, tokens: int) -> float:
        return tokens * self.kv_bytes_per_token

    def pull_seconds(self, tier: Tier, tokens: int) -> float:
        """Bring the KV of `tokens` from a tier to the device; infinite where there is no such
        tier."""
        if tier is Tier.DEVICE or not tokens:
            return 0.0
        link = self.tiers.get(tier)
        return inf if link is None else link.seconds(self.kv_bytes(tokens))

    def transfer_seconds(self, tokens: int) -> float:
        """Bring the KV of `tokens` to another worker, with the link to itself."""
        return self.network.seconds(self.kv_bytes(tokens))
