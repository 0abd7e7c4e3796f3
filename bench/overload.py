"""Overload: goodput below, at and past the knee by admission policy, and what becomes of a premium
class while a free one floods. Both in the simulator; with --live also on a cluster of this machine,
the twin's figure beside each.

Usage: python bench/overload.py TRACES [--requests 4000] [--processes 2] [--only knee,flood]
       python bench/overload.py --live [--requests 600] [--seconds 60] [--only knee,flood]
"""

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flood_live import flood_live_and_twin
from overload_live import live_and_twin
from published_runs import CONVERSATION, Bench
from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import merge, speed, window
from tandem.commands.simulated_runs import Run, Trial
from tandem.config.cluster.file import read_cluster
from tandem.facts.trace import TraceRow
from tandem.report.record import RequestRecord

AZURE = "AzureLLMInferenceTrace_conv_2023.csv.gz"
BREAKER = "{name: prediction, breaker: {}}"
POLICIES = {
    "none": "none",
    "threshold": "threshold",
    "load": "load",
    "prediction": "prediction",
    "prediction + breaker": BREAKER,
}
# Of the recorded speed of the trace: up to which 90 % of all requests keep the SLO without
# admission (the first row of the table shows it).
KNEE = 2.0
FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)
SLO = ("slo.ttft=10s", "slo.tpot=50ms")


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and what was."""

    what: str
    least: float
    found: float

    def text(self) -> str:
        verdict = "holds" if self.found >= self.least else "MISSED"
        return f"{verdict:<7} {self.what}: {self.found:.1%} (at least {self.least:.0%})"


def kept_of_admitted(run: Run) -> float:
    finished = run.summary.endings.get("finished", 0)
    return run.summary.attainment * run.summary.requests / max(1, finished)


def knee(bench: Bench, console: Console) -> list[Bar]:
    """The conversation trace on sixteen workers, at shares of the knee."""
    rows = bench.rows(CONVERSATION)
    trials = [
        Trial(label, read_cluster("mooncake-16", (f"policies.admission={policy}", *SLO)), x * KNEE)
        for label, policy in POLICIES.items()
        for x in FACTORS
    ]
    runs = {(run.trial.label, run.trial.speed / KNEE): run for run in bench.play(trials, rows)}
    table = Table(
        title=f"{len(rows):,} requests of Mooncake's conversation trace, 8 + 8 workers; "
        "goodput/s (of all, of the admitted that kept TTFT 10 s and TPOT 50 ms)"
    )
    table.add_column("admission")
    for x in FACTORS:
        table.add_column(f"{x:g}x", justify="right")
    for label in POLICIES:
        cells = [_cell(runs[label, x]) for x in FACTORS]
        table.add_row(label, *cells)
    console.print(table)
    best = runs["prediction + breaker", 2.0]
    goodputs = [runs["prediction + breaker", x].summary.goodput_rps for x in FACTORS]
    peak = max(goodputs)
    at_knee = runs["none", 1.0].summary
    return [
        Bar(
            "goodput at 2x, of its peak up to there",
            0.9,
            best.summary.goodput_rps / max(goodputs[:4]),
        ),
        Bar("of the admitted at 2x keep the SLO", 0.95, kept_of_admitted(best)),
        Bar("goodput at 3x, of its peak", 0.9, goodputs[-1] / peak),
        Bar(
            "goodput at 1.5x (3x of the trace), of that at the knee without",
            0.8,
            goodputs[2] / at_knee.goodput_rps,
        ),
        Bar("keep the SLO at the knee without admission", 0.9, at_knee.attainment),
    ]


def _cell(run: Run) -> str:
    kept = kept_of_admitted(run)
    return f"{run.summary.goodput_rps:.2f} ({run.summary.attainment:.0%}, {kept:.0%})"


# Four nodes, two classes. Free has six times the patience, and no say.
FLOODED = """
model: llama-3-70b
block_size: 64
pools:
  - {name: prefill, role: prefill, count: 2, device: a100, tensor_parallel: 8,
     max_num_batched_tokens: 2048}
  - {name: decode, role: decode, count: 2, device: a100, tensor_parallel: 8}
network: {fabric: 100 GB/s, latency: 10us}
policies: {routing: cost}
slo: {ttft: 6s, tpot: 100ms}
classes:
  - {name: premium, priority: 0, slo: {ttft: 1s, tpot: 50ms}}
  - {name: free, priority: 5, default: true}
tenants:
  - {name: acme, service_class: premium}
  - {name: bolt, service_class: premium}
  - {name: flood, service_class: free}
  - {name: quiet, service_class: free}
"""
# Requests a second that these four nodes serve of Azure's conversations within the SLO of free.
CAPACITY_RPS = 12.0
PREMIUM_SHARE, FREE_SHARE = 0.5, 5.0


def flooded_rows(traces: Path, seconds: float) -> list[TraceRow]:
    """Premium at half of what the cluster serves, free at five times that: nine of ten of its
    requests are one tenant's."""
    recorded = read_trace(traces / AZURE)
    recorded_rps = len(recorded) / recorded[-1].arrival_s
    parts = []
    for service, tenants, share in (
        ("premium", ("acme", "bolt"), PREMIUM_SHARE),
        ("free", ("flood",) * 9 + ("quiet",), FREE_SHARE),
    ):
        rows = speed(recorded, share * CAPACITY_RPS / recorded_rps)
        parts.append(
            [
                replace(row, tenant=tenants[place % len(tenants)], service_class=service)
                for place, row in enumerate(window(rows, seconds=seconds))
            ]
        )
    return merge(parts)


def flood(bench: Bench, console: Console) -> list[Bar]:
    """Premium and free by policy, tenant by tenant."""
    rows = flooded_rows(bench.traces, 120.0 if bench.first is None else bench.first / 40)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(FLOODED)
        file.flush()
        trials = [
            Trial(label, read_cluster(file.name, (f"policies.admission={policy}",)), 1.0)
            for label, policy in POLICIES.items()
        ]
        runs = bench.play(trials, rows)
    table = Table(
        title=f"{len(rows):,} of Azure's conversations on 2 + 2 workers: premium at half of what "
        "they serve, free at five times; share of all that kept its SLO (of the admitted)"
    )
    table.add_column("admission")
    names = ("premium", "free", "acme", "bolt", "flood", "quiet")
    for name in names:
        table.add_column(name, justify="right")
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for run in runs:
        found[run.trial.label] = {name: _kept(run, name) for name in names}
        cells = [f"{all_:.0%} ({own:.0%})" for all_, own in found[run.trial.label].values()]
        table.add_row(run.trial.label, *cells)
    console.print(table)
    ours = found["prediction + breaker"]
    return [
        Bar("of all premium requests keep their SLO while free floods", 0.95, ours["premium"][0]),
        Bar(
            "the quiet free tenant is served, of its share",
            0.9,
            ours["quiet"][0] / max(1e-9, ours["free"][0]),
        ),
    ]


def _kept(run: Run, name: str) -> tuple[float, float]:
    """Of a class or tenant: who kept the SLO, of all and of the admitted."""

    def is_own(request: RequestRecord) -> bool:
        return name in (request.service_class, request.tenant)

    own = [request for request in run.record.requests if is_own(request)]
    kept = sum(run.terms.kept(request) for request in own)
    admitted = sum(request.finished for request in own)
    return kept / max(1, len(own)), kept / max(1, admitted)


PARTS = {"knee": knee, "flood": flood}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="?", help="the folder of the traces")
    parser.add_argument("--live", action="store_true", help="on a cluster of this machine")
    parser.add_argument(
        "--requests", type=int, help="of the trace (4000; 0: all), of each live run"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each flood, live")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="knee,flood")
    wishes = parser.parse_args()
    console = Console(width=120)
    if wishes.live:
        compared = {name: POLICIES[name] for name in ("none", "prediction", "prediction + breaker")}
        if "knee" in wishes.only.split(","):
            live_and_twin(compared, wishes.requests or 600, console)
        if "flood" in wishes.only.split(","):
            flood_live_and_twin(compared, wishes.seconds, console)
        return
    if wishes.traces is None:
        parser.error("name the folder of the traces, or --live")
    requests = 4000 if wishes.requests is None else wishes.requests
    bench = Bench(wishes.traces, wishes.processes, requests or None)
    bars: list[Bar] = []
    for name in wishes.only.split(","):
        bars += PARTS[name](bench, console)
    for bar in bars:
        console.print(bar.text(), highlight=False)


if __name__ == "__main__":
    main()
