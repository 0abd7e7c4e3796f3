"""What a worker's work costs in seconds: the one estimate that policies and the twin share."""

from dataclasses import dataclass, field
from math import inf

from tandem.cost.step import StepShape, StepTime
from tandem.facts.fleet import Tier


@dataclass(frozen=True, slots=True)
class LinkCost:
    """`seconds` to bring bytes over one link: latency plus bytes over bandwidth."""

    bytes_per_s: float = inf
    latency_s: float = 0.0

    def seconds(self, moved_bytes: float) -> float:
        return self.latency_s + moved_bytes / self.bytes_per_s if moved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """Prices of one worker. `chunk_tokens` is how many prompt tokens a step of it takes at most;
    `tiers` are the links to the KV that is not on the device, `network` the one to other workers.
    """

    step_time: StepTime
    kv_bytes_per_token: float
    chunk_tokens: int
    tiers: dict[Tier, LinkCost] = field(default_factory=dict)
    network: LinkCost = field(default_factory=LinkCost)

    def prefill_seconds(self, tokens: int, context_tokens: int = 0) -> float:
        """Compute `tokens` of one prompt after `context_tokens` that are there already, alone."""
        seconds, longest, end = 0.0, 0.0, context_tokens + tokens
        while context_tokens < end:
            count = min(self.chunk_tokens, end - context_tokens)
            last = context_tokens + count == end
            shape = StepShape(chunks=((context_tokens, count),), sampled_rows=int(last))
            chunk_seconds = self.step_time.seconds(shape)
            seconds, longest = seconds + chunk_seconds, max(longest, chunk_seconds)
            context_tokens += count
        # Chunks follow each other through equal stages: the slowest one sets how long the others
        # stand idle before the first and after the last (a flow shop's makespan).
        return seconds + (self.step_time.stages - 1) * longest

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        """The gap between two tokens of each of `sequences` that attend to `context_tokens` in
        all."""
        if not sequences:
            return 0.0
        return self.step_time.stages * self.step_time.decode_seconds(sequences, context_tokens)

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
