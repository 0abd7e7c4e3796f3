"""What a scrape of a gateway's `/metrics` takes, by the number of its workers.

python bench/metrics.py [--workers 64] [--tenants 8] [--repetitions 60]

Each worker has three tiers, speculates and serves adapters; the gateway has tenants, breakers of
three service classes and a planner. Measured is what stands between the status of the cluster and
the bytes of the page, in both formats that Prometheus asks for, in time of a processor: a scrape
waits for nothing.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import typer

from figures import Figure, show
from tandem.api.metrics_page import metrics_page
from tandem.facts.adapter import AdapterFigures, AdapterMemory
from tandem.facts.fleet import PlanningMode, Role, Tier
from tandem.facts.kv import KvExport, KvGeometry, TierFigures
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.gateway import BreakerStatus, ClusterStatus, PauseStatus, WorkerStatus
from tandem.messages.planning import PlanningStatus, SimulationStatus
from tandem.messages.router import LoadReported
from tandem.messages.worker import EmitTokens
from tandem.observe.cluster_metrics import GatewayMetrics

FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}
BAR_MS = 50.0
CLASSES = ("premium", "standard", "free")
TIERS = (Tier.HOST, Tier.DISK, Tier.REMOTE)
PROMPT = tuple(range(512))


def worker_status(index: int, tenants: tuple[str, ...]) -> WorkerStatus:
    role = Role.PREFILL if index % 4 == 0 else Role.DECODE
    name = f"{role}-{index}"
    blocks = tuple((tenant, 100 + index) for tenant in tenants)
    return WorkerStatus(
        worker=name,
        pool=role,
        incarnation="i",
        role=role,
        accepting=True,
        last_seen_s=0.05,
        load=LoadReported(name, 12, 3, 4_000, 9_000, 6_000),
        total_blocks=8_192,
        prompts=1_000 + index,
        output_tokens=250_000 + index,
        transfers=900,
        failed_transfers=1,
        moved_bytes=1 << 34,
        sent_bytes=1 << 33,
        spans=4_000,
        seconds=12.5,
        connectors=("tcp",),
        export=KvExport("m", "main", KvGeometry(28, 8, 128, 16, "bfloat16"), 8_192, ()),
        tiers=tuple(
            TierFigures(tier, True, 5_000, 9_000, 7_000, 6_000, 5, 0, 1, 2e-6, 9e-6, "", blocks)
            for tier in TIERS
        ),
        steps=(
            StepTotals(False, 3, 10_000, 20_000_000_000, 0, 0, 0, 40_000, 900_000, 40_000),
            StepTotals(True, 5, 2_000, 30_000_000_000, 2_000, 512_000, 70_000, 3_000, 80_000, 4),
        ),
        drafts=DraftTotals(30_000, 90_000, 50_000, (30_000, 15_000, 5_000)),
        adapters=AdapterFigures((), (), 4, AdapterMemory(2, 1 << 28, 1 << 30, 9, 5)),
    )


def a_cluster(workers: int, tenants: tuple[str, ...]) -> ClusterStatus:
    return ClusterStatus(
        "g0",
        3_600.0,
        tuple(worker_status(index, tenants) for index in range(workers)),
        waiting_requests=40,
        running_requests=700,
        finished_requests=90_000,
        takeovers=3,
        lost=(),
        planning=PlanningStatus(
            "tandem", PlanningMode.AUTOMATIC, simulation=SimulationStatus(9, 1, 4.0)
        ),
        breakers=tuple(BreakerStatus(name, "closed", 1.0, 0, "") for name in CLASSES),
        pauses=PauseStatus(90, 20, 400, 100, 50, 10, 40, 0.3),
    )


def some_requests(metrics: GatewayMetrics, tenants: tuple[str, ...]) -> None:
    """Each tenant has had one answer of a few tokens."""
    for tenant in tenants:
        request = Request(tenant, PROMPT, SamplingParameters(max_tokens=3), tenant=tenant)
        metrics.requests.arrived(request, 0)
        metrics.sent([request], 1_000_000)
        for place, reason in enumerate((None, None, FinishReason.LENGTH)):
            emission = EmitTokens((tenant,), (1,), (reason,), (False,), (256,))
            metrics.requests.emitted(emission, (place + 2) * 10_000_000)


def milliseconds(measured: Callable[[], object], repetitions: int) -> list[float]:
    """Of each repetition, in order of size; the first ones do not count."""
    durations = []
    for repetition in range(repetitions + 3):
        began = time.process_time()
        measured()
        if repetition >= 3:
            durations.append((time.process_time() - began) * 1e3)
    return sorted(durations)


def measure(workers: int, tenant_count: int, repetitions: int) -> list[Figure]:
    tenants = tuple(f"tenant-{index}" for index in range(tenant_count))
    metrics, status = GatewayMetrics("model", tenants), a_cluster(workers, tenants)
    # As a gateway does once it has started: what was imported is no garbage.
    gc.freeze()
    some_requests(metrics, tenants)
    figures = []
    for name, accept in FORMATS.items():

        def scrape(accept: str = accept) -> bytes:
            return metrics_page(metrics.families(status), prefix="tandem", accept=accept)[0]

        page = scrape()
        took_ms = milliseconds(scrape, repetitions)
        series = sum(not line.startswith(b"#") for line in page.splitlines())
        quarter = len(took_ms) // 4
        spread = (took_ms[-1 - quarter] - took_ms[quarter]) / 2
        p99_ms = took_ms[min(len(took_ms) - 1, int(len(took_ms) * 0.99))]
        figures += [
            Figure(
                f"{name}: a scrape, median",
                statistics.median(took_ms),
                "ms",
                spread,
                BAR_MS,
                "ms",
                "below",
                higher_is_better=False,
            ),
            Figure(
                f"{name}: a scrape, p99",
                p99_ms,
                "ms",
                0.0,
                BAR_MS,
                "ms",
                "below",
                higher_is_better=False,
            ),
            Figure(f"{name}: a page of {series:,} series", len(page) / 1e3, "kB"),
        ]
    return figures


def main(
    workers: Annotated[int, typer.Option(help="Of the cluster.")] = 64,
    tenants: Annotated[int, typer.Option(help="With metrics of their own.")] = 8,
    repetitions: Annotated[int, typer.Option(help="Scrapes of each format.")] = 60,
) -> None:
    show(measure(workers, tenants, repetitions), f"/metrics of a gateway with {workers} workers")


if __name__ == "__main__":
    typer.run(main)
