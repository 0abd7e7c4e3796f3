"""Philox4x32-10 in torch int64 arithmetic (Salmon et al., Parallel random numbers, SC 2011)."""

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four output words of each counter; all tensors int64 holding 32 bits, broadcast together."""
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(ROUNDS):
        high_0, low_0 = multiply(word_0, MULTIPLIER_0)
        high_1, low_1 = multiply(word_2, MULTIPLIER_1)
        word_0, word_1 = high_1 ^ word_1 ^ key_0, low_1
        word_2, word_3 = high_0 ^ word_3 ^ key_1, low_0
        key_0, key_1 = (key_0 + WEYL_0) & WORD, (key_1 + WEYL_1) & WORD
    return word_0, word_1, word_2, word_3


def multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    # int64 products wrap, but their 64 bits are those of the unsigned product.
    product = word * multiplier
    return (product >> 32) & WORD, product & WORD


def gumbel(seed_R: Tensor, position_R: Tensor, vocabulary: int) -> Tensor:
    """noise_RV in float64."""
    quads = torch.arange((vocabulary + 3) // 4, device=seed_R.device)[None, :]
    seed_R1, position_R1 = seed_R[:, None], position_R[:, None]
    counter = (
        quads,
        position_R1 & WORD,
        (position_R1 >> 32) & WORD,
        torch.zeros_like(position_R1),
    )
    words = philox(counter, (seed_R1 & WORD, (seed_R1 >> 32) & WORD))
    word_RV = torch.stack(words, dim=-1).flatten(1)[:, :vocabulary]
    uniform_RV = ((word_RV >> 8).to(torch.float64) + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform_RV))
