"""The state of the fleet at one instant, for the timeline of a run."""

from msgspec import Struct

from tandem.cluster.router.request_state import Stage
from tandem.facts.fleet import Role
from tandem.report.record import Sample
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.worker import SimulatedWorker


class Totals(Struct):
    """Of one worker, or of all of them together."""

    queued_prefill_tokens: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    prefill_workers: int = 0

    def add(self, other: "Totals", times: int = 1) -> None:
        """Count the other in, or (`times` -1) out again."""
        self.queued_prefill_tokens += times * other.queued_prefill_tokens
        self.waiting_requests += times * other.waiting_requests
        self.used_blocks += times * other.used_blocks
        self.total_blocks += times * other.total_blocks
        self.prefill_workers += times * other.prefill_workers


class Timeline:
    """Takes samples of a cluster. Totals over all workers are kept: a sample looks only at the
    workers that changed since the one before."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._counted: dict[SimulatedWorker, Totals] = {}
        self._totals = Totals()

    def sample(self, now_ns: int) -> Sample:
        """The fleet and every request on its way, as they are now."""
        cluster, gateway = self._cluster, self._cluster.gateway
        in_line = computing = decoding = 0
        for state in () if gateway is None else gateway.machine.router.requests.values():
            stage = state.stage
            if stage is Stage.DECODING or stage is Stage.MOVING:
                decoding += 1
            elif stage is Stage.PREFILLING:
                computing += 1
            elif stage is Stage.QUEUED:
                in_line += 1
        for worker in cluster.take_changed():
            self._look(worker)
        totals = self._totals
        total_blocks, waiting = totals.total_blocks, totals.waiting_requests
        return Sample(
            now_ns=now_ns,
            waiting_requests=in_line + waiting,
            prefilling_requests=max(0, computing - waiting),
            decoding_requests=decoding,
            queued_prefill_tokens=totals.queued_prefill_tokens,
            kv_used=totals.used_blocks / total_blocks if total_blocks else 0.0,
            prefill_workers=totals.prefill_workers,
            decode_workers=len(cluster.workers) - totals.prefill_workers,
            moving_bytes=cluster.transfers.network.moving_bytes(now_ns),
        )

    def _look(self, worker: SimulatedWorker) -> None:
        """Count the worker as it is now; one that is not up any more adds nothing."""
        before = self._counted.pop(worker, None)
        if before is not None:
            self._totals.add(before, -1)
        if self._cluster.workers.get(worker.name) is not worker:
            return
        load, block_count = worker.loads.worker_load, worker.block_count
        counted = self._counted[worker] = Totals(
            queued_prefill_tokens=load.queued_prefill_tokens,
            waiting_requests=load.waiting_requests,
            used_blocks=block_count - load.free_blocks,
            total_blocks=block_count,
            prefill_workers=int(worker.role is Role.PREFILL),
        )
        self._totals.add(counted)
