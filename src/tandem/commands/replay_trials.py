"""Which runs `tandem replay` simulates beside the recorded one, and the recorded one in the same
form."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tandem.commands.simulate_output import Run
from tandem.commands.simulate_runs import Trial
from tandem.commands.simulate_scenario import settings_of
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.live import as_served
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.observe.journal.history import History, Outcome, PastRequest, pools_of
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.planning.registry import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS
from tandem.report.record import Ending, RequestRecord, RunRecord, WorkerRecord
from tandem.report.slo import parse_slo

RECORDED = "recorded"
_REGISTRIES: Mapping[str, Mapping[str, object]] = {
    "routing": ROUTINGS,
    "admission": ADMISSIONS,
    "planning": PLANNINGS,
}
_ENDINGS = {
    Outcome.FINISHED: Ending.FINISHED,
    # Whoever leaves, or is still there when the journal ends, was served for as long as that.
    Outcome.WITHDRAWN: Ending.FINISHED,
    Outcome.OPEN: Ending.FINISHED,
    Outcome.REJECTED: Ending.REJECTED,
    Outcome.FAILED: Ending.FAILED,
}


@dataclass(frozen=True, slots=True)
class Otherwise:
    """What is tried: lists of names as `cost,round-robin`, None where nothing else is; and a
    slo as `parse_slo` reads it."""

    routing: str | None = None
    admission: str | None = None
    planning: str | None = None
    slo: Sequence[str] = ()


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


def trials_of(shape: RecordedShape, otherwise: Otherwise) -> list[Trial]:
    """The recorded policies first, then every combination of the others. Raises
    `InvalidConfiguration`."""
    slo = parse_slo(otherwise.slo)
    cluster = shape.cluster if slo.empty else replace(shape.cluster, slo=slo)
    kinds = [kind for kind in _REGISTRIES if getattr(otherwise, kind) is not None]
    own = tuple(getattr(cluster.policies, kind) for kind in kinds)
    lists = [
        _choices(kind, getattr(otherwise, kind), of) for kind, of in zip(kinds, own, strict=True)
    ]
    trials: dict[str, Trial] = {}
    for chosen in (own, *product(*lists)):
        policies = replace(cluster.policies, **dict(zip(kinds, chosen, strict=True)))
        label = " ".join(choice.name for choice in chosen) or policies.routing.name
        tried = replace(cluster, policies=policies)
        trials[label] = Trial(label, tried, 1.0, kv_blocks=shape.kv_blocks)
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
    record.workers = [
        WorkerRecord(
            worker=name,
            role=str(worker.registration.role),
            device=pools[worker.registration.pool].device,
            devices=pools[worker.registration.pool].devices,
            up_ns=worker.up_ns,
            decoded_tokens=worker.tokens,
        )
        for name, worker in history.workers.items()
    ]
    record.end_ns = history.last_ns - history.first_ns
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


def _choices(kind: str, names: str, own: Choice) -> list[Choice]:
    """The recorded one with its parameters where it is named. Raises `InvalidConfiguration`."""
    known = _REGISTRIES[kind]
    chosen = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise InvalidConfiguration(f"--{kind}: unknown {name}{nearest(name, known)}")
    return [own if name == own.name else Choice(name) for name in chosen]


def _with_count(pool: PoolConfig, count: int) -> PoolConfig:
    least = min(pool.min_count, count) if pool.min_count else None
    most = max(pool.max_count, count) if pool.max_count else None
    return replace(pool, count=count, min_count=least, max_count=most)
