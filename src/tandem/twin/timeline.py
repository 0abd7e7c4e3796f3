"""What the fleet looks like at one instant, for the timeline of a run."""

from tandem.cluster.router.request_state import Stage
from tandem.facts.fleet import Role
from tandem.report.record import Sample
from tandem.twin.world import World


def sample(world: World, now_ns: int) -> Sample:
    """A look at every worker and every request on its way."""
    in_line = computing = decoding = 0
    for state in world.router.requests.values():
        stage = state.stage
        in_line += stage is Stage.QUEUED
        computing += stage is Stage.PREFILLING
        decoding += stage is Stage.MOVING or stage is Stage.DECODING
    queued_prefill_tokens = used_blocks = total_blocks = prefilling = waiting = 0
    for member in world.members.up.values():
        load = member.worker.load(now_ns)
        queued_prefill_tokens += load.queued_prefill_tokens
        waiting += load.waiting_requests
        total_blocks += member.pool.kind.block_count
        used_blocks += member.pool.kind.block_count - load.free_blocks
        prefilling += member.role is Role.PREFILL
    return Sample(
        now_ns=now_ns,
        waiting_requests=in_line + waiting,
        prefilling_requests=max(0, computing - waiting),
        decoding_requests=decoding,
        queued_prefill_tokens=queued_prefill_tokens,
        kv_used=used_blocks / total_blocks if total_blocks else 0.0,
        prefill_workers=prefilling,
        decode_workers=len(world.members.up) - prefilling,
        moving_bytes=world.transport.shipping.network.moving_bytes(now_ns),
    )
