"""Overload of a real cluster on this machine, with the twin beside it: one worker with the bundled
model, priced by a profile that is measured first, and `tandem bench` as its clients.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.commands.simulated_runs import Run, Trial, run_trials
from tandem.config.cluster.file import read_cluster
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem_process import TANDEM, serving

TEXT = """
name: overload
model: tandem-mini
block_size: 16
serve: {{port: 0, threads: 1}}
pools:
  - {{name: worker, role: both, count: 1, device: cpu, max_num_seqs: 32, kv_dtype: float32,
     max_num_batched_tokens: 1024, time_model: {{name: profile, path: {profile}}}}}
policies: {{admission: {admission}}}
slo: {{ttft: 1s, tpot: 50ms}}
"""
SLO = Slo(ttft_s=1.0, tpot_s=0.05)
PROMPT_TOKENS, ANSWER_TOKENS = 768, 32
FACTORS = (0.5, 1.0, 2.0, 3.0)
# Of what the cluster does when it is never idle: beyond it waiting grows quickly.
KNEE_SHARE = 0.8


@dataclass(frozen=True)
class Outcome:
    """Requests a second that kept the SLO, and their share of all and of the admitted."""

    goodput_rps: float
    kept: float
    kept_of_admitted: float

    def __str__(self) -> str:
        return f"{self.goodput_rps:.2f} ({self.kept:.0%}, {self.kept_of_admitted:.0%})"


def live_and_twin(policies: dict[str, str], requests: int, console: Console) -> None:
    """Goodput by admission at shares of the knee, live and in the twin on the same arrivals."""
    table = Table(
        title=f"{requests} requests of {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens, tandem-mini here; "
        f"goodput/s (of all, of the admitted that kept {SLO})"
    )
    for column in (
        "admission",
        *(f"{x:g}x {world}" for x in FACTORS for world in ("live", "twin")),
    ):
        table.add_column(column, justify="right")
    with TemporaryDirectory() as passing:
        folder = Path(passing)
        profile = folder / "profile.json"
        subprocess.run(
            [*TANDEM, "calibrate", "--out", str(profile), "--threads=1"],
            check=True,
            stdout=sys.stderr,
        )
        with cluster(folder, profile, "none") as url:
            rows = load(url, folder, requests, "--concurrency=64")
        knee_rps = KNEE_SHARE * len(rows) / _span_s(rows)
        console.print(f"the knee is taken to be at {knee_rps:.2f} requests/s")
        for label, policy in policies.items():
            cells: list[str] = []
            for factor in FACTORS:
                with cluster(folder, profile, policy) as url:
                    rows = load(url, folder, requests, f"--rate={factor * knee_rps:.3f}")
                live, twin = measured(rows), simulated(folder / "cluster.yaml", rows)
                cells += [str(live), str(twin)]
            table.add_row(label, *cells)
    console.print(table)


@contextmanager
def cluster(folder: Path, profile: Path, admission: str) -> Iterator[str]:
    """The URL of a cluster that runs until the block ends."""
    file, state = folder / "cluster.yaml", folder / "state"
    file.write_text(TEXT.format(profile=profile, admission=admission))
    with serving("up", str(file), "--state-dir", str(state)) as url:
        yield url


def load(url: str, folder: Path, requests: int, *options: str) -> list[dict[str, Any]]:
    """What became of each request of `tandem bench`."""
    records = folder / "records.jsonl"
    lengths = (
        f"--input-tokens={PROMPT_TOKENS}",
        f"--output-tokens={ANSWER_TOKENS}",
        "--ignore-eos",
    )
    command = [*TANDEM, "bench", "--url", url, f"--requests={requests}", *lengths, *options]
    command += [f"--records={records}", "--no-progress"]
    subprocess.run(command, stdout=sys.stderr, check=False)
    return [json.loads(line) for line in records.read_text().splitlines()]


def measured(rows: Sequence[dict[str, Any]]) -> Outcome:
    admitted = [row for row in rows if not row["error"]]
    kept = sum(SLO.kept(row["ttft_s"], row["tpot_s"], None) for row in admitted)
    return Outcome(kept / _span_s(rows), kept / len(rows), kept / max(1, len(admitted)))


def simulated(file: Path, rows: Sequence[dict[str, Any]]) -> Outcome:
    """The same cluster file and the same arrivals."""
    trace = [TraceRow(row["sent_s"], PROMPT_TOKENS, ANSWER_TOKENS) for row in rows]
    trial = Trial("twin", read_cluster(str(file)), 1.0)
    (record,) = run_trials([trial], sorted(trace, key=lambda row: row.arrival_s), 1, lambda _: None)
    summary = Run(trial, record).summary
    finished = summary.endings.get("finished", 0)
    kept_of_admitted = summary.attainment * summary.requests / max(1, finished)
    return Outcome(summary.goodput_rps, summary.attainment, kept_of_admitted)


def _span_s(rows: Sequence[dict[str, Any]]) -> float:
    last_s = max(row["sent_s"] + row["latency_s"] for row in rows)
    return float(max(1e-3, last_s - min(row["sent_s"] for row in rows)))
