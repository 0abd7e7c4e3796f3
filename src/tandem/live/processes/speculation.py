"""Makes who drafts for a model in this process, as it was planned."""

from collections.abc import Callable

import msgspec

from tandem.config.kv_format import layout_of
from tandem.config.options import ServeOptions
from tandem.config.speculation import DraftSource
from tandem.engine.proposers.contract import Proposer
from tandem.engine.proposers.draft_model import DraftModelProposer
from tandem.engine.proposers.medusa import MedusaProposer
from tandem.engine.proposers.ngram import NgramProposer, NgramSizes
from tandem.engine.slots import Slots
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import scratch_blocks
from tandem.kv.store import KvStore
from tandem.live.processes.model import PlannedModel, load_model, plan_model
from tandem.models.decoder import Decoder
from tandem.models.directory import read_fields
from tandem.models.medusa import load_medusa

MakeProposer = Callable[[Decoder, Slots], Proposer]


def proposer_maker(
    planned: PlannedModel, options: ServeOptions, threads: int
) -> MakeProposer | None:
    """Loads what drafts for the planned model; None where nobody does. Raises
    `InvalidConfiguration` for what does not suit the model."""
    source = planned.drafts
    if options.speculation == "none":
        return None
    if source is None:
        sizes = NgramSizes(options.prompt_lookup_min, options.prompt_lookup_max)
        return lambda _, slots: NgramProposer(slots, sizes)
    if source.spec is not None:
        return _draft_model(planned, source, options, threads)
    plan = planned.plan
    heads = load_medusa(
        source.directory,
        read_fields(source.directory / "config.json"),
        planned.spec,
        planned.compute,
        plan.device,
    )
    return lambda decoder, slots: MedusaProposer(decoder, slots, heads)


def _draft_model(
    planned: PlannedModel, source: DraftSource, options: ServeOptions, threads: int
) -> MakeProposer:
    """A draft model whose KV has the blocks of the planned one."""
    assert source.spec is not None
    plan = planned.plan
    if source.spec.vocabulary_tokens != planned.spec.vocabulary_tokens:
        raise InvalidConfiguration(
            f"speculation-model: {source.directory.name} has {source.spec.vocabulary_tokens} "
            f"tokens and {planned.name} has {planned.spec.vocabulary_tokens}; choose a draft model "
            "of the same family"
        )
    own = msgspec.structs.replace(
        options, speculation="none", speculation_model="", kv_cache_memory="1TiB", max_model_len=0
    )
    draft = plan_model(str(source.directory), own, ())
    decoder = load_model(draft, own, threads)
    layout = layout_of(source.spec, options, is_cpu=plan.device.type == "cpu")
    slots = plan.slots
    blocks = plan.worker.block_count + scratch_blocks(slots.block_size) * slots.slots
    kv = KvStore(layout, blocks, plan.device)
    return lambda _, engine_slots: DraftModelProposer(decoder, kv, engine_slots)
