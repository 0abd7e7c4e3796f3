"""One overview of what several gateways of a cluster see: what each has done is added up, what
workers report of themselves is the same at all of them."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from tandem.facts.overview import (
    BinCounts,
    ClusterEvent,
    Overview,
    QueueOverview,
    RequestLine,
    TierOverview,
    WorkerOverview,
)
from tandem.messages.observation import OverviewReported

# Gateways that say the same within so much time saw the same.
SAME_EVENT_S = 5.0


def combined(own: Overview, others: Sequence[Overview]) -> Overview:
    """Without bins, which `aligned` makes comparable. `own` is that of the gateway that shows."""
    every = (own, *others)
    return structs.replace(
        own,
        server=", ".join(sorted(each.server for each in every)),
        up_s=max(each.up_s for each in every),
        workers=tuple(_workers(every)),
        tiers=tuple(_tiers(every)),
        queues=tuple(_queues(every)),
        waiting=sum(each.waiting for each in every),
        running=sum(each.running for each in every),
        finished=sum(each.finished for each in every),
        takeovers=sum(each.takeovers for each in every),
        recomputed_tokens=sum(each.recomputed_tokens for each in every),
        events=tuple(_events(every)),
        planner=next((each.planner for each in every if each.planner is not None), None),
    )


def aligned(
    reported: OverviewReported, bin_ns: int, first: int, now_ns: int
) -> Iterator[BinCounts]:
    """Its bins from `first` on, by the numbers that they have on the clock that shows `now_ns`.
    Clocks of one machine are the same; between machines, bins begin up to half of one apart."""
    ahead = round((now_ns - reported.now_ns) / bin_ns)
    current = now_ns // bin_ns
    for counts in reported.bins:
        number = min(counts.number + ahead, current)
        if number >= first:
            yield structs.replace(counts, number=number)


def latest(lines: Iterable[RequestLine], most: int) -> list[RequestLine]:
    """Those that run, latest first, and then those that have ended last."""
    return sorted(lines, key=lambda each: (bool(each.ending), each.ago_s - (each.total_s or 0.0)))[
        :most
    ]


def _workers(every: Sequence[Overview]) -> Iterator[WorkerOverview]:
    """As the first sees each that knows it; what it did for all of them."""
    found: dict[str, list[WorkerOverview]] = {}
    for overview in every:
        for worker in overview.workers:
            found.setdefault(worker.worker, []).append(worker)
    for same in found.values():
        yield structs.replace(
            same[0],
            prompts=sum(each.prompts for each in same),
            output_tokens=sum(each.output_tokens for each in same),
            sent_bytes=sum(each.sent_bytes for each in same),
            moved_bytes=sum(each.moved_bytes for each in same),
            failed_transfers=sum(each.failed_transfers for each in same),
            read_from=_read_from(same),
        )


def _read_from(same: Sequence[WorkerOverview]) -> dict[str, int]:
    read: dict[str, int] = {}
    for worker in same:
        for source, read_bytes in worker.read_from.items():
            read[source] = read.get(source, 0) + read_bytes
    return read


def _tiers(every: Sequence[Overview]) -> Iterator[TierOverview]:
    found: dict[tuple[str, str], TierOverview] = {}
    for overview in every:
        for tier in overview.tiers:
            found.setdefault((tier.owner, tier.tier), tier)
    yield from found.values()


def _queues(every: Sequence[Overview]) -> Iterator[QueueOverview]:
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for overview in every:
        for queue in overview.queues:
            key = queue.service_class, queue.tenant
            waiting, running = counts.get(key, (0, 0))
            counts[key] = waiting + queue.waiting, running + queue.running
    for key in sorted(counts):
        yield QueueOverview(*key, *counts[key])


def _events(every: Sequence[Overview]) -> Iterator[ClusterEvent]:
    """Newest last. What several have seen is told once, as the first saw it."""
    seen: dict[tuple[str, str], tuple[int, float]] = {}
    events = ((event, place) for place, each in enumerate(every) for event in each.events)
    for event, place in sorted(events, key=lambda each: -each[0].ago_s):
        key = event.kind, event.text
        first, ago_s = seen.get(key, (place, 0.0))
        if first != place and ago_s - event.ago_s <= SAME_EVENT_S:
            continue
        seen[key] = place, event.ago_s
        yield event
