"""The two models of a cascade in one process: found and sized side by side, and checked to have the
same tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from tandem.config.checkpoints import find_checkpoint
from tandem.config.kv_format import beside
from tandem.config.memory import model_facts
from tandem.config.options import ServeOptions
from tandem.config.resolve import machine_facts, memory_shares
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.model import PlannedModel, plan_model
from tandem.models.directory import checkpoint_path, model_label
from tandem.policy.cascade import ConfidenceFloor
from tandem.text.model import TextModel


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that was planned with its own `options`."""

    planned: PlannedModel
    options: ServeOptions

    @property
    def served_names(self) -> tuple[str, ...]:
        return self.options.served_model_name or (model_label(self.planned.name),)


def confidence_floor(options: ServeOptions) -> ConfidenceFloor | None:
    """When the small model's answer counts; None without a cascade. Raises
    `InvalidConfiguration`."""
    floor = ConfidenceFloor(options.cascade_floor, options.cascade_window)
    if options.cascade_model:
        return floor
    if floor != ConfidenceFloor():
        raise InvalidConfiguration(
            "cascade-floor and cascade-window are those of a model cascade; name its smaller model "
            "(--cascade-model), or leave them out"
        )
    return None


def plan_cascade(model: str | None, options: ServeOptions) -> tuple[ServedModel, ServedModel]:
    """The large model, whose name is served, and the small one. They divide the memory
    (`memory_shares`). Raises `InvalidConfiguration`."""
    large_facts = model_facts(find_checkpoint(model, options.revision), options)
    small_options = msgspec.structs.replace(beside(options), revision="main", speculation="none")
    small = options.cascade_model
    with _of_small_model():
        small_facts = model_facts(find_checkpoint(small, "main"), small_options)
    if options.max_model_len > small_facts.spec.context_tokens:
        # The large model answers what is longer.
        small_options = msgspec.structs.replace(
            small_options, max_model_len=small_facts.spec.context_tokens
        )
    large_share, small_share = memory_shares(
        [(options, large_facts), (small_options, small_facts)], machine_facts()
    )
    large = ServedModel(plan_model(model, options, share=large_share), options)
    name = model_label(checkpoint_path(small))
    if name in large.served_names:
        # Metrics are by name.
        name = f"{name}-small"
    small_options = msgspec.structs.replace(small_options, served_model_name=(name,))
    with _of_small_model():
        planned = plan_model(small, small_options, share=small_share)
    return large, ServedModel(planned, small_options)


@contextmanager
def _of_small_model() -> Iterator[None]:
    """Errors of the block name the option of the small model."""
    try:
        yield
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"cascade-model: {error}") from error


def check_same_tokens(
    large: ServedModel, large_text: TextModel, small: ServedModel, small_text: TextModel
) -> None:
    """Raises `InvalidConfiguration` where a token id means something else to the one model than to
    the other: both get the same ids."""
    if differing := small_text.tokenizer.differs_from(large_text.tokenizer):
        raise InvalidConfiguration(
            f"cascade-model: {small.planned.name} has another {differing} than "
            f"{large.planned.name}; choose a smaller model of the same family"
        )
