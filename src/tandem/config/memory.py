"""Memory sizes of a server, known before anything is loaded: what weights and steps need, what is
left for the KV cache, how many blocks and how long a context that makes, and whether it fits.

Needs no torch: launchers ask, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tandem.config.kv_format import check_method, keeps_codes
from tandem.config.options import ServeOptions, parse_bytes
from tandem.config.speculation import NO_DRAFT_MEMORY, DraftMemory, draft_source
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.facts.steps import MOST_SCORED_TOKENS
from tandem.facts.units import GIB, MIB, size_text
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import (
    FLOAT32_BYTES,
    NO_CODES,
    CodeForms,
    WeightBytes,
    checkpoint_sizes,
)
from tandem.models.formats.choose import read_quantization
from tandem.models.formats.contract import Quantization
from tandem.models.parameters import decoder_parts
from tandem.policy.speculation import MOST_STEP_DRAFTS

# Python, torch and the libraries of a process that runs a model, and of one that only serves it:
# what is not shared with other processes, measured and rounded up.
WORKER_PROCESS_BYTES = 320 * MIB
GATEWAY_PROCESS_BYTES = 192 * MIB
# On a shared machine the pool takes what surely is to spare, not all there is.
CPU_POOL_SHARE = 0.4
CPU_POOL_LIMIT_BYTES = 4 * GIB
# Beside weights and KV, on a GPU that several workers share: context, kernels, activations.
GPU_WORKING_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model to be served: what config.json says, and the `shapes` of the tensors in its files,
    by name; empty where weights are made up. What drafts for it is in `drafts`. `quantization` is
    that of its files, and `codes` the matrices that they hold as codes."""

    spec: ModelSpec
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    drafts: DraftMemory = NO_DRAFT_MEMORY
    codes: CodeForms = field(default_factory=dict)
    quantization: Quantization | None = None

    def kept_codes(self, options: ServeOptions, *, is_cpu: bool) -> CodeForms:
        """Those that stay codes."""
        return self.codes if keeps_codes(options, is_cpu=is_cpu) else NO_CODES

    def weights_text(self, options: ServeOptions, storage: str, *, is_cpu: bool) -> str:
        """How its weights are held, for people; `storage` is that of all that are no codes."""
        if self.quantization is None:
            return storage
        method = self.quantization.method
        kept = self.kept_codes(options, is_cpu=is_cpu).values()
        if not kept:
            return f"{storage}, decoded from {method}"
        bits = " and ".join(str(each) for each in sorted({form.bits for form in kept}))
        return f"{bits} bits, as stored ({method}), and {storage}"


def model_facts(directory: Path, options: ServeOptions) -> ModelFacts:
    """Of the checkpoint that lies there. Raises `InvalidConfiguration`."""
    drafts = DraftMemory(draft_source(options, directory))
    spec, quantization = read_model_spec(directory), read_quantization(directory)
    check_method(options, quantization)
    if options.load_format == "dummy":
        return ModelFacts(spec, drafts=drafts)
    sizes = checkpoint_sizes(directory, spec)
    return ModelFacts(spec, sizes.shapes, drafts, sizes.codes, quantization)


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
    drafts = MOST_STEP_DRAFTS if options.speculation != "none" else 0
    # Prompts are scored before anything is drawn, so only one of both is there at a time.
    rows = max(options.max_num_seqs + drafts, MOST_SCORED_TOKENS)
    logits = 3 * rows * spec.vocabulary_tokens
    slots = options.max_num_seqs * (context_tokens + -(-context_tokens // options.block_size))
    rotary = context_tokens * spec.rope.rotary_dim(spec.attention.head_dim)
    return 4 * (options.max_num_batched_tokens * features + logits + slots + rotary)


def adapter_bytes(options: ServeOptions, spec: ModelSpec) -> int:
    """What a worker may hold of adapters. Raises `InvalidConfiguration`."""
    if not options.enable_lora:
        return 0
    if options.lora_memory != "auto":
        return parse_bytes(options.lora_memory, "lora-memory")
    features = sum(
        sum(part.shape)
        for layer in decoder_parts(spec).layers
        for fused in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        for part in fused.weights
    )
    return options.max_loras * options.max_lora_rank * features * FLOAT32_BYTES


def refused_memory(need: MemoryNeed, free_bytes: int, *, what: str, fewer: str = "") -> str | None:
    """Why so much cannot be had of `free_bytes`, naming what is too large: the model (`what` says
    which, as "8,030M parameters in bfloat16"), or else the KV cache. `fewer` is one more way out.
    None where it fits."""
    if need.total <= free_bytes:
        return None
    besides = f", other memory {size_text(need.other)}" if need.other else ""
    figures = (
        f"weights {size_text(need.weights.held)} ({what}; {size_text(need.weights.peak)} while "
        f"they are loaded), working memory {size_text(need.working)}{besides}"
    )
    if need.without_kv > free_bytes:
        return (
            f"the model does not fit into memory: {figures}, and {size_text(free_bytes)} are free; "
            f"take a smaller model or one with narrower weights (--quantization int8){fewer}"
        )
    left = free_bytes - need.weights.held - need.working - need.other
    return (
        f"the KV cache does not fit into memory: it takes {size_text(need.kv)} beside {figures}, "
        f"and {size_text(free_bytes)} are free; lower kv-cache-memory to {left // MIB}MiB in "
        f"all{fewer}"
    )


def refused_blocks(
    option: str, blocks_bytes: int, free_bytes: int, *, beside_bytes: int, beside: str
) -> str | None:
    """Why memory for so many KV blocks cannot be had of `free_bytes`, `beside_bytes` of which are
    for something else; None where it fits. The size of `option` is too large."""
    if blocks_bytes + beside_bytes <= free_bytes:
        return None
    return (
        f"{option} does not fit into memory: it takes {size_text(blocks_bytes)} beside "
        f"{size_text(beside_bytes)} for {beside}, and {size_text(free_bytes)} are free; choose a "
        "smaller capacity"
    )


def cpu_pool_bytes(free_bytes: int, beside_bytes: int, workers: int = 1) -> int:
    """Memory for the KV pool of each of `workers`, where `beside_bytes` of what is free are for
    everything else that all of them have yet to take."""
    spare_bytes = max(0, free_bytes - beside_bytes)
    return min(CPU_POOL_LIMIT_BYTES, int(CPU_POOL_SHARE * spare_bytes)) // workers


def full_slots_bytes(options: ServeOptions, spec: ModelSpec, block_bytes: int) -> int:
    """Of the KV of as many sequences as run at once, each as long as one may be: more would only be
    cache, of which there is enough where they are shorter. Raises `InvalidConfiguration`."""
    blocks = -(-wanted_context(options, spec) // options.block_size)
    return options.max_num_seqs * blocks * block_bytes


def gpu_pool_bytes(usable_bytes: int, weight_bytes: int, workers: int) -> int:
    """The same for workers on one GPU, of which they may use so much together."""
    return max(0, usable_bytes // workers - weight_bytes - GPU_WORKING_BYTES)


def check_sizes(options: ServeOptions, spec: ModelSpec) -> None:
    """Raises `InvalidConfiguration` for sizes that cannot be, whatever the machine has."""
    wanted_context(options, spec)
    if options.kv_cache_memory != "auto":
        parse_bytes(options.kv_cache_memory, "kv-cache-memory")
    adapter_bytes(options, spec)
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise InvalidConfiguration(
            f"max-num-batched-tokens ({options.max_num_batched_tokens}) must be at least "
            f"max-num-seqs ({options.max_num_seqs}), or not every sequence could get a token a step"
        )


def wanted_context(options: ServeOptions, spec: ModelSpec) -> int:
    """Tokens of the longest sequence, if memory holds it. Raises `InvalidConfiguration`."""
    wanted_tokens = options.max_model_len or spec.context_tokens
    if wanted_tokens < 2:
        raise InvalidConfiguration("max-model-len must hold a prompt and an answer: at least 2")
    if wanted_tokens > spec.context_tokens:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} is beyond the model's {spec.context_tokens} positions"
        )
    return wanted_tokens


@dataclass(frozen=True, slots=True)
class KvSizes:
    """`cuts` say, a line each, where it is less than was asked for or than the model could do."""

    blocks: int
    context_tokens: int
    cuts: tuple[str, ...] = ()


def kv_sizes(
    options: ServeOptions,
    spec: ModelSpec,
    block_bytes: int,
    pool_bytes: int,
    share: float = 1.0,
) -> KvSizes:
    """Of a pool that may take `pool_bytes`, which are this share of kv-cache-memory. Raises
    `InvalidConfiguration` with the option at fault and the remedy."""
    wanted_tokens = wanted_context(options, spec)
    blocks = pool_bytes // block_bytes
    # What kv-cache-memory would have to be.
    needed_mib = -(-wanted_tokens // options.block_size) * block_bytes / share / MIB
    context_tokens = _context_tokens(options, wanted_tokens, blocks, needed_mib)
    cuts = []
    if context_tokens < wanted_tokens:
        cuts.append(
            f"context cut to {context_tokens} of {wanted_tokens} tokens: a KV cache of "
            f"{size_text(pool_bytes)} holds no more; kv-cache-memory {needed_mib:.0f}MiB would "
            "hold all"
        )
    # More blocks than all slots could ever fill would only be cache; keep twice that as cache.
    useful_blocks = 2 * options.max_num_seqs * -(-context_tokens // options.block_size)
    if blocks > useful_blocks and options.kv_cache_memory != "auto":
        cuts.append(
            f"KV cache cut to {size_text(useful_blocks * block_bytes)} of {size_text(pool_bytes)}: "
            f"twice what {options.max_num_seqs} sequences of {context_tokens} tokens can fill; "
            "more max-num-seqs would use more"
        )
    return KvSizes(min(blocks, useful_blocks), context_tokens, tuple(cuts))


def _context_tokens(
    options: ServeOptions, wanted_tokens: int, pool_blocks: int, needed_mib: float
) -> int:
    """The longest sequence that fits. An explicit wish that does not fit is an error; the model's
    own maximum is only an upper bound."""
    fitting_tokens = pool_blocks * options.block_size
    if fitting_tokens >= wanted_tokens:
        return wanted_tokens
    remedy = f"raise --kv-cache-memory above {needed_mib:.0f}MiB or lower --max-model-len"
    if options.max_model_len:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} does not fit: the KV pool holds {fitting_tokens} "
            f"tokens; {remedy}"
        )
    if fitting_tokens < 2 * options.block_size:
        raise InvalidConfiguration(f"no memory is left for the KV cache; {remedy}")
    return fitting_tokens
