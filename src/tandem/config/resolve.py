"""Sizes of a server (KV blocks, context, slots, threads), from its options, model and machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from tandem.cluster.worker.machine import WorkerConfig
from tandem.config.environment import MachineFacts, host_facts
from tandem.config.kv_format import layout_of, storage_of
from tandem.config.memory import (
    MemoryNeed,
    ModelFacts,
    adapter_bytes,
    check_sizes,
    cpu_pool_bytes,
    full_slots_bytes,
    kv_sizes,
    refused_blocks,
    refused_memory,
    working_bytes,
)
from tandem.config.options import ServeOptions, parse_bytes
from tandem.config.speculation import speculation_of
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.packed import Arithmetic, Storage
from tandem.kv.layout import KvLayout
from tandem.models.footprint import STORAGE_BYTES, weight_bytes
from tandem.models.parallel import WHOLE, Place
from tandem.policy.batching import TokenBudgetBatching


def machine_facts() -> MachineFacts:
    """This machine with its GPUs, as torch sees them."""
    host = host_facts()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpu_free_bytes, gpu_total_bytes = torch.cuda.mem_get_info() if gpus else (0, 0)
    return replace(
        host,
        gpu_total_bytes=gpu_total_bytes,
        gpu_free_bytes=gpu_free_bytes,
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(gpus)),
    )


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """All sizes of a server, fixed before any memory is taken. `block_bytes` are those of a KV
    block, a draft model's included. `cuts` say, a line each, which of them are less than was asked
    for or than the model could do. With `as_stored` what the checkpoint holds as codes stays so,
    and `storage` is that of the other weights; `weights` says both for people."""

    device: torch.device
    storage: Storage
    threads: int
    layout: KvLayout
    worker: WorkerConfig
    slots: SlotShape
    block_bytes: int
    cuts: tuple[str, ...] = ()
    weights: str = ""
    as_stored: bool = False

    def of_model(self, content: str, arithmetic: str) -> "ServerPlan":
        """The same, whose KV is that of this model (`CacheRoot`)."""
        root = CacheRoot(content, arithmetic, self.layout.describe())
        return replace(self, worker=replace(self.worker, root=root))

    def arithmetic(self, asked: Arithmetic) -> Arithmetic:
        """What is asked of kernels: only a model whose weights are multiplied in fewer bits has its
        attention in fewer."""
        wide = self.storage in ("float32", "float16") and not self.as_stored
        return "float32" if wide else asked

    @property
    def kv_bytes(self) -> int:
        return self.block_bytes * self.worker.block_count


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What one of several models in a process has of the process's memory: this fraction of what is
    for KV, and none of the `other_bytes` that the other models take for all but KV."""

    kv: float = 1.0
    other_bytes: int = 0


ALL_MEMORY = MemoryShare()


def memory_shares(
    models: Sequence[tuple[ServeOptions, ModelFacts]], machine: MachineFacts
) -> tuple[MemoryShare, ...]:
    """The shares of models in one process, by which the KV caches of all hold equally many tokens.
    Raises `InvalidConfiguration`."""
    block_bytes, beside_kv_bytes = [], []
    for options, model in models:
        device, spec = _device(options, machine), model.spec
        storage = cast(Storage, storage_of(options, spec, is_cpu=device.type == "cpu"))
        on_cpu = device.type == "cpu"
        layout = layout_of(spec, options, is_cpu=on_cpu)
        longest_tokens = options.max_model_len or spec.context_tokens
        need = _need(options, model, device, storage, (WHOLE,))
        need = replace(need, working=working_bytes(options, spec, longest_tokens))
        block_bytes.append(layout.block_bytes + model.drafts.block_bytes(options, is_cpu=on_cpu))
        beside_kv_bytes.append(need.without_kv)
    return tuple(
        MemoryShare(block / sum(block_bytes), sum(beside_kv_bytes) - own)
        for block, own in zip(block_bytes, beside_kv_bytes, strict=True)
    )


def resolve(
    options: ServeOptions,
    model: ModelFacts,
    machine: MachineFacts,
    ranks: Sequence[Place] = (WHOLE,),
    *,
    host_tier_bytes: int = 0,
    share: MemoryShare = ALL_MEMORY,
) -> ServerPlan:
    """`ranks` are those that have yet to take memory here; none where somebody else has looked
    whether they fit. Beside them `host_tier_bytes` of KV blocks lie in the host's memory; `share`
    is what other models in this process leave. Raises `InvalidConfiguration` with the option at
    fault and the remedy."""
    spec = model.spec
    check_sizes(options, spec)
    device = _device(options, machine)
    storage = cast(Storage, storage_of(options, spec, is_cpu=device.type == "cpu"))
    layout = layout_of(spec, options, is_cpu=device.type == "cpu")
    need = _need(options, model, device, storage, ranks)
    need = replace(need, other=need.other + share.other_bytes)
    free_bytes = _free_bytes(options, device, machine)
    weights = model.weights_text(options, storage, is_cpu=device.type == "cpu")
    what = f"{spec.parameters / 1e6:,.0f}M parameters in {weights}"
    # Before the KV cache is looked at: it is not to blame for a model that does not fit.
    if problem := refused_memory(need, free_bytes, what=what):
        raise InvalidConfiguration(problem)
    on_cpu = device.type == "cpu"
    _check_tier(host_tier_bytes, need.without_kv if on_cpu else 0, machine)
    need = replace(need, other=need.other + (host_tier_bytes if on_cpu else 0))
    longest_tokens = options.max_model_len or spec.context_tokens
    longest = replace(need, working=working_bytes(options, spec, longest_tokens) * len(ranks))
    pool_bytes = int(share.kv * _pool_bytes(options, longest, device, free_bytes))
    # A draft model's KV lies in as many blocks as the model's.
    block_bytes = layout.block_bytes + model.drafts.block_bytes(options, is_cpu=on_cpu)
    if on_cpu and options.kv_cache_memory == "auto":
        pool_bytes = min(pool_bytes, full_slots_bytes(options, spec, block_bytes))
    sizes = kv_sizes(options, spec, block_bytes, pool_bytes, share.kv)
    context_tokens = sizes.context_tokens
    working = working_bytes(options, spec, context_tokens) * len(ranks)
    # The KV of other models grows with this one's.
    kv_bytes = int(sizes.blocks * block_bytes / share.kv)
    need = replace(need, kv=kv_bytes * bool(ranks), working=working)
    if problem := refused_memory(need, free_bytes, what=what):
        raise InvalidConfiguration(problem)
    worker = WorkerConfig(
        block_size=options.block_size,
        block_count=sizes.blocks,
        context_tokens=context_tokens,
        vocabulary_tokens=spec.vocabulary_tokens,
        max_sequences=options.max_num_seqs,
        batching=TokenBudgetBatching.on(
            device.type, options.max_num_batched_tokens, options.long_prefill_token_threshold
        ),
        # Nobody's: what the weights hold and what computes with them is not looked at in here.
        root=CacheRoot("", "", layout.describe()),
        steps_in_flight=options.steps_in_flight,
        prefix_caching=options.enable_prefix_caching,
        max_waiting=options.max_num_queued_reqs,
        speculation=speculation_of(options),
        max_adapters=options.max_loras if options.enable_lora else 0,
    )
    slots = SlotShape(options.max_num_seqs, context_tokens, options.block_size)
    threads = options.threads or machine.cores
    return ServerPlan(
        *(device, storage, threads, layout, worker, slots, block_bytes, sizes.cuts),
        weights=weights,
        as_stored=bool(model.kept_codes(options, is_cpu=on_cpu)),
    )


def _check_tier(tier_bytes: int, beside_bytes: int, machine: MachineFacts) -> None:
    """It lies in the host's memory wherever the model does. Raises `InvalidConfiguration`."""
    free_bytes = machine.free_memory_bytes
    if tier_bytes and (
        problem := refused_blocks(
            "tiers.host", tier_bytes, free_bytes, beside_bytes=beside_bytes, beside="the model"
        )
    ):
        raise InvalidConfiguration(problem)


def _device(options: ServeOptions, machine: MachineFacts) -> torch.device:
    if options.device == "cuda" and not machine.has_cuda:
        raise InvalidConfiguration("device: cuda is not available here; use --device cpu")
    wants_cpu = options.device == "cpu" or (options.device == "auto" and not machine.has_cuda)
    return torch.device("cpu" if wants_cpu else "cuda")


def _need(
    options: ServeOptions,
    model: ModelFacts,
    device: torch.device,
    storage: Storage,
    ranks: Sequence[Place],
) -> MemoryNeed:
    """Without the KV cache, and with the shortest context there may be."""
    is_cpu = device.type == "cpu"
    weights = weight_bytes(
        model.spec,
        model.shapes,
        ranks,
        storage=storage,
        compute_bytes=4 if is_cpu else int(STORAGE_BYTES[storage]),
        codes=model.kept_codes(options, is_cpu=is_cpu),
    )
    drafts = model.drafts.other_bytes(options, is_cpu=is_cpu)
    drafts *= sum(place.is_last for place in ranks)
    adapters = adapter_bytes(options, model.spec) * bool(ranks)
    working = working_bytes(options, model.spec, 0) * len(ranks)
    return MemoryNeed(weights, working, other=drafts + adapters)


def _free_bytes(options: ServeOptions, device: torch.device, machine: MachineFacts) -> int:
    """Of the device's memory. What others hold of a GPU counts against the share to use of it."""
    if device.type == "cpu":
        return machine.free_memory_bytes
    if options.kv_cache_memory != "auto":
        return machine.gpu_free_bytes
    used_bytes = machine.gpu_total_bytes - machine.gpu_free_bytes
    allowed_bytes = int(options.gpu_memory_utilization * machine.gpu_total_bytes)
    return max(0, allowed_bytes - used_bytes)


def _pool_bytes(
    options: ServeOptions, need: MemoryNeed, device: torch.device, free_bytes: int
) -> int:
    if options.kv_cache_memory != "auto":
        return parse_bytes(options.kv_cache_memory, "kv-cache-memory")
    if device.type == "cpu":
        return cpu_pool_bytes(free_bytes, need.without_kv)
    return max(0, free_bytes - need.without_kv)
