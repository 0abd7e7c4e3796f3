"""The requests that both sides of a comparison answer, and how fast we answer them."""

import time

from model import Rig
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters

CONCURRENT = 16
SINGLE = (64, 32)
# Prompt and answer lengths of 16 concurrent requests: mixed, as users are.
MIXED = [(32 + 29 * index % 192, 16 + 37 * index % 112) for index in range(CONCURRENT)]


def prompt(index: int, tokens: int) -> list[int]:
    return [(31 * index + 7 * position) % 5000 + 1 for position in range(tokens)]


def answers(rig: Rig, lengths: list[tuple[int, int]]) -> dict[str, list[int]]:
    """What we say to these prompts, greedily, each answer of its full length."""
    return rig.answer(
        [
            Request(
                f"{index}",
                tuple(prompt(index, length)),
                SamplingParameters(temperature=0.0, max_tokens=answer),
            )
            for index, (length, answer) in enumerate(lengths)
        ]
    )


def our_rate(rig: Rig, lengths: list[tuple[int, int]]) -> float:
    """Tokens a second from the first request to the last answer."""
    start = time.perf_counter()
    said = answers(rig, lengths)
    return sum(len(answer) for answer in said.values()) / (time.perf_counter() - start)
