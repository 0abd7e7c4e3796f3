"""Which runs `tandem replay` simulates beside the recorded one, and the recorded one in the same
form."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tandem.commands.scenario import settings_of
from tandem.commands.simulated_runs import Run, Trial, choices
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import as_served
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.observe.journal.history import History, Outcome, PastRequest, pools_of
from tandem.report.measured import parse_slo
from tandem.report.record import Ending, RequestRecord, RunRecord, WorkerRecord

RECORDED = "recorded"
_ENDINGS = {
    Outcome.FINISHED: Ending.FINISHED,
    # Whoever leaves, or is still there when the journal ends, was served for as long as that.
    Outcome.WITHDRAWN: Ending.FINISHED,
    Outcome.OPEN: Ending.FINISHED,
    Outcome.REJECTED: Ending.REJECTED,
    Outcome.FAILED: Ending.FAILED,
}


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """A cluster with as many workers as were there, and the KV blocks of a worker of each pool."""

    cluster: Cluster
    kv_blocks: Mapping[str, int]


def recorded_shape(configured: Cluster, changed: Cluster, history: History) -> RecordedShape:
    """The `configured` cluster of a journal as it was, but for what `changed` has otherwise."""
    before = {pool.name: pool for pool in as_served(configured).pools}
    cluster = as_served(changed)
    pools = {pool.name: pool for pool in cluster.pools}
    past = list(pools_of(history))
    for pool in past:
        if pool.name not in pools:
            # Workers of a pool that the file does not name are priced as those of its first.
            pools[pool.name] = replace(cluster.pools[0], name=pool.name, role=pool.role)
        elif pools[pool.name].count != before[pool.name].count:
            continue
        pools[pool.name] = _with_count(pools[pool.name], pool.count)
    contexts = [pool.context_tokens for pool in past]
    cluster = replace(
        cluster,
        pools=tuple(pools.values()),
        max_model_len=min(contexts, default=cluster.max_model_len),
    )
    return RecordedShape(cluster, {pool.name: pool.block_count for pool in past})


def trials_of(
    shape: RecordedShape,
    tried: Mapping[str, str],
    slo_words: Sequence[str],
    *,
    keeps_decisions: bool,
) -> list[Trial]:
    """The recorded policies first, then every combination of those that are `tried` (as `choices`
    reads them, by kind), with an SLO as `parse_slo` reads it. Raises `InvalidConfiguration`."""
    slo = parse_slo(slo_words)
    cluster = shape.cluster if slo.empty else replace(shape.cluster, slo=slo)
    own = tuple(getattr(cluster.policies, kind) for kind in tried)
    lists = [choices(kind, names, of) for (kind, names), of in zip(tried.items(), own, strict=True)]
    trials: dict[str, Trial] = {}
    for chosen in (own, *product(*lists)):
        policies = replace(cluster.policies, **dict(zip(tried, chosen, strict=True)))
        label = " ".join(choice.name for choice in chosen) or policies.routing.name
        changed = replace(cluster, policies=policies)
        trials[label] = Trial(label, changed, 1.0, keeps_decisions, shape.kv_blocks)
    return list(trials.values())


def recorded_run(shape: RecordedShape, slo: Slo, history: History) -> Run:
    """What was recorded, as a run to be compared with simulated ones. When steps ran on the workers
    is not known."""
    cluster = replace(shape.cluster, slo=slo)
    record = RunRecord(settings_of(cluster))
    gaps = [gap for request in history.requests.values() for gap in request.gaps_ns]
    record.gaps_ns, record.gap_counts = array("q", gaps), array("q", [1] * len(gaps))
    record.requests = [
        _request_record(request, history.first_ns) for request in history.requests.values()
    ]
    pools = {pool.name: pool for pool in cluster.pools}
    record.end_ns = history.last_ns - history.first_ns
    tokens: Counter[str] = Counter()
    for request in history.requests.values():
        # Who took an answer over counts as having drawn all but its first token.
        tokens[request.first_worker] += min(1, request.tokens)
        tokens[request.worker] += max(0, request.tokens - 1)
    record.workers = [
        WorkerRecord(
            worker=name,
            role=str(worker.registration.role),
            device=pools[worker.registration.pool].device,
            devices=pools[worker.registration.pool].devices,
            # Of a history that was cut, or joined, it was there before, too.
            up_ns=min(worker.up_ns, record.end_ns),
            decoded_tokens=tokens[name],
        )
        for name, worker in history.workers.items()
    ]
    return Run(Trial(RECORDED, cluster, 1.0), record)


def _request_record(past: PastRequest, first_ns: int) -> RequestRecord:
    asked = past.submitted

    def since_first(at_ns: int) -> int:
        return at_ns - first_ns if at_ns >= 0 else -1

    reused = {Tier.DEVICE: past.cached_tokens} if past.cached_tokens else {}
    return RequestRecord(
        request_id=str(asked.name),
        serial=asked.name,
        arrival_ns=past.arrival_ns - first_ns,
        prompt_tokens=asked.prompt_tokens,
        output_tokens=past.tokens,
        tenant=asked.tenant,
        service_class=asked.service_class,
        session=asked.session,
        ending=_ENDINGS[past.outcome],
        prefill_worker=past.first_worker,
        decode_worker=past.worker,
        first_token_ns=since_first(past.first_token_ns),
        last_token_ns=since_first(past.last_token_ns),
        end_ns=since_first(past.end_ns),
        emitted_tokens=past.tokens,
        reused_tokens=reused,
        computed_tokens=asked.prompt_tokens - past.cached_tokens if past.tokens else 0,
        resumptions=past.attempts,
    )


def _with_count(pool: PoolConfig, count: int) -> PoolConfig:
    least = min(pool.min_count, count) if pool.min_count else None
    most = max(pool.max_count, count) if pool.max_count else None
    return replace(pool, count=count, min_count=least, max_count=most)
