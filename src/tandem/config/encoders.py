"""Encoders that a server has beside its model, as options say them."""

from collections.abc import Sequence

import msgspec

from tandem.config.checkpoints import find_checkpoint
from tandem.facts.encoder import PoolingMode
from tandem.facts.errors import InvalidConfiguration
from tandem.policy.dynamic_batching import DynamicBatching

OPTION = "encoder-models"
MOST_THREADS = 1024


class EncoderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One encoder: where it is, and how its texts are batched. `max_queue_size` texts wait at most.
    `pooling` and `normalize` are the checkpoint's own unless they are given. With 0 `threads` it
    has as many as the server's model, and one in a gateway."""

    name: str
    path: str
    max_batch_size: int = 32
    max_batch_tokens: int = 8192
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ms: float = 0.0
    max_queue_size: int = 4096
    pooling: PoolingMode | None = None
    normalize: bool | None = None
    threads: int = 0

    @property
    def batching(self) -> DynamicBatching:
        """Raises `ValueError` for what is out of range."""
        return DynamicBatching(
            self.max_batch_size,
            self.max_batch_tokens,
            self.preferred_batch_sizes,
            int(self.max_queue_delay_ms * 1e6),
        )


def encoder_options(models: Sequence[str]) -> tuple[EncoderOptions, ...]:
    """`name=path` each, or a JSON object with the fields of `EncoderOptions`. Raises
    `InvalidConfiguration`."""
    found: dict[str, EncoderOptions] = {}
    for model in models:
        each = _one(model)
        if not (each.name and each.path):
            raise InvalidConfiguration(f"{OPTION}: expected name=path or JSON, got {model!r}")
        if each.name in found:
            raise InvalidConfiguration(f"{OPTION}: {each.name} is named twice")
        if each.max_queue_size < 1:
            raise InvalidConfiguration(f"{OPTION}: {each.name}: max_queue_size must be at least 1")
        if not 0 <= each.threads <= MOST_THREADS:
            raise InvalidConfiguration(
                f"{OPTION}: {each.name}: threads must be between 0 and {MOST_THREADS}"
            )
        try:
            _ = each.batching
        except ValueError as error:
            raise InvalidConfiguration(f"{OPTION}: {each.name}: {error}") from error
        found[each.name] = each
    return tuple(found.values())


def check_encoders(models: Sequence[str], revision: str) -> None:
    """They are there, as far as that is known before torch is loaded. Raises
    `InvalidConfiguration`."""
    for each in encoder_options(models):
        try:
            find_checkpoint(each.path, revision)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{OPTION}: {each.name}: {error}") from error


def _one(model: str) -> EncoderOptions:
    if not model.startswith("{"):
        name, _, path = model.partition("=")
        return EncoderOptions(name=name, path=path)
    try:
        return msgspec.json.decode(model, type=EncoderOptions)
    except msgspec.MsgspecError as error:
        raise InvalidConfiguration(f"{OPTION}: {error}, in {model!r}") from error
