"""Every family of metrics that a server or a gateway can have, whatever its shape, from the real
collectors."""

from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace
from prometheus_client import Metric

from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.adapter import AdapterFigures, AdapterMemory
from tandem.facts.errors import Rejection
from tandem.facts.fleet import PlanningMode, Tier
from tandem.facts.kv import TierFigures
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.gateway import BreakerStatus, ClusterStatus, PauseStatus
from tandem.messages.planning import PlanningStatus, SimulationStatus
from tandem.messages.worker import EmitTokens
from tandem.observe.cascade_metrics import CascadeMetrics
from tandem.observe.cluster_metrics import GatewayMetrics
from tandem.observe.metrics import ShownAdapters, WorkerMetrics
from tandem.policy.speculation import Speculation
from tests.live.statuses import worker_status
from tests.live.toy_cluster import worker_config

PROMPT, ANSWER, CACHED = 40, 3, 16
TENANT = "acme"


def a_whole_cluster() -> "WholeCluster":
    """A gateway of everything, after one request."""
    cluster = WholeCluster(GatewayMetrics("m", (TENANT,)))
    cluster.count_requests()
    return cluster


class WholeCluster:
    """A gateway whose cluster has all that there is: workers with tiers that speculate and serve
    adapters, tenants, breakers, pauses, a planner with a simulator."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.metrics = metrics
        tier = TierFigures(
            Tier.DISK, True, 7, 20, 9, 8, 1, 0, 0, 2e-6, 1e-6, tenant_blocks=((TENANT, 4),)
        )
        busy = replace(
            worker_status("w-0", moved_bytes=1 << 20),
            adapters=AdapterFigures(("a" * 32,), (), 2, AdapterMemory(1, 2, 3, loads=1)),
            drafts=DraftTotals(3, 9, 5, (3, 2)),
            tiers=(tier,),
            steps=(StepTotals(False, 3, 10, 20_000_000, 0, 0, 0, 40, 900, 40),),
        )
        status = ClusterStatus("g", 1.0, (busy, worker_status("w-1")), 0, 0, 0, 0, ())
        self._status = replace(
            status,
            planning=PlanningStatus(
                "tandem", PlanningMode.AUTOMATIC, simulation=SimulationStatus()
            ),
            breakers=(BreakerStatus("standard", "closed", 1.0, 0, ""),),
            pauses=PauseStatus(1, 1, 1, 0, 0, 0, 0, 0.0),
        )

    def count_requests(self) -> None:
        """One that is answered, and one that is refused."""
        requests = self.metrics.requests
        wanted = SamplingParameters(max_tokens=ANSWER)
        request = Request("r", (1,) * PROMPT, wanted, tenant=TENANT)
        requests.arrived(request, 0)
        self.metrics.sent([request], 1_000_000)
        for token in range(ANSWER):
            reason = FinishReason.LENGTH if token == ANSWER - 1 else None
            emission = EmitTokens(("r",), (token,), (reason,), (False,), (CACHED,))
            requests.emitted(emission, (token + 2) * 10_000_000)
        requests.rejected_at_once(TENANT, Rejection.QUEUE, 60_000_000)

    def families(self) -> Iterator[Metric]:
        """Of the cluster, and of a cascade."""
        yield from self.metrics.families(self._status)
        yield from CascadeMetrics("m").families()


def one_worker() -> Iterator[Metric]:
    """The families of `tandem serve` with speculation and adapters."""
    machine = WorkerMachine(worker_config(speculation=Speculation()))
    adapters = ShownAdapters(lambda: AdapterMemory(1, 2, 3), dict)
    yield from WorkerMetrics("one", machine, adapters).families()


class EveryFamily:
    """What a generator tells that is everything at once. Each look counts further requests."""

    def __init__(self) -> None:
        self._cluster = a_whole_cluster()

    def metric_families(self) -> Iterator[Metric]:
        self._cluster.count_requests()
        return chain(self._cluster.families(), one_worker())
