"""The status of a cluster as operators and metrics read it."""

from tandem.cluster.gateway.members import Member
from tandem.cluster.gateway.pool_nodes import PoolNode
from tandem.messages.gateway import PoolNodeStatus, WorkerStatus


def worker_status(member: Member, heard_ago_s: float) -> WorkerStatus:
    """One worker, heard of last `heard_ago_s` ago."""
    counters, export = member.counters, member.registration.export
    return WorkerStatus(
        worker=member.name,
        pool=member.registration.pool,
        incarnation=member.registration.incarnation,
        role=member.role,
        accepting=member.accepting,
        heard_ago_s=heard_ago_s,
        load=member.load,
        total_blocks=export.block_count,
        prompts=counters.prompts,
        output_tokens=counters.output_tokens,
        transfers=counters.transfers,
        failed_transfers=counters.failed_transfers,
        moved_bytes=counters.moved_bytes,
        sent_bytes=counters.sent_bytes,
        spans=counters.spans,
        seconds=counters.seconds,
        connectors=tuple(counters.connectors),
        export=export,
        fetches=counters.fetches,
        failed_fetches=counters.failed_fetches,
        fetched_tokens=counters.fetched_tokens,
        fetched_bytes=counters.fetched_bytes,
        fetch_seconds=counters.fetch_seconds,
        tiers=member.tiers,
    )


def pool_node_status(node: PoolNode, heard_ago_s: float) -> PoolNodeStatus:
    """One process of the shared pool, heard of last `heard_ago_s` ago."""
    register = node.registration
    return PoolNodeStatus(
        node=node.name,
        incarnation=register.incarnation,
        address=register.address,
        heard_ago_s=heard_ago_s,
        capacity_blocks=register.capacity_blocks,
        block_bytes=register.format.block_bytes,
        tiers=node.tiers,
    )
