"""What a gateway knows, told to operators and metrics."""

from tandem.facts.gateway_messages import WorkerStatus
from tandem.machines.gateway.members import Member


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
    )
