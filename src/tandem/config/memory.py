"""Does a model with its KV cache fit into memory? Sizes only, known before anything is loaded."""

from dataclasses import dataclass, field

from tandem.config.options import ServeOptions
from tandem.facts.model import ModelSpec
from tandem.models.footprint import WeightBytes

MIB = 1 << 20
GIB = 1 << 30
# Python, torch and the libraries of a process that runs a model, and of one that only serves it:
# what is not shared with other processes, measured and rounded up.
WORKER_PROCESS_BYTES = 320 * MIB
GATEWAY_PROCESS_BYTES = 192 * MIB


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of one process, or of several on one machine together. `working` is what a step and the
    slots of running sequences take, `other` whatever is there besides."""

    weights: WeightBytes = field(default_factory=WeightBytes)
    working: int = 0
    kv: int = 0
    other: int = 0

    def __add__(self, more: "MemoryNeed") -> "MemoryNeed":
        return MemoryNeed(
            self.weights + more.weights,
            self.working + more.working,
            self.kv + more.kv,
            self.other + more.other,
        )

    def times(self, count: int) -> "MemoryNeed":
        weights = WeightBytes(self.weights.held * count, self.weights.peak * count)
        return MemoryNeed(weights, self.working * count, self.kv * count, self.other * count)

    @property
    def without_kv(self) -> int:
        """KV memory is taken when the weights are loaded, and what loading took is free again."""
        return max(self.weights.peak, self.weights.held + self.working) + self.other

    @property
    def total(self) -> int:
        return max(self.without_kv, self.weights.held + self.working + self.kv + self.other)


def working_bytes(options: ServeOptions, spec: ModelSpec, context_tokens: int) -> int:
    """Of one rank: the activations of the largest step, its logits and what sampling makes of
    them, the tokens and block tables of all slots, and the rotary table."""
    features = 8 * spec.hidden_features + 3 * spec.feed_forward_features
    logits = 3 * options.max_num_seqs * spec.vocabulary_tokens
    slots = options.max_num_seqs * (context_tokens + -(-context_tokens // options.block_size))
    rotary = context_tokens * spec.rope.rotary_dim(spec.attention.head_dim)
    return 4 * (options.max_num_batched_tokens * features + logits + slots + rotary)


def refused_memory(need: MemoryNeed, free_bytes: int, *, what: str, fewer: str = "") -> str | None:
    """Why so much cannot be had of `free_bytes`, naming what is too large: the model (`what` says
    which, as "8,030M parameters in bfloat16"), or else the KV cache. `fewer` is one more way out.
    None where it fits."""
    if need.total <= free_bytes:
        return None
    besides = f", other memory {size(need.other)}" if need.other else ""
    figures = (
        f"weights {size(need.weights.held)} ({what}; {size(need.weights.peak)} while they are "
        f"loaded), working memory {size(need.working)}{besides}"
    )
    if need.without_kv > free_bytes:
        return (
            f"the model does not fit into memory: {figures}, and {size(free_bytes)} are free; take "
            f"a smaller model or one with narrower weights (--quantization int8){fewer}"
        )
    left = free_bytes - need.weights.held - need.working - need.other
    return (
        f"the KV cache does not fit into memory: it takes {size(need.kv)} beside {figures}, and "
        f"{size(free_bytes)} are free; lower kv-cache-memory to {left // MIB}MiB in all{fewer}"
    )


def refused_blocks(
    option: str, blocks_bytes: int, free_bytes: int, *, beside_bytes: int, beside: str
) -> str | None:
    """Why memory for so many KV blocks cannot be had of `free_bytes`, `beside_bytes` of which are
    for something else; None where it fits. The size of `option` is too large."""
    if blocks_bytes + beside_bytes <= free_bytes:
        return None
    return (
        f"{option} does not fit into memory: it takes {size(blocks_bytes)} beside "
        f"{size(beside_bytes)} for {beside}, and {size(free_bytes)} are free; choose a smaller "
        "capacity"
    )


def size(count_bytes: int) -> str:
    """For a person: `1.5 GiB`, `300 MiB`."""
    if count_bytes < GIB:
        return f"{count_bytes / MIB:,.0f} MiB"
    return f"{count_bytes / GIB:,.1f} GiB"
