"""What the fleet looks like at one instant, for the timeline of a run."""

from tandem.cluster.router.request_state import Stage
from tandem.facts.fleet import Role
from tandem.report.record import Sample
from tandem.twin.cluster import SimulatedCluster


def sample(cluster: SimulatedCluster, now_ns: int) -> Sample:
    """A look at every worker and every request on its way."""
    in_line = computing = decoding = 0
    gateway = cluster.gateway
    for state in () if gateway is None else gateway.machine.router.requests.values():
        stage = state.stage
        in_line += stage is Stage.QUEUED
        computing += stage is Stage.PREFILLING
        decoding += stage is Stage.MOVING or stage is Stage.DECODING
    queued_prefill_tokens = used_blocks = total_blocks = prefilling = waiting = 0
    for worker in cluster.workers.values():
        load, block_count = worker.machine_load, worker.block_count
        if load.queued_prefill_tokens:
            queued_prefill_tokens += load.queued_prefill_tokens
        if load.waiting_requests:
            waiting += load.waiting_requests
        total_blocks += block_count
        used_blocks += block_count - load.free_blocks
        if worker.machine.role_state.role is Role.PREFILL:
            prefilling += 1
    return Sample(
        now_ns=now_ns,
        waiting_requests=in_line + waiting,
        prefilling_requests=max(0, computing - waiting),
        decoding_requests=decoding,
        queued_prefill_tokens=queued_prefill_tokens,
        kv_used=used_blocks / total_blocks if total_blocks else 0.0,
        prefill_workers=prefilling,
        decode_workers=len(cluster.workers) - prefilling,
        moving_bytes=cluster.transfers.network.moving_bytes(now_ns),
    )
