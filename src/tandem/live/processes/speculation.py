"""Makes who drafts for a model in this process, as it was planned."""

from collections.abc import Callable

import msgspec

from tandem.config.kv_format import beside, layout_of
from tandem.config.options import ServeOptions
from tandem.config.speculation import DraftSource
from tandem.engine.proposers.contract import Proposer
from tandem.engine.proposers.draft_model import DraftModelProposer
from tandem.engine.proposers.eagle import EagleProposer
from tandem.engine.proposers.medusa import MedusaProposer
from tandem.engine.proposers.ngram import NgramProposer
from tandem.engine.slots import Slots
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import scratch_blocks
from tandem.kernels.prompt_lookup import NgramSizes
from tandem.kv.store import KvStore
from tandem.live.processes.model import PlannedModel, load_model, plan_model
from tandem.models.decoder import Decoder
from tandem.models.directory import read_fields
from tandem.models.eagle import load_eagle
from tandem.models.medusa import load_medusa
from tandem.models.weights import WeightForm

MakeProposer = Callable[[Decoder, Slots], Proposer]


def proposer_maker(
    planned: PlannedModel, options: ServeOptions, threads: int
) -> MakeProposer | None:
    """Loads what drafts for the planned model; None where nobody does. Raises
    `InvalidConfiguration` for what does not suit the model."""
    source, plan = planned.drafts, planned.plan
    if options.speculation == "none":
        return None
    if source is None:
        sizes = NgramSizes(options.prompt_lookup_min, options.prompt_lookup_max)
        return lambda decoder, slots: NgramProposer(decoder.kernels, slots, sizes)
    directory, branches = source.directory, options.speculation_branches
    if source.kind == "draft":
        draft = _draft_model(planned, source, options, threads)
        draft_kv = _draft_kv(planned, source, options)
        return lambda _, slots: DraftModelProposer(draft, draft_kv, slots, branches)
    config = read_fields(directory / "config.json")
    # As exact as they are stored: they are small, and a guess that is off is of no use.
    form = WeightForm("bfloat16", planned.compute, plan.device)
    if source.kind == "medusa":
        heads = load_medusa(directory, config, planned.spec, form, planned.kernels)
        return lambda decoder, slots: MedusaProposer(decoder, slots, heads, branches)
    head = load_eagle(directory, config, planned.spec, form, planned.kernels)
    kv = _draft_kv(planned, source, options)
    return lambda decoder, slots: EagleProposer(decoder, head, kv, slots, branches)


def _draft_model(
    planned: PlannedModel, source: DraftSource, options: ServeOptions, threads: int
) -> Decoder:
    assert source.spec is not None
    if source.spec.vocabulary_tokens != planned.spec.vocabulary_tokens:
        raise InvalidConfiguration(
            f"speculation-model: {source.directory.name} has {source.spec.vocabulary_tokens} "
            f"tokens and {planned.name} has {planned.spec.vocabulary_tokens}; choose a draft model "
            "of the same family"
        )
    own = msgspec.structs.replace(
        beside(options),
        speculation="none",
        speculation_model="",
        enable_lora=False,
        lora_modules=(),
        kv_cache_memory="1TiB",
        max_model_len=0,
    )
    return load_model(plan_model(str(source.directory), own, ()), own, threads)


def _draft_kv(planned: PlannedModel, source: DraftSource, options: ServeOptions) -> KvStore:
    """In the blocks of the planned model's, and some for each slot."""
    assert source.spec is not None
    plan = planned.plan
    layout = layout_of(source.spec, options, is_cpu=plan.device.type == "cpu")
    blocks = plan.worker.block_count + scratch_blocks(plan.slots.block_size) * plan.slots.slots
    return KvStore(layout, blocks, plan.device)
