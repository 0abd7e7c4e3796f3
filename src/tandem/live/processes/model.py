"""Finds the model of a process, fixes all sizes, and loads it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tandem.config.checkpoints import find_checkpoint
from tandem.config.environment import BUNDLED_MODEL, MachineFacts, cache_directory
from tandem.config.memory import adapter_bytes, model_facts
from tandem.config.options import ServeOptions
from tandem.config.resolve import ALL_MEMORY, MemoryShare, ServerPlan, machine_facts, resolve
from tandem.config.speculation import DraftSource
from tandem.engine.adapters import AdapterCache, no_adapter
from tandem.facts.model import ModelSpec
from tandem.kernels.arithmetic import arithmetic_of
from tandem.kernels.collectives.contract import ALONE, Collectives
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.native import return_freed_memory
from tandem.models.content import Weights, checkpoint_weights, content_of, dummy_weights
from tandem.models.decoder import Decoder
from tandem.models.directory import checkpoint_path
from tandem.models.load import LoadPlan, load_adapter, load_decoder
from tandem.models.parallel import WHOLE, Place
from tandem.models.weights import WeightForm


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that was found and every size of its server; nothing large is in memory yet. `spec`
    already has the context of the plan, whose root names these `weights` and `kernels` (chosen for
    the `reason`). `drafts` is what is loaded beside it to draft for it."""

    name: str
    directory: Path
    spec: ModelSpec
    plan: ServerPlan
    machine: MachineFacts
    weights: Weights
    kernels: Kernels
    reason: str
    drafts: DraftSource | None = None

    @property
    def compute(self) -> torch.dtype:
        return _compute(self.plan)


def plan_model(
    model: str | None,
    options: ServeOptions,
    ranks: Sequence[Place] = (WHOLE,),
    *,
    host_tier_bytes: int = 0,
    share: MemoryShare = ALL_MEMORY,
) -> PlannedModel:
    """`model` as `tandem serve` takes it; `ranks`, `host_tier_bytes` and `share` as `resolve` takes
    them. Raises `InvalidConfiguration`."""
    machine = machine_facts()
    directory = find_checkpoint(model, options.revision)
    name = BUNDLED_MODEL.name if model is None else checkpoint_path(model)
    facts = model_facts(directory, options)
    spec = facts.spec
    plan = resolve(options, facts, machine, ranks, host_tier_bytes=host_tier_bytes, share=share)
    weights = _weights(directory, options, plan.threads)
    kernels, reason = choose_kernels(
        *(plan.device, _compute(plan), options.native_kernels),
        *(plan.arithmetic(options.arithmetic), options.instruction_set),
    )
    plan = plan.of_model(
        content_of(spec, plan.storage, weights, facts.quantization, as_stored=plan.as_stored),
        arithmetic_of(
            *(kernels, plan.device, _compute(plan)),
            codes=plan.as_stored,
            kv_codes=plan.layout.dtype == "int8",
        ),
    )
    spec = replace(spec, context_tokens=plan.worker.context_tokens)
    return PlannedModel(
        *(str(name), directory, spec, plan, machine, weights, kernels, reason),
        facts.drafts.source,
    )


def load_model(
    planned: PlannedModel,
    options: ServeOptions,
    threads: int,
    *,
    place: Place = WHOLE,
    collectives: Collectives = ALONE,
) -> Decoder:
    """Read the weights, or make dummy ones; `place` and `collectives` as of `load_decoder`. Torch
    has so many threads from now on: loading packs the weights in the thread that calls it, not in
    the engine's."""
    torch.set_num_threads(threads)
    load = LoadPlan(
        planned.directory,
        WeightForm(
            planned.plan.storage, planned.compute, planned.plan.device, planned.plan.as_stored
        ),
        "dummy" if options.load_format == "dummy" else "safetensors",
        options.seed,
        planned.weights,
    )
    decoder = load_decoder(
        planned.spec, load, planned.kernels, place=place, collectives=collectives
    )
    return_freed_memory()
    return decoder


def adapter_cache(
    planned: PlannedModel, options: ServeOptions, place: Place = WHOLE
) -> AdapterCache:
    """Of an engine of this model, or of the share of one rank."""
    device, kernels = planned.plan.device, planned.kernels
    if not options.enable_lora:
        return AdapterCache(no_adapter, 0)
    return AdapterCache(
        partial(load_adapter, planned.spec, kernels=kernels, device=device, place=place),
        adapter_bytes(options, planned.spec),
    )


def _weights(directory: Path, options: ServeOptions, threads: int) -> Weights:
    """What the model's weights are known by. Raises `InvalidConfiguration`."""
    if options.load_format == "dummy":
        return dummy_weights(options.seed)
    return checkpoint_weights(directory, cache_directory() / "digests", threads)


def _compute(plan: ServerPlan) -> torch.dtype:
    """On a CPU weights are only stored in fewer bits; on a GPU they are also computed with."""
    return torch.float32 if plan.device.type == "cpu" else _torch_dtype(plan.storage)


def _torch_dtype(storage: str) -> torch.dtype:
    dtype = getattr(torch, storage)
    assert isinstance(dtype, torch.dtype)
    return dtype
