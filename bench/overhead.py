"""What a step costs beside the model: deciding, laying out the batch, sampling, bookkeeping.

The model has one layer of eight features, and a head that has the rows to draw from. With many
sequences that is not nothing: what it takes is shown beside.
"""

import gc
import time
from itertools import pairwise

import torch

from figures import Figure
from limits import summarised, timed
from model import CPU, Rig, load
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.steps import StepRows

VOCABULARY_TOKENS = 2560
STEPS = 120
# By then all prompts are computed.
ENTRY_STEPS = 40
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


def overhead_figures_of(
    kernels: Kernels, sequences: int, goal_us: float, sampled: bool
) -> list[Figure]:
    """Median microseconds of a whole decode step with `sequences` running; and how many of them it
    takes to have the logits of the last one again, with the call and the layout of its batch: its
    attention goes over up to 190 tokens of each sequence, its head writes 2,560 features."""
    decoder = load(SPEC, "float32", kernels, None)
    rig = Rig.around(decoder, sequences, 2 * sequences * 16)
    # As the processes that serve do: the collector goes through none of what is there by now.
    gc.freeze()
    sampling = SamplingParameters(
        temperature=1.0 if sampled else 0.0, max_tokens=STEPS + ENTRY_STEPS
    )
    requests = [Request(str(index), tuple(range(1, 33)), sampling) for index in range(sequences)]
    instants: list[float] = []
    rows: list[StepRows] = []

    def run(plan: StepPlan) -> StepResult:
        # All decode.
        if len(plan.counts) == plan.batched_tokens == sequences:
            instants.append(time.perf_counter())
            rows[:] = [StepRows(plan.slots, plan.starts, plan.counts, plan.counts)]
        return rig.engine.run(plan)

    rig.answer(requests, run)
    gaps = [(later - sooner) * 1e6 for sooner, later in pairwise(instants)]
    decode_gaps = gaps[-STEPS // 2 :]
    assert len(decode_gaps) == STEPS // 2
    model = decoder.join_step(rig.engine.slots.columns, rig.engine.kv)
    assert model is not None
    model_us = timed(lambda: model.logits(rows[0]), STEPS, warmups=5)
    whole = summarised(decode_gaps)
    name = f"{sequences} running, {'sampled' if sampled else 'greedy'}"
    return [
        Figure(
            f"engine overhead, {name}",
            whole.median,
            "µs/step",
            whole.spread,
            goal_us,
            "µs goal",
            f"≤ {goal_us:.0f} µs",
            higher_is_better=False,
        ),
        Figure(f"  of it logits alone, {name}", model_us.median * 1e6, "µs", model_us.spread * 1e6),
    ]


def overhead_figures(_kernels: Kernels) -> list[Figure]:
    # As models in float32 are served, whatever multiplies the others.
    kernels, _ = choose_kernels(CPU, torch.float32, allow_native=True, arithmetic="float32")
    return [
        figure
        for sequences, goal_us in ((16, 150.0), (256, 700.0))
        for sampled in (False, True)
        for figure in overhead_figures_of(kernels, sequences, goal_us, sampled)
    ]
