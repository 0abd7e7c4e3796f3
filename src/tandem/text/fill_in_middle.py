"""Prompts for what stands between two texts, for models that learnt it, in the order prefix,
suffix, middle (Bavarian et al. 2022, Efficient Training of Language Models to Fill in the Middle).

Which tokens stand before, between and behind both texts is no part of a checkpoint's files, but
models that have learnt it have tokens of these names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.text.tokenizer import Tokenizer

_MARKS = (
    # Qwen2.5-Coder, CodeGemma
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite, CodeQwen
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # DeepSeek-Coder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """The token ids before the prefix, before the suffix, and before what is asked for."""

    prefix: int
    suffix: int
    middle: int

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """The tokens after which the middle comes."""
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


def fill_in_middle(tokenizer: Tokenizer) -> FillInMiddle | None:
    """None for a model without such tokens."""
    for names in _MARKS:
        prefix, suffix, middle = (tokenizer.token_id(name) for name in names)
        if prefix is not None and suffix is not None and middle is not None:
            return FillInMiddle(prefix, suffix, middle)
    return None
