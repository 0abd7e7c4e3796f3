"""What a step costs beside the model: deciding, laying out the batch, sampling, bookkeeping."""

import statistics
import time
from itertools import pairwise

import torch
from torch import Tensor

from figures import Figure
from model import Rig
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import Kernels
from tandem.models.decoder import Decoder, KvLayers, TokenBatch
from tandem.models.parallel import WHOLE

VOCABULARY_TOKENS = 2560
STEPS = 120
SPEC = ModelSpec(
    architecture="none",
    layers=1,
    hidden_features=64,
    feed_forward_features=64,
    vocabulary_tokens=VOCABULARY_TOKENS,
    context_tokens=2048,
    norm=NormSpec(eps=1e-6),
    attention=AttentionSpec(1, 1, 16, 1.0, (None,)),
    rope=RopeSpec(),
)


class NoModel(Decoder):
    """A model that takes no time: what remains of a step is the engine."""

    def __init__(self, kernels: Kernels, rows: int) -> None:
        self.spec = SPEC
        self.kernels = kernels
        self.place = WHOLE
        self._hidden_RC = torch.zeros(rows, 1)
        self._logits_RV = torch.randn(rows, VOCABULARY_TOKENS)

    def forward(
        self,
        batch: TokenBatch,
        kv: KvLayers,  # noqa: ARG002 - no model
        received_XC: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        assert batch.wanted is not None
        return self._hidden_RC[: len(batch.wanted)]

    def logits(self, hidden_RC: Tensor) -> Tensor:
        return self._logits_RV[: len(hidden_RC)]


def overhead_figure(kernels: Kernels, sequences: int, goal_us: float, sampled: bool) -> Figure:
    """Median microseconds of a whole decode step with `sequences` running."""
    rig = Rig.around(NoModel(kernels, sequences), sequences, 2 * sequences * 16)
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
        for sequences, goal_us in ((16, 300.0), (256, 2000.0))
        for sampled in (False, True)
    ]
