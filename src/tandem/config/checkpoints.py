"""The folder of a model as a user names it: a bundled one, a folder or a file in one, or a name on
the Hugging Face hub; and whether it can be served with these options, as far as that is known
before torch is loaded."""

from pathlib import Path

from tandem.config.environment import (
    BUNDLED_MODEL,
    BUNDLED_MODELS,
    bundled_directory,
    may_have_gpu,
)
from tandem.config.kv_format import storage_of
from tandem.config.memory import check_sizes, model_facts
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.model import ModelSpec
from tandem.models.directory import find_model


def find_checkpoint(model: str | None, revision: str) -> Path:
    """None is the bundled model; the bundled ones have names, too, which ask no network. Raises
    `InvalidConfiguration`."""
    if model is None:
        return BUNDLED_MODEL
    if bundled := bundled_directory(model):
        return bundled
    try:
        return find_model(model, revision)
    except InvalidConfiguration as error:
        hint = nearest(model, [each.name for each in BUNDLED_MODELS], lists=False)
        raise InvalidConfiguration(f"{error}{hint}") from error


def check_model(model: str | None, options: ServeOptions) -> ModelSpec:
    """Fetches the model if it is not here. Raises `InvalidConfiguration` for what a server with
    these options would stumble over once torch is loaded, which takes seconds."""
    facts = model_facts(find_checkpoint(model, options.revision), options)
    check_sizes(options, facts.spec)
    on_cpu = not may_have_gpu()
    if options.device == "cuda" and on_cpu:
        raise InvalidConfiguration("device: cuda is not available here; use --device cpu")
    storage_of(options, facts.spec, is_cpu=on_cpu or options.device == "cpu")
    if options.cascade_model:
        try:
            find_checkpoint(options.cascade_model, "main")
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"cascade-model: {error}") from error
    return facts.spec
