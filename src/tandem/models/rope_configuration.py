"""Reads the rotary embedding of a config.json, in the spellings of the last years.

Old: `rope_theta` and `rope_scaling` with `type` or `rope_type`. New: all in `rope_parameters`.
"""

import math

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from tandem.models.config_file import Fields

DEFAULT_THETA = 10_000.0
UNSCALED = ("default", "none")
SUPPORTED = (*UNSCALED, "linear", "llama3", "yarn")


def read_rope(config: Fields, context_tokens: int) -> RopeSpec:
    """`context_tokens` stands in where the length of the original training is not given."""
    rope = config.group("rope_parameters") or config.group("rope_scaling") or Fields("rope", {})
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if theta <= 1.0:
        raise InvalidConfiguration(f"{config.label}: rope_theta is {theta:g}; expected more than 1")
    partial_factor = rope.number(
        "partial_rotary_factor", config.number("partial_rotary_factor", 1.0)
    )
    if partial_factor > 1.0:
        raise InvalidConfiguration(
            f"{config.label}: partial_rotary_factor is {partial_factor:g}; expected at most 1"
        )
    original_tokens = config.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", context_tokens),
    )
    return RopeSpec(theta, _read_scaling(rope, original_tokens), partial_factor)


def _read_scaling(rope: Fields, original_tokens: int) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in UNSCALED:
        if any(isinstance(value, dict) for value in rope.values.values()):
            raise InvalidConfiguration(
                f"{rope.label} differs by layer type, which is not supported; "
                "expected one set of parameters for all layers"
            )
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return _read_llama3(rope, original_tokens)
    if kind == "yarn":
        return _read_yarn(rope, original_tokens)
    raise InvalidConfiguration(
        f"{rope.label}: rope_type is {kind!r}, which is not supported; "
        f"expected one of {', '.join(SUPPORTED)}"
    )


def _read_llama3(rope: Fields, original_tokens: int) -> Llama3Scaling:
    low = rope.number("low_freq_factor")
    high = rope.number("high_freq_factor")
    if high <= low:
        rope.refuse("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
    return Llama3Scaling(rope.number("factor"), low, high, original_tokens)


def _read_yarn(rope: Fields, original_tokens: int) -> YarnScaling:
    factor = rope.number("factor")
    if rope.has("attention_factor"):
        attention_factor = rope.number("attention_factor")
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        attention_factor = _temper(factor, rope.number("mscale")) / _temper(
            factor, rope.number("mscale_all_dim")
        )
    else:
        attention_factor = _temper(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context_tokens=original_tokens,
        attention_factor=attention_factor,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _temper(factor: float, scale: float) -> float:
    """YaRN's softmax temperature for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0
