"""Speculation as the options name it: who drafts, where its weights lie, and what memory it takes.

Needs no torch: launchers ask, too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tandem.config.environment import (
    BUNDLED_DRAFT,
    BUNDLED_EAGLE,
    BUNDLED_MEDUSA,
    BUNDLED_MODEL,
    bundled_directory,
)
from tandem.config.kv_format import keeps_codes, layout_of, storage_of
from tandem.config.options import Proposers, ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.facts.steps import scratch_blocks
from tandem.models.configuration import EAGLE_QUERY_NORM, read_eagle_spec, read_model_spec
from tandem.models.directory import find_model, read_fields
from tandem.models.footprint import (
    NO_CODES,
    STORAGE_BYTES,
    CheckpointSizes,
    CodeForms,
    checkpoint_sizes,
    header_shapes,
    weight_bytes,
)
from tandem.models.parallel import WHOLE
from tandem.policy.speculation import Speculation

# What drafts for the bundled model where nothing else is named.
_BUNDLED = {"draft": BUNDLED_DRAFT, "medusa": BUNDLED_MEDUSA, "eagle": BUNDLED_EAGLE}


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A draft model, or heads, in `directory`: `spec` says what KV it has, None without; `shapes`
    are those of the tensors there, by name, empty where weights are made up."""

    kind: Proposers
    directory: Path
    spec: ModelSpec | None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    codes: CodeForms = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Of heads, which are held in fp32."""
        return sum(4 * math.prod(shape) for shape in self.shapes.values())


def speculation_of(options: ServeOptions) -> Speculation | None:
    """How far to speculate, if at all. Raises `InvalidConfiguration` where nothing branches."""
    if options.speculation == "none":
        return None
    if options.speculation_branches > 1 and options.speculation == "ngram":
        raise InvalidConfiguration(
            "speculation-branches is for --speculation draft, medusa, eagle; it is ngram"
        )
    return Speculation(options.speculation_tokens, options.speculation_adaptive)


def _named_directory(name: str) -> Path:
    """Of `speculation-model`. Raises `InvalidConfiguration`."""
    try:
        return bundled_directory(name) or find_model(name)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"speculation-model: {error}") from error


def draft_source(options: ServeOptions, directory: Path) -> DraftSource | None:
    """What is to be loaded beside the model in `directory`; None for a proposer without weights.
    Raises `InvalidConfiguration`."""
    kind, name = options.speculation, options.speculation_model
    if kind not in _BUNDLED:
        if name:
            raise InvalidConfiguration(
                f"speculation-model is for --speculation {', '.join(_BUNDLED)}; it is {kind}"
            )
        return None
    if name:
        found = _named_directory(name)
    elif directory == BUNDLED_MODEL:
        found = _BUNDLED[kind]
    else:
        raise InvalidConfiguration(
            f"speculation {kind} needs speculation-model: the directory or name of what drafts"
        )
    dummy = options.load_format == "dummy"
    if kind == "draft":
        spec = read_model_spec(found)
        sizes = CheckpointSizes({}) if dummy else checkpoint_sizes(found, spec)
        return DraftSource(kind, found, spec, sizes.shapes, sizes.codes)
    model_type = read_fields(found / "config.json").text("model_type", "")
    if model_type != kind:
        raise InvalidConfiguration(
            f"{found}: model_type is {model_type or 'missing'}; expected {kind} (speculation)"
        )
    shapes = header_shapes(found)
    if kind == "medusa":
        return DraftSource(kind, found, None, shapes)
    config, qk_norm = read_fields(found / "config.json"), EAGLE_QUERY_NORM in shapes
    spec = read_eagle_spec(config, read_model_spec(directory), qk_norm=qk_norm)
    return DraftSource(kind, found, spec, shapes)


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """Of what drafts beside a model: `source` None takes none."""

    source: DraftSource | None = None

    def block_bytes(self, options: ServeOptions, *, is_cpu: bool) -> int:
        """Of its KV, beside each block of the model's."""
        if self.source is None or self.source.spec is None:
            return 0
        return layout_of(self.source.spec, options, is_cpu=is_cpu).block_bytes

    def other_bytes(self, options: ServeOptions, *, is_cpu: bool) -> int:
        """Its weights, and the KV of drafts that have no block yet. Raises
        `InvalidConfiguration`."""
        source = self.source
        if source is None:
            return 0
        scratch = scratch_blocks(options.block_size) * options.max_num_seqs
        kv_bytes = scratch * self.block_bytes(options, is_cpu=is_cpu)
        if source.kind != "draft" or source.spec is None:
            return source.weight_bytes + kv_bytes
        storage = storage_of(options, source.spec, is_cpu=is_cpu)
        compute_bytes = 4 if is_cpu else int(STORAGE_BYTES[storage])
        weights = weight_bytes(
            source.spec,
            source.shapes,
            (WHOLE,),
            storage=storage,
            compute_bytes=compute_bytes,
            codes=source.codes if keeps_codes(options, is_cpu=is_cpu) else NO_CODES,
        )
        return weights.peak + kv_bytes


NO_DRAFT_MEMORY = DraftMemory()
