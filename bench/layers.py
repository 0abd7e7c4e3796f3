"""What a step costs around its matrices: 24 layers of next to no features, one token at a time, in
one call into C++ and operation by operation from Python. Rounds take turns."""

import statistics
from dataclasses import replace

from figures import Figure
from limits import summarised
from model import BLOCK_SIZE, HALF_BILLION, Rig, load
from steps import request
from tandem.facts.model import AttentionSpec
from tandem.kernels.faces import Kernels

ROUNDS, CONTEXT_TOKENS, DECODE_TOKENS = 7, 128, 60
LAYERS = HALF_BILLION.layers
TINY = replace(
    HALF_BILLION,
    hidden_features=128,
    feed_forward_features=128,
    vocabulary_tokens=1024,
    attention=AttentionSpec(2, 2, 64, 64**-0.5, (None,) * LAYERS, qkv_bias=True),
)


def layers_figure(kernels: Kernels) -> Figure:
    """Milliseconds a step; the limit is what the walk takes. The first round is not counted."""
    rigs = [
        Rig.around(
            load(TINY, "float32", each, None), slots=1, blocks=TINY.context_tokens // BLOCK_SIZE
        )
        for each in (kernels, replace(kernels, join_step=None, join_layers=None))
    ]
    rounds: list[list[float]] = [[], []]
    for number in range(1 + ROUNDS):
        for rig, found in zip(rigs, rounds, strict=True):
            steps = rig.timed([request(f"{number}", CONTEXT_TOKENS, DECODE_TOKENS)])
            if number:
                found.append(1e3 * statistics.median(seconds for _, seconds in steps[3:]))
    joined, walked = map(summarised, rounds)
    name = f"a step of one token around the matrices of {LAYERS} layers"
    return Figure(
        name, joined.median, "ms", joined.spread, walked.median, "ms from Python", "", False
    )
