"""What a step costs beside the model: deciding, laying out the batch, sampling, bookkeeping.

The model has one layer of eight features: next to nothing, but its head has the rows to draw from.
"""

import statistics
import time
from itertools import pairwise

from figures import Figure
from model import Rig, load
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import Kernels

VOCABULARY_TOKENS = 2560
STEPS = 120
SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    layers=1,
    hidden_features=8,
    feed_forward_features=8,
    vocabulary_tokens=VOCABULARY_TOKENS,
    context_tokens=2048,
    norm=NormSpec(eps=1e-6),
    attention=AttentionSpec(1, 1, 8, 1.0, (None,)),
    rope=RopeSpec(),
)


def overhead_figure(kernels: Kernels, sequences: int, goal_us: float, sampled: bool) -> Figure:
    """Median microseconds of a whole decode step with `sequences` running."""
    decoder = load(SPEC, "float32", kernels, None)
    rig = Rig.around(decoder, sequences, 2 * sequences * 16)
    sampling = SamplingParameters(temperature=1.0 if sampled else 0.0, max_tokens=STEPS)
    requests = [Request(str(index), tuple(range(1, 33)), sampling) for index in range(sequences)]
    instants: list[float] = []

    def run(plan: StepPlan) -> StepResult:
        instants.append(time.perf_counter())
        return rig.engine.run(plan)

    rig.answer(requests, run)
    gaps = [(later - sooner) * 1e6 for sooner, later in pairwise(instants)]
    decode_gaps = gaps[-STEPS // 2 :]
    low, median, high = statistics.quantiles(decode_gaps, n=4)
    return Figure(
        f"engine overhead, {sequences} running, {'sampled' if sampled else 'greedy'}",
        median,
        "µs/step",
        (high - low) / 2,
        goal_us,
        "µs goal",
        f"≤ {goal_us:.0f} µs",
        higher_is_better=False,
    )


def overhead_figures(kernels: Kernels) -> list[Figure]:
    return [
        overhead_figure(kernels, sequences, goal_us, sampled)
        for sequences, goal_us in ((16, 150.0), (256, 700.0))
        for sampled in (False, True)
    ]
