"""TetriInfer (Hu and others, arXiv 2401.11181): which requests gain by disaggregation."""

import numpy as np

from published_fleets import AGGREGATED, STATIC, fleet, planned, poisson, split
from published_runs import SHAREGPT_LENGTHS, Bench, Finding, Report, mean_s
from tandem.bench.laws import draw_pairs, read_length_pairs
from tandem.commands.simulated_runs import Run, Trial
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.workers import PoolConfig

LIGHT_PROMPT, LIGHT_OUTPUT = 512, 128
OPT_CONTEXT = 2048
SPLITS = {"1P + 3D": (1, 3), "2P + 2D": (2, 2), "3P + 1D": (3, 1)}
PLANNED = "2P + 2D, tetri plans"
TETRI_ARMS = (AGGREGATED, *SPLITS, PLANNED)
CLASSES = {
    "light prompts, light answers": (True, True),
    "light prompts, heavy answers": (True, False),
    "heavy prompts, light answers": (False, True),
    "heavy prompts, heavy answers": (False, False),
}


def tetri(bench: Bench) -> Report:
    """Four workers for both phases against two for each, on four kinds of requests."""
    pairs = read_length_pairs(bench.traces / SHAREGPT_LENGTHS)
    table: list[tuple[str, ...]] = []
    speedups: dict[str, float] = {}
    for name, (light_prompt, light_output) in CLASSES.items():
        fits = pairs[:, 0] + pairs[:, 1] < OPT_CONTEXT
        prompts = (pairs[:, 0] <= LIGHT_PROMPT) == light_prompt
        outputs = (pairs[:, 1] <= LIGHT_OUTPUT) == light_output
        lengths = draw_pairs(
            pairs[fits & prompts & outputs],
            min(1_000, bench.first or 1_000),
            np.random.default_rng(0),
        )
        # Eight tenths of what the aggregated fleet gets through when everything waits at once.
        [full] = bench.play([_tetri(AGGREGATED)], poisson(lengths, float("inf")))
        rate_rps = 0.8 * full.summary.requests / full.summary.duration_s
        runs = bench.play([_tetri(arm) for arm in TETRI_ARMS], poisson(lengths, rate_rps))
        base = runs[0]
        for run in runs:
            latencies = run.summary.latencies
            table.append(
                (
                    f"{name}, {run.trial.label}" if run is base else f"  {run.trial.label}",
                    f"{rate_rps:.2f}/s",
                    f"{mean_s(latencies.ttft) * 1e3:,.0f} ms",
                    f"{latencies.itl.p99_ns / 1e6:,.0f} ms" if latencies.itl else "",
                    f"{mean_s(latencies.e2e):.2f} s",
                    f"{_jct(run) / _jct(base) - 1:+.0%}",
                )
            )
        speedups[name] = max(_jct(base) / _jct(run) for run in runs[1:])
    decode_heavy = [speedups[name] for name, (_, light) in CLASSES.items() if not light]
    prefill_heavy = speedups["heavy prompts, light answers"]
    return Report(
        "TetriInfer: what disaggregation gives to four kinds of requests",
        "OPT-13B on four A100: all for both phases, or split in three ways, or with their planner; "
        "lengths of ShareGPT split at 512 prompt and 128 output tokens; Poisson at 0.8 of "
        "the aggregated fleet's throughput",
        ("requests, fleet", "rate", "mean TTFT", "p99 gap", "mean JCT", "against aggregated"),
        table,
        [
            Finding(
                "a gain when answers are heavy (theirs: JCT -47 % at best)",
                min(decode_heavy) > 1,
                ", ".join(f"{1 / gain - 1:+.0%}" for gain in decode_heavy),
            ),
            Finding(
                "a loss when prompts are heavy and answers short",
                prefill_heavy < 1,
                f"{1 / prefill_heavy - 1:+.0%}",
            ),
        ],
        [
            "only the abstract of the paper was read: model, hardware and rates are our choice",
            "our aggregated workers mix phases under a token budget, so a prompt slows decoding "
            "down instead of stopping it as in the vLLM of 2023, their baseline",
        ],
    )


def _jct(run: Run) -> float:
    return mean_s(run.summary.latencies.e2e)


def _tetri(arm: str) -> Trial:
    worker = PoolConfig("worker", "a100")
    cluster = Cluster(
        model="opt-13b",
        pools=split(worker, *SPLITS[arm]) if arm in SPLITS else fleet(worker, 4, arm),
        policies=planned("tetri" if arm == PLANNED else STATIC, "least-load"),
        block_size=16,
        max_model_len=OPT_CONTEXT,
    )
    return Trial(arm, cluster, 1.0)
