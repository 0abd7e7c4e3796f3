"""What one gateway sees of its cluster (`facts.overview.Overview`)."""

from collections.abc import Iterator

from tandem.facts.fleet import Role
from tandem.facts.kv import TierFigures
from tandem.facts.overview import (
    ClassSlo,
    ClusterEvent,
    Overview,
    PlannerOverview,
    QueueOverview,
    TierOverview,
    WorkerOverview,
)
from tandem.facts.slo import Slo
from tandem.messages.gateway import ClusterStatus, WorkerStatus
from tandem.messages.planning import PlanningStatus
from tandem.observe.timeline import Timeline
from tandem.policy.qos.classes import Classes
from tandem.policy.routing.policies import ROUTINGS


def gateway_overview(
    model: str,
    status: ClusterStatus,
    timeline: Timeline,
    events: tuple[ClusterEvent, ...],
    slos: tuple[ClassSlo, ...],
    *,
    queues: tuple[QueueOverview, ...],
    now_ns: int,
) -> Overview:
    """As the gateway knows it at this instant. The bins of the `timeline` are left out: they may be
    added up with others' first."""
    return Overview(
        server=status.gateway,
        model=model,
        up_s=status.up_s,
        workers=tuple(_worker(each) for each in status.workers),
        tiers=tuple(_tiers(status)),
        queues=queues,
        slos=slos,
        bin_s=timeline.bin_ns / 1e9,
        current_bin=timeline.number_at(now_ns),
        bins=(),
        waiting=status.waiting_requests,
        running=status.running_requests,
        finished=status.finished_requests,
        takeovers=status.takeovers,
        recomputed_tokens=status.recomputed_tokens,
        events=events,
        planner=None if status.planning is None else _planner(status.planning),
        has_roles=True,
        routings=tuple(ROUTINGS),
    )


def class_slos(slo: Slo, classes: Classes) -> tuple[ClassSlo, ...]:
    """The SLO of each class, and that of everybody else."""
    named = [(each.name, each.slo) for each in classes.classes if not each.slo.empty]
    if not slo.empty:
        named.append(("", slo))
    return tuple(ClassSlo(name, each.ttft_s, each.tpot_s) for name, each in named)


def _worker(status: WorkerStatus) -> WorkerOverview:
    load = status.load
    return WorkerOverview(
        worker=status.worker,
        role=Role(status.role).value,
        state="ready" if status.accepting else "spare" if status.spare else "draining",
        running=load.running_sequences,
        waiting=load.waiting_requests,
        used_blocks=status.total_blocks - load.free_blocks,
        total_blocks=status.total_blocks,
        block_size=status.export.geometry.block_size,
        pool=status.pool,
        last_seen_s=status.last_seen_s,
        prompts=status.prompts,
        output_tokens=status.output_tokens,
        sent_bytes=status.sent_bytes,
        moved_bytes=status.moved_bytes,
        failed_transfers=status.failed_transfers,
        read_from=dict(status.read_from),
    )


def _tiers(status: ClusterStatus) -> Iterator[TierOverview]:
    """Of workers and processes of the shared pool."""
    owners = [(each.worker, each.tiers) for each in status.workers]
    owners += [(each.node, each.tiers) for each in status.pool_nodes]
    for owner, tiers in owners:
        yield from (_tier(owner, figures) for figures in tiers)


def _tier(owner: str, figures: TierFigures) -> TierOverview:
    return TierOverview(
        owner,
        figures.tier.value,
        figures.blocks,
        figures.capacity_blocks,
        figures.fetched_blocks,
        figures.missed_blocks,
        figures.corrupt_blocks,
        figures.on,
        figures.reason,
    )


def _planner(planning: PlanningStatus) -> PlannerOverview:
    """The decisions of a status have no instants of their own but the last."""
    last_ns = planning.decisions[-1].instant_ns if planning.decisions else 0
    decisions = (
        ClusterEvent(
            planning.decided_ago_s + (last_ns - each.instant_ns) / 1e9,
            ", ".join(action.kind.value for action in each.actions),
            each.text,
        )
        for each in planning.decisions
    )
    stuck = [f"not waited for: {each.worker} ({each.why})" for each in planning.stuck]
    held = [f"left alone: {each.worker} ({each.why})" for each in planning.held]
    starting = [f"starting: {each.worker} as {each.role}" for each in planning.starting]
    return PlannerOverview(
        planning.policy,
        planning.mode.value,
        planning.last_reason,
        tuple(decisions),
        (*starting, *held, *stuck),
    )
