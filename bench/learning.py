"""What routing by listed costs loses where a worker is not as listed, and what learning gives back.

python bench/learning.py [--minutes 5] [--rate 9]

Simulated: 2 prefill and 2 decode workers of an 8B model, the same arrivals each time, with and
without `policies.learning`.
"""

from random import Random
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import read_cluster
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.report.statistics import latencies
from tandem.report.summary import Terms, summarise
from tandem.twin.simulation import simulate

CLUSTER = """
model: llama-3.1-8b
block_size: 64
pools:
  - {{name: prefill, role: prefill, count: 2, device: a100}}
  - {{name: decode, role: decode, count: 2, device: a100}}
network: {{fabric: 25 GB/s, latency: 10us}}
policies: {{routing: cost, learning: {learning}}}
slo: {{ttft: 2s, tpot: 40ms}}
faults: [{faults}]
"""
CASES = {
    "as listed": "",
    "one prefill worker 4x slow": "{at: 0, throttle: prefill-0, factor: 0.25}",
    "one decode worker 4x slow": "{at: 0, throttle: decode-0, factor: 0.25}",
    "one link 10x slow": "{at: 0, slow: decode-0, factor: 0.1}",
    "decode pool half as fast as listed": ", ".join(
        f"{{at: 0, throttle: decode-{index}, factor: 0.5}}" for index in range(2)
    ),
    "one prefill worker throttled from 1 to 2.5 min": (
        "{at: 1m, throttle: prefill-0, factor: 0.25, for: 90s}"
    ),
}


def arrivals(rate_rps: float, seconds: float) -> list[TraceRow]:
    """Poisson arrivals of prompts of 500 to 4,500 tokens and answers of 50 to 350."""
    chance, now_s, rows = Random(1), 0.0, []
    while (now_s := now_s + chance.expovariate(rate_rps)) < seconds:
        rows.append(TraceRow(now_s, chance.randint(500, 4500), chance.randint(50, 350)))
    return rows


def main(
    minutes: Annotated[float, typer.Option(help="Of arrivals.")] = 5.0,
    rate: Annotated[float, typer.Option(help="Requests a second.")] = 9.0,
) -> None:
    rows = arrivals(rate, 60 * minutes)
    columns = (
        "",
        "learning",
        "within SLO",
        "TTFT p50",
        "p99",
        "TPOT mean",
        "measured/predicted TTFT",
        "TPOT",
    )
    table = Table(*columns, box=None)
    for case, faults in CASES.items():
        for learning in ("none", "measured"):
            with NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(CLUSTER.format(learning=learning, faults=faults))
                file.flush()
                cluster = read_cluster(file.name)
            run = simulate(scenario_of(cluster), rows)
            summary = summarise(run, Terms(Slo(ttft_s=2.0, tpot_s=0.04)))
            found = latencies(run.requests, ())
            assert found.ttft is not None
            assert found.tpot is not None
            ratios = summary.predictions.ttft_ratio or 0.0, summary.predictions.tpot_ratio or 0.0
            table.add_row(
                case if learning == "none" else "",
                learning,
                f"{summary.attainment:.1%}",
                f"{found.ttft.p50_ns / 1e9:.2f} s",
                f"{found.ttft.p99_ns / 1e9:.2f} s",
                f"{found.tpot.mean_ns / 1e6:.1f} ms",
                *(f"{ratio:.2f}" for ratio in ratios),
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
