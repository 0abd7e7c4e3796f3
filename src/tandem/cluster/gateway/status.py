"""What a gateway knows, told to operators and metrics."""

from tandem.cluster.gateway.members import Member
from tandem.cluster.gateway.pool_nodes import PoolNode
from tandem.messages.gateway import PoolNodeStatus, WorkerStatus


def worker_status(member: Member, heard_ago_s: float) -> WorkerStatus:
    """One worker, heard of last `heard_ago_s` ago."""
    deeds, export = member.deeds, member.hello.export
    return WorkerStatus(
        worker=member.name,
        pool=member.hello.pool,
        incarnation=member.hello.incarnation,
        role=member.role,
        accepting=member.accepting,
        heard_ago_s=heard_ago_s,
        load=member.load,
        total_blocks=export.block_count,
        prompts=deeds.prompts,
        output_tokens=deeds.output_tokens,
        transfers=deeds.transfers,
        failed_transfers=deeds.failed_transfers,
        moved_bytes=deeds.moved_bytes,
        sent_bytes=deeds.sent_bytes,
        spans=deeds.spans,
        seconds=deeds.seconds,
        connectors=tuple(deeds.connectors),
        export=export,
        fetches=deeds.fetches,
        failed_fetches=deeds.failed_fetches,
        fetched_tokens=deeds.fetched_tokens,
        fetched_bytes=deeds.fetched_bytes,
        fetch_seconds=deeds.fetch_seconds,
        tiers=member.tiers,
    )


def pool_node_status(node: PoolNode, heard_ago_s: float) -> PoolNodeStatus:
    """One process of the shared pool, heard of last `heard_ago_s` ago."""
    hello = node.hello
    return PoolNodeStatus(
        node=node.name,
        incarnation=hello.incarnation,
        address=hello.address,
        heard_ago_s=heard_ago_s,
        capacity_blocks=hello.capacity_blocks,
        block_bytes=hello.format.block_bytes,
        tiers=node.tiers,
    )
