"""What a gateway, its workers, their tiers and its planner did, as Prometheus metrics.

Names are those that vLLM's dashboards know, where the meaning is the same; figures of a worker
carry its name. A request's times are those that a client sees from the gateway: its queue ends when
a worker gets it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from tandem.facts.calibration import Calibration
from tandem.facts.correction import Correction
from tandem.facts.kv import TierFigures
from tandem.facts.metrics import Figures, Kind, MetricFamily
from tandem.facts.request import Request
from tandem.facts.step_totals import StepTotals
from tandem.messages.gateway import BreakerStatus, ClusterStatus, PauseStatus, WorkerStatus
from tandem.messages.planning import PlanningStatus
from tandem.observe.adapter_metrics import AdapterNames, adapter_metrics
from tandem.observe.metrics import (
    ACCEPTED_BY_PLACE,
    DRAFT_COUNTS,
    RequestMetrics,
    cache_config,
    sleep_state,
)
from tandem.observe.registry import COUNTER, GAUGE, MODEL_LABEL, ModelRegistry
from tandem.observe.tenant_metrics import TenantMetrics

_OF_WORKERS: Sequence[tuple[Kind, str, str, Callable[[WorkerStatus], float]]] = (
    (GAUGE, "num_requests_running", "Sequences in a slot", lambda w: w.load.running_sequences),
    (GAUGE, "num_requests_waiting", "Sequences in the queue", lambda w: w.load.waiting_requests),
    (
        GAUGE,
        "kv_cache_usage_perc",
        "Share of the KV blocks in use (1 is full)",
        lambda w: 1 - w.load.free_blocks / w.total_blocks,
    ),
    (GAUGE, "worker_accepting", "1 while the worker takes new requests", lambda w: w.accepting),
    (GAUGE, "worker_heard_seconds", "Since the worker was last heard", lambda w: w.last_seen_s),
    (COUNTER, "worker_prompts", "Prompts that the worker computed", lambda w: w.prompts),
    (COUNTER, "worker_generation_tokens", "Tokens that the worker drew", lambda w: w.output_tokens),
    (COUNTER, "kv_transfers", "Transfers of KV to the worker", lambda w: w.transfers),
    (COUNTER, "kv_transfer_failures", "Of those that did not arrive", lambda w: w.failed_transfers),
    (COUNTER, "kv_transfer_bytes", "KV that the worker read from others", lambda w: w.moved_bytes),
    (
        COUNTER,
        "kv_transfer_sent_bytes",
        "KV that others read from the worker",
        lambda w: w.sent_bytes,
    ),
    (COUNTER, "kv_transfer_spans", "Contiguous pieces of that KV", lambda w: w.spans),
    (COUNTER, "kv_transfer_seconds", "Time that those transfers took", lambda w: w.seconds),
    (COUNTER, "kv_fetches", "Fetches of KV from slower tiers", lambda w: w.fetches),
    (COUNTER, "kv_fetch_failures", "Of those that did not bring all", lambda w: w.failed_fetches),
    (COUNTER, "kv_fetch_tokens", "Tokens whose KV they brought", lambda w: w.fetched_tokens),
    (COUNTER, "kv_fetch_bytes", "Bytes that they brought", lambda w: w.fetched_bytes),
    (COUNTER, "kv_fetch_seconds", "Time that they took", lambda w: w.fetch_seconds),
    (
        GAUGE,
        "worker_first_token_seconds",
        "Learnt: what a first token takes beside the worker's steps",
        lambda w: w.correction.first_token_s,
    ),
)
# By what a worker's cost differs from its list: `of` says which.
_CORRECTIONS: Sequence[tuple[str, Callable[[Correction], float]]] = (
    ("decode", lambda c: c.decode),
    ("prefill", lambda c: c.prefill),
    ("network", lambda c: c.network),
)
# By kind of steps.
_OF_STEPS: Sequence[tuple[str, str, Callable[[StepTotals], float]]] = (
    ("worker_steps", "Steps that the worker ran", lambda s: s.steps),
    ("worker_step_seconds", "Time that those steps took", lambda s: s.duration_ns / 1e9),
    (
        "worker_step_tokens",
        "Tokens that those steps computed",
        lambda s: s.prompt_tokens + s.decodes,
    ),
)
_OF_BREAKERS: Sequence[tuple[Kind, str, str, Callable[[BreakerStatus], float]]] = (
    (GAUGE, "breaker_share", "Share of the class's SLO that is given out", lambda b: b.share),
    (COUNTER, "breaker_opened", "Times that the class's breaker opened", lambda b: b.opened),
)
# `owner` is a worker or a process of the shared pool, `tier` where it keeps the blocks.
_OF_TIERS: Sequence[tuple[Kind, str, str, Callable[[TierFigures], float]]] = (
    (GAUGE, "kv_tier_blocks", "KV blocks in the tier", lambda t: t.blocks),
    (
        GAUGE,
        "kv_tier_capacity_blocks",
        "KV blocks that it has room for",
        lambda t: t.capacity_blocks,
    ),
    (GAUGE, "kv_tier_on", "1 while the tier is used, 0 while it loses or fails", lambda t: t.on),
    (
        GAUGE,
        "kv_tier_fetch_seconds_per_token",
        "Measured when fetching from the tier",
        lambda t: t.fetch_s_per_token,
    ),
    (
        GAUGE,
        "kv_tier_compute_seconds_per_token",
        "Measured when computing the same",
        lambda t: t.compute_s_per_token,
    ),
    (COUNTER, "kv_tier_stored_blocks", "KV blocks written to the tier", lambda t: t.stored_blocks),
    (COUNTER, "kv_tier_fetched_blocks", "KV blocks fetched from it", lambda t: t.fetched_blocks),
    (COUNTER, "kv_tier_missed_blocks", "KV blocks that were not there", lambda t: t.missed_blocks),
    (
        COUNTER,
        "kv_tier_spoilt_blocks",
        "KV blocks that failed their check",
        lambda t: t.corrupt_blocks,
    ),
    (COUNTER, "kv_tier_failures", "Reads and writes that had a problem", lambda t: t.failures),
)


# What may be cut of a call before it is refused.
DEGRADE_STEPS = ("n", "max_tokens", "class")


class GatewayMetrics:
    """Counts and times of one gateway, and of the cluster as it knows it; by tenant where there are
    `tenants`. Adapters are called as `adapter_names` says."""

    def __init__(
        self,
        model_name: str,
        tenants: Sequence[str] = (),
        adapter_names: AdapterNames = dict,
    ) -> None:
        self._registry = registry = ModelRegistry(model_name)
        self._model_name = model_name
        self._adapter_names = adapter_names
        self.requests = RequestMetrics(registry)
        self.add_tenants(tenants)
        self._lost = registry.counter("lost_workers", "Workers that died")
        degraded = registry.counters(
            "degraded_requests", "Requests cut under load", "step", DEGRADE_STEPS
        )
        self._degraded = dict(zip(DEGRADE_STEPS, degraded, strict=True))
        self._journal_lost = registry.counter("journal_lost_turns", "Turns the journal misses")
        self._journal_lost_turns = 0

    def add_tenants(self, tenants: Sequence[str]) -> None:
        """From now on these are told apart, too."""
        if self.requests.tenants is not None:
            self.requests.tenants.add_tenants(tenants)
        elif tenants:
            self.requests.tenants = TenantMetrics(self._registry, tenants)

    def sent(self, requests: Iterable[Request], now_ns: int) -> None:
        """A worker got these."""
        self.requests.scheduled((request.request_id for request in requests), now_ns)

    def degraded(self, step: str) -> None:
        """A call was cut by one of `DEGRADE_STEPS`."""
        self._degraded[step].inc()

    def worker_lost(self) -> None:
        """A worker died."""
        self._lost.inc()

    def families(
        self, status: ClusterStatus, journal_lost_turns: int = 0
    ) -> Iterator[MetricFamily]:
        """All metrics at this moment, with the cluster as it is now. So many turns of the machine
        are not in its journal, in all."""
        self._journal_lost.inc(journal_lost_turns - self._journal_lost_turns)
        self._journal_lost_turns = journal_lost_turns
        yield from self._registry.families()
        yield from self._of_gateway(status)
        yield from self._of_workers(status)
        yield from self._of_tiers(status)
        yield from self._of_tenants(status)
        yield from self._of_breakers(status)
        yield from self._of_steps(status)
        yield from self._of_drafts(status)
        yield from self._of_adapters(status)
        yield self._of_predictions(status.calibration_total)
        if status.planning is not None:
            yield from self._of_planner(status.planning)
        if status.pauses is not None:
            yield from self._of_pauses(status.pauses)

    def _of_gateway(self, status: ClusterStatus) -> Iterator[Figures]:
        for kind, name, text, value in (
            (
                GAUGE,
                "gateway_requests_waiting",
                "Requests that no worker has",
                status.waiting_requests,
            ),
            (GAUGE, "gateway_requests_running", "Requests at workers", status.running_requests),
            (
                COUNTER,
                "request_takeovers",
                "Requests taken up by another worker",
                status.takeovers,
            ),
            (
                COUNTER,
                "request_recomputed_tokens",
                "Tokens that takeovers computed once more",
                status.recomputed_tokens,
            ),
            (
                COUNTER,
                "prefix_cache_queries",
                "Prompt tokens of requests that got a token",
                self.requests.looked_up_tokens,
            ),
            (
                COUNTER,
                "prefix_cache_hits",
                "Of these, tokens whose KV was found cached",
                self.requests.found_tokens,
            ),
        ):
            yield self._registry.figure(kind, name, text, value)

    def _of_workers(self, status: ClusterStatus) -> Iterator[Figures]:
        """What they are, did, and are known by."""
        yield Figures(
            GAUGE,
            "worker_cost_correction",
            "Learnt: measured over listed seconds of the worker (1: as listed)",
            (MODEL_LABEL, "worker", "pool", "of"),
            [
                ((self._model_name, each.worker, each.pool, what), read(each.correction))
                for each in status.workers
                for what, read in _CORRECTIONS
            ],
        )
        yield cache_config(
            (MODEL_LABEL, "worker", "pool", "cache_dtype"),
            [
                (
                    (self._model_name, each.worker, each.pool, each.export.geometry.dtype),
                    (each.export.geometry.block_size, each.total_blocks),
                )
                for each in status.workers
            ],
        )
        yield sleep_state(
            (MODEL_LABEL, "worker", "pool"),
            [(self._model_name, each.worker, each.pool) for each in status.workers],
        )
        labels = (MODEL_LABEL, "worker", "pool", "role")
        for kind, name, text, read in _OF_WORKERS:
            # A counter's name must not change with the role.
            used = labels[:3] if kind == COUNTER else labels
            samples = [
                (
                    (self._model_name, each.worker, each.pool, each.role.value)[: len(used)],
                    read(each),
                )
                for each in status.workers
            ]
            yield Figures(kind, name, text, used, samples)

    def _of_tiers(self, status: ClusterStatus) -> Iterator[Figures]:
        """All tiers of all that this gateway knows."""
        owned = _tiers_of(status)
        for kind, name, text, read in _OF_TIERS if owned else ():
            samples = [
                ((self._model_name, owner, figures.tier.value), read(figures))
                for owner, figures in owned
            ]
            yield Figures(kind, name, text, (MODEL_LABEL, "owner", "tier"), samples)

    def _of_tenants(self, status: ClusterStatus) -> Iterator[Figures]:
        """What tenants with a share of their own have of the tiers."""
        samples = [
            ((self._model_name, owner, figures.tier.value, tenant), blocks)
            for owner, figures in _tiers_of(status)
            for tenant, blocks in figures.tenant_blocks
        ]
        if samples:
            text = "KV blocks in the tier of a tenant that has a share of it"
            labels = (MODEL_LABEL, "owner", "tier", "tenant")
            yield Figures(GAUGE, "kv_tier_tenant_blocks", text, labels, samples)

    def _of_steps(self, status: ClusterStatus) -> Iterator[Figures]:
        """Of the engines: steps with chunks of prompts, and of decodes alone."""
        samples = [
            ((self._model_name, each.worker, each.pool, "prefill" if chunked else "decode"), alike)
            for each in status.workers
            for chunked in (True, False)
            if (alike := [steps for steps in each.steps if steps.chunked is chunked])
        ]
        for name, text, read in _OF_STEPS:
            values = [(labels, sum(map(read, alike))) for labels, alike in samples]
            yield Figures(COUNTER, name, text, (MODEL_LABEL, "worker", "pool", "kind"), values)

    def _of_drafts(self, status: ClusterStatus) -> Iterator[Figures]:
        """Of workers that speculate."""
        drafting = [
            ((self._model_name, each.worker, each.pool), each.drafts)
            for each in status.workers
            if each.drafts is not None
        ]
        if not drafting:
            return
        labels = (MODEL_LABEL, "worker", "pool")
        for name, text, read in DRAFT_COUNTS:
            yield Figures(COUNTER, name, text, labels, [(of, read(each)) for of, each in drafting])
        by_place = [
            ((*of, str(place)), count)
            for of, each in drafting
            for place, count in enumerate(each.accepted_by_place)
        ]
        yield Figures(COUNTER, *ACCEPTED_BY_PLACE, (*labels, "position"), by_place)

    def _of_adapters(self, status: ClusterStatus) -> Iterator[Figures]:
        """Of workers that serve some."""
        serving = [
            ((self._model_name, each.worker, each.pool), each.adapters)
            for each in status.workers
            if each.adapters is not None
        ]
        if serving:
            labels = (MODEL_LABEL, "worker", "pool")
            yield from adapter_metrics(labels, serving, self._adapter_names())

    def _of_predictions(self, calibration: Calibration) -> Figures:
        """How predictions under an SLO turned out."""
        samples = []
        for bound, counted in (
            ("ttft", calibration.ttft),
            ("tpot", calibration.tpot),
            ("both", calibration.both),
        ):
            for predicted, outcome, requests in (
                ("kept", "kept", counted.keep_kept),
                ("kept", "missed", counted.keep_missed),
                ("missed", "kept", counted.miss_kept),
                ("missed", "missed", counted.miss_missed),
            ):
                samples.append(((self._model_name, bound, predicted, outcome), requests))
        return Figures(
            COUNTER,
            "slo_predictions",
            "Requests that ended, by what was predicted of their SLO and what came",
            (MODEL_LABEL, "bound", "predicted", "outcome"),
            samples,
        )

    def _of_breakers(self, status: ClusterStatus) -> Iterator[Figures]:
        """Of admission, a service class each."""
        if not status.breakers:
            return
        labels = (MODEL_LABEL, "service_class")
        for kind, name, text, read in _OF_BREAKERS:
            samples = [
                ((self._model_name, each.service_class), read(each)) for each in status.breakers
            ]
            yield Figures(kind, name, text, labels, samples)

    def _of_pauses(self, pauses: PauseStatus) -> Iterator[Figures]:
        figure = self._registry.figure
        text = "Sessions that pause for a tool, with an expected end"
        yield figure(GAUGE, "sessions_paused", text, pauses.paused)
        text = "Pauses of sessions whose end was expected"
        yield figure(COUNTER, "session_pauses", text, pauses.followed)
        text = "Times that KV of a paused session was brought back to a device"
        yield figure(COUNTER, "session_prefetches", text, pauses.prefetches)
        text = "Sessions that came back after that"
        yield figure(COUNTER, "session_prefetches_in_time", text, pauses.after)

    def _of_planner(self, planning: PlanningStatus) -> Iterator[Figures]:
        actions = (
            ("start", planning.starts),
            ("stop", planning.stops),
            ("flip", planning.flips),
            ("migrate", planning.migrations),
            ("activate", planning.activations),
        )
        yield Figures(
            COUNTER,
            "planned_actions",
            "Changes of the fleet that the planner began",
            (MODEL_LABEL, "action"),
            [((self._model_name, action), count) for action, count in actions],
        )
        yield self._registry.figure(
            COUNTER,
            "planned_start_failures",
            "Workers that the planner wanted and that could not be started",
            planning.failed_starts,
        )
        yield self._registry.figure(
            GAUGE,
            "planner_held_workers",
            "Workers that the planner leaves alone, changed by hand",
            len(planning.held),
        )
        yield self._registry.figure(
            GAUGE, "planner_spare_workers", "Workers that stand by", len(planning.spares)
        )
        yield self._registry.figure(
            GAUGE,
            "planner_stuck_workers",
            "Workers that the planner does not wait for any more",
            len(planning.stuck),
        )
        if planning.simulation is None:
            return
        outcomes = (
            ("answered", planning.simulation.answers),
            ("failed", planning.simulation.failures),
        )
        yield Figures(
            COUNTER,
            "planner_simulations",
            "Questions of the planner to the simulator",
            (MODEL_LABEL, "outcome"),
            [((self._model_name, outcome), count) for outcome, count in outcomes],
        )
        yield self._registry.figure(
            COUNTER,
            "planner_simulation_seconds",
            "Seconds of a processor that the simulator took for the planner",
            planning.simulation.cpu_s,
        )


def _tiers_of(status: ClusterStatus) -> list[tuple[str, TierFigures]]:
    """Of workers and processes of the shared pool, by the name of each."""
    owned = [(worker.worker, each) for worker in status.workers for each in worker.tiers]
    return owned + [(node.node, each) for node in status.pool_nodes for each in node.tiers]
