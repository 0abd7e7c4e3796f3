"""What other shapes of a fleet would have done with a recorded demand: one run of the simulator for
each shape, on the same requests."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tandem.facts.blocks import HASH_BYTES
from tandem.facts.shapes import FleetShape, RecordedRequest, ShapeFigures
from tandem.facts.trace import TraceRow
from tandem.messages.gateway import ShapesSimulated, SimulateShapes
from tandem.report.record import RequestRecord, RunRecord
from tandem.report.statistics import distribution, tpots_ns, ttfts_ns
from tandem.twin.scenario import Pool, Scenario
from tandem.twin.simulation import simulate

# Of the demand, the first part fills queues and caches and is not counted.
WARM_UP = 0.2
# What has not ended so long after the last arrival has failed: nobody's SLO allows that.
LIMIT_S = 600.0

# Says whether there is time to go on.
HasTime = Callable[[], bool]


class OutOfTime(Exception):
    """A run is given up in the middle."""


def simulate_shapes(
    question: SimulateShapes, fresh: Callable[[], Scenario], has_time: HasTime = lambda: True
) -> ShapesSimulated:
    """The answer, for as many shapes as it `has_time` for. `fresh` makes a scenario of the cluster
    with policies of its own, where nothing is planned and nothing fails."""

    def check(_: float) -> None:
        if not has_time():
            raise OutOfTime

    rows = trace_rows(question)
    figures: list[ShapeFigures] = []
    for shape in question.shapes:
        scenario = shaped(fresh(), shape)
        try:
            check(0.0)
            record = simulate(scenario, rows, check)
        except OutOfTime:
            break
        figures.append(figures_of(record, scenario))
    return ShapesSimulated(question.question_id, tuple(figures))


def trace_rows(question: SimulateShapes) -> list[TraceRow]:
    """The demand as a trace. Only what prompts share has blocks: the rest of each is its own."""
    chains = [_digests(request) for request in question.demand]
    seen = Counter(digest for chain in chains for digest in chain)
    serials: dict[bytes, int] = {}
    first_ns = question.demand[0].arrival_ns
    rows = []
    for request, chain in zip(question.demand, chains, strict=True):
        shared = next((at for at, digest in enumerate(chain) if seen[digest] == 1), len(chain))
        rows.append(
            TraceRow(
                arrival_s=(request.arrival_ns - first_ns) / 1e9 / question.speed,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                block_ids=tuple(
                    serials.setdefault(digest, len(serials)) for digest in chain[:shared]
                ),
                block_tokens=question.block_size,
                tenant=request.tenant,
                service_class=request.service_class,
            )
        )
    return rows


def shaped(scenario: Scenario, shape: FleetShape) -> Scenario:
    """The scenario with exactly these workers. Those of a pool that it does not know are as the
    first pool's."""
    known = {pool.name: pool for pool in scenario.pools}
    pools = []
    for group in shape.groups:
        like = known.get(group.pool, scenario.pools[0])
        own = group.pool == like.name and group.role is like.role
        name = like.name if own else f"{group.pool or 'joined'}-as-{group.role}"
        kind = replace(like.kind, block_count=group.kv_blocks)
        pools.append(Pool(name, group.role, kind, group.count, group.count, group.count))
    return replace(
        scenario,
        pools=tuple(pools),
        policies=replace(scenario.policies, planning=None),
        faults=(),
        limit_s=min(scenario.limit_s, LIMIT_S),
        explains=False,
        gateways=1,
        timeline_points=2,
        spares=0,
        simulator=None,
    )


def figures_of(run: RunRecord, scenario: Scenario) -> ShapeFigures:
    """Of the requests after the warm-up."""
    ordered = sorted(run.requests, key=lambda each: (each.arrival_ns, each.serial))
    counted = ordered[round(WARM_UP * len(ordered)) :]
    kept = sum(_keeps_slo(each, scenario) for each in counted)
    seconds = (counted[-1].arrival_ns - counted[0].arrival_ns) / 1e9 if counted else 0.0
    ttft, tpot = distribution(ttfts_ns(counted)), distribution(tpots_ns(counted))
    return ShapeFigures(
        requests=len(counted),
        kept=kept / len(counted) if counted else 0.0,
        goodput_per_s=kept / seconds if seconds else 0.0,
        ttft_p50_s=0.0 if ttft is None else ttft.p50_ns / 1e9,
        ttft_p99_s=0.0 if ttft is None else ttft.p99_ns / 1e9,
        tpot_p50_s=0.0 if tpot is None else tpot.p50_ns / 1e9,
        tpot_p99_s=0.0 if tpot is None else tpot.p99_ns / 1e9,
        devices=sum(pool.count * pool.kind.devices for pool in scenario.pools),
    )


def _keeps_slo(request: RequestRecord, scenario: Scenario) -> bool:
    slo = scenario.policies.classes.named(request.service_class).slo
    return request.keeps(scenario.slo if slo.empty else slo)


def _digests(request: RecordedRequest) -> Sequence[bytes]:
    whole = request.digests
    return [whole[at : at + HASH_BYTES] for at in range(0, len(whole), HASH_BYTES)]
