"""From wishes to numbers: what the options, the model and the machine together make of a server."""

from dataclasses import dataclass, replace
from typing import cast

import torch

from tandem.config.machine import MachineFacts
from tandem.config.options import ServeOptions, parse_bytes
from tandem.config.shares import cpu_pool_bytes
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.kernels.linear.contract import Storage
from tandem.kv.layout import KvDtype, KvLayout
from tandem.machines.worker import WorkerConfig
from tandem.policy.batching import TokenBudgetBatching

STORAGE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """All sizes of a server, fixed before any memory is taken."""

    device: torch.device
    storage: Storage
    threads: int
    layout: KvLayout
    worker: WorkerConfig
    slots: SlotShape

    def of_model(self, content: str, arithmetic: str) -> "ServerPlan":
        """The same, whose KV is that of this model (`CacheRoot`)."""
        root = CacheRoot(content, arithmetic, self.layout.describe())
        return replace(self, worker=replace(self.worker, root=root))

    @property
    def kv_bytes(self) -> int:
        return self.layout.block_bytes * self.worker.block_count


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model to be served: its shape."""

    spec: ModelSpec


def resolve(options: ServeOptions, model: ModelFacts, machine: MachineFacts) -> ServerPlan:
    """Raises `InvalidConfiguration` with the option at fault and the remedy."""
    spec = model.spec
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise InvalidConfiguration(
            f"max-num-batched-tokens ({options.max_num_batched_tokens}) must be at least "
            f"max-num-seqs ({options.max_num_seqs}), or not every sequence could get a token a step"
        )
    device = _device(options, machine)
    storage = _storage(options, spec, device)
    layout = KvLayout(
        layers=spec.layers,
        kv_heads=spec.attention.kv_heads,
        block_size=options.block_size,
        head_dim=spec.attention.head_dim,
        dtype=_kv_dtype(options, storage, device),
    )
    wanted_tokens = options.max_model_len or spec.context_tokens
    if wanted_tokens < 2:
        raise InvalidConfiguration("max-model-len must hold a prompt and an answer: at least 2")
    if wanted_tokens > spec.context_tokens:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} is beyond the model's {spec.context_tokens} positions"
        )
    pool_blocks = _pool_bytes(options, spec, (device, storage), machine) // layout.block_bytes
    context_tokens = _context_tokens(options, wanted_tokens, pool_blocks, layout)
    # More blocks than all slots could ever fill would only be cache; keep twice that as cache.
    useful_blocks = 2 * options.max_num_seqs * -(-context_tokens // options.block_size)
    worker = WorkerConfig(
        block_size=options.block_size,
        block_count=min(pool_blocks, useful_blocks),
        context_tokens=context_tokens,
        vocabulary_tokens=spec.vocabulary_tokens,
        max_sequences=options.max_num_seqs,
        batching=TokenBudgetBatching(
            options.max_num_batched_tokens, options.long_prefill_token_threshold
        ),
        # Nobody's: what the weights hold and what computes with them is not looked at in here.
        root=CacheRoot("", "", layout.describe()),
        steps_in_flight=options.steps_in_flight,
        prefix_caching=options.enable_prefix_caching,
        max_waiting=options.max_num_queued_reqs,
    )
    slots = SlotShape(options.max_num_seqs, context_tokens, options.block_size)
    threads = options.threads or machine.cores
    return ServerPlan(device, storage, threads, layout, worker, slots)


def _device(options: ServeOptions, machine: MachineFacts) -> torch.device:
    if options.device == "cuda" and not machine.has_cuda:
        raise InvalidConfiguration("device: cuda is not available here; use --device cpu")
    wants_cpu = options.device == "cpu" or (options.device == "auto" and not machine.has_cuda)
    return torch.device("cpu" if wants_cpu else "cuda")


def _storage(options: ServeOptions, spec: ModelSpec, device: torch.device) -> Storage:
    if spec.weight_dtype not in STORAGE_BYTES:
        raise InvalidConfiguration(f"checkpoints in {spec.weight_dtype} are not supported")
    if options.quantization == "int8":
        if options.dtype != "auto":
            raise InvalidConfiguration(
                f"quantization int8 and dtype {options.dtype} exclude each other; leave one out"
            )
        if device.type != "cpu":
            raise InvalidConfiguration("quantization: int8 runs on a CPU only; use --device cpu")
        return "int8"
    if options.dtype != "auto":
        return cast(Storage, options.dtype)
    if device.type != "cpu":
        return "bfloat16"
    # The checkpoint's own precision: nothing is lost, and a 16-bit one streams half the bytes.
    narrow = spec.weight_dtype in ("bfloat16", "float16")
    return cast(Storage, spec.weight_dtype) if narrow else "float32"


def _kv_dtype(options: ServeOptions, storage: Storage, device: torch.device) -> KvDtype:
    if options.kv_cache_dtype != "auto":
        return cast(KvDtype, options.kv_cache_dtype)
    return "float32" if device.type == "cpu" else cast(KvDtype, storage)


def _pool_bytes(
    options: ServeOptions,
    spec: ModelSpec,
    place: tuple[torch.device, Storage],
    machine: MachineFacts,
) -> int:
    if options.kv_cache_memory != "auto":
        return parse_bytes(options.kv_cache_memory, "kv-cache-memory")
    device, storage = place
    weight_bytes = spec.parameters * STORAGE_BYTES[storage]
    if device.type == "cpu":
        return cpu_pool_bytes(machine.free_memory_bytes, weight_bytes)
    activation_bytes = 4 * (
        options.max_num_batched_tokens * (8 * spec.hidden_features + 3 * spec.feed_forward_features)
        + 3 * options.max_num_seqs * spec.vocabulary_tokens
    )
    used_bytes = machine.gpu_total_bytes - machine.gpu_free_bytes
    allowed_bytes = int(options.gpu_memory_utilization * machine.gpu_total_bytes)
    return max(allowed_bytes - used_bytes - weight_bytes - activation_bytes, 0)


def _context_tokens(
    options: ServeOptions, wanted_tokens: int, pool_blocks: int, layout: KvLayout
) -> int:
    """The longest sequence that fits. An explicit wish that does not fit is an error; the model's
    own maximum is only an upper bound."""
    fitting_tokens = pool_blocks * layout.block_size
    if fitting_tokens >= wanted_tokens:
        return wanted_tokens
    needed_mib = -(-wanted_tokens // layout.block_size) * layout.block_bytes / (1 << 20)
    remedy = f"raise --kv-cache-memory above {needed_mib:.0f}MiB or lower --max-model-len"
    if options.max_model_len:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} does not fit: the KV pool holds {fitting_tokens} "
            f"tokens; {remedy}"
        )
    if fitting_tokens < 2 * layout.block_size:
        raise InvalidConfiguration(f"no memory is left for the KV cache; {remedy}")
    return fitting_tokens
