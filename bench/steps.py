"""Decode and prefill of the dummy model against memory bandwidth and matrix speed."""

import time

from figures import Figure
from limits import best_of, measure_limits, summarised
from model import HALF_BILLION, Rig, load, streamed_bytes
from tandem.facts.model import ModelSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import Storage
from tandem.models.decoder import Decoder

DECODE_TOKENS = 24
PREFILL_TOKENS = 2048
PREFILL_RUNS = 3
# Of what memory gives.
DECODE_GOALS: dict[Storage, float] = {"float32": 0.8, "bfloat16": 0.8, "int8": 0.75, "int4": 0.65}


def request(name: str, prompt_tokens: int, max_tokens: int) -> Request:
    prompt = tuple((7 * index + len(name)) % 1000 + 1 for index in range(prompt_tokens))
    return Request(name, prompt, SamplingParameters(temperature=0.0, max_tokens=max_tokens))


def decode_figure(decoder: Decoder, storage: Storage) -> Figure:
    """Batch 1: every step streams all weights once."""
    rig = Rig.around(decoder, slots=1, blocks=256)
    steps: list[float] = []
    before = measure_limits()

    def run(plan: StepPlan) -> StepResult:
        start = time.perf_counter()
        result = rig.engine.run(plan)
        steps.append(time.perf_counter() - start)
        return result

    rig.answer([request("decode", 64, DECODE_TOKENS)], run)
    timing = summarised(steps[2:])
    limits = best_of(before, measure_limits())
    gb_s = streamed_bytes(decoder) / timing.median / 1e9
    return Figure(
        f"decode, batch 1, {storage} ({1 / timing.median:.1f} tok/s)",
        gb_s,
        "GB/s",
        gb_s * timing.spread / timing.median,
        limits.stream_bytes_s / 1e9,
        "GB/s stream",
        f"≥ {DECODE_GOALS[storage]:.2f}",
    )


def prefill_flops(spec: ModelSpec, tokens: int) -> float:
    """Multiply-adds of the layers twice, and of causal attention; the head sees one row only."""
    matrices = 2.0 * spec.layers * spec.layer_parameters * tokens
    attention = 2.0 * spec.layers * spec.attention.query_features * tokens * tokens
    return matrices + attention + 2.0 * spec.vocabulary_tokens * spec.hidden_features


def prefill_figure(decoder: Decoder, storage: Storage) -> Figure:
    """One prompt in one chunk, up to its first token."""
    rig = Rig.around(decoder, slots=1, blocks=256)
    before = measure_limits()
    seconds = []
    for index in range(1 + PREFILL_RUNS):
        start = time.perf_counter()
        rig.answer([request(f"prefill{index}", PREFILL_TOKENS, 1)])
        seconds.append(time.perf_counter() - start)
    timing = summarised(seconds[1:])
    limits = best_of(before, measure_limits())
    gflops = prefill_flops(HALF_BILLION, PREFILL_TOKENS) / timing.median / 1e9
    return Figure(
        f"prefill of 2,048 tokens, {storage} ({PREFILL_TOKENS / timing.median:.0f} tok/s)",
        gflops,
        "GFLOP/s",
        gflops * timing.spread / timing.median,
        limits.sgemm_flops_s / 1e9,
        "GFLOP/s sgemm",
        "≥ 0.60",
    )


def step_figures(kernels: Kernels, storages: list[Storage]) -> list[Figure]:
    """Each figure beside limits measured right before and after it: the bandwidth of a shared
    machine changes within minutes, and the better of the two counts."""
    figures = []
    for storage in storages:
        decoder = load(HALF_BILLION, storage, kernels, None)
        figures.append(decode_figure(decoder, storage))
        if storage in ("float32", "bfloat16"):
            figures.append(prefill_figure(decoder, storage))
    return figures
