"""What a gateway and its workers did, as Prometheus metrics. Suffixes are those that vLLM's
dashboards know; figures of a worker carry its name.

A request's times are those that a client sees from the gateway: its queue ends when a worker gets
it.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.facts.request import FinishReason, Request
from tandem.messages.gateway import ClusterStatus, WorkerStatus
from tandem.messages.planning import PlanningStatus
from tandem.messages.worker import EmitTokens
from tandem.observe.registry import ModelRegistry
from tandem.observe.request_times import RequestClock, RequestTimes
from tandem.observe.tier_metrics import tier_metrics

Read = Callable[[WorkerStatus], float]

_GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("num_requests_running", "Sequences in a slot", lambda w: w.load.running_sequences),
    ("num_requests_waiting", "Sequences in the queue", lambda w: w.load.waiting_requests),
    (
        "kv_cache_usage_perc",
        "Share of the KV blocks in use (1 is full)",
        lambda w: 1 - w.load.free_blocks / w.total_blocks,
    ),
    ("worker_accepting", "1 while the worker takes new requests", lambda w: w.accepting),
    ("worker_heard_seconds", "Since the worker was last heard", lambda w: w.heard_ago_s),
)
_TOTALS: tuple[tuple[str, str, Read], ...] = (
    ("worker_prompts", "Prompts that the worker computed", lambda w: w.prompts),
    ("worker_generation_tokens", "Tokens that the worker drew", lambda w: w.output_tokens),
    ("kv_transfers", "Transfers of KV to the worker", lambda w: w.transfers),
    ("kv_transfer_failures", "Of those that did not arrive", lambda w: w.failed_transfers),
    ("kv_transfer_bytes", "KV that the worker read from others", lambda w: w.moved_bytes),
    ("kv_transfer_sent_bytes", "KV that others read from the worker", lambda w: w.sent_bytes),
    ("kv_transfer_spans", "Contiguous pieces of that KV", lambda w: w.spans),
    ("kv_transfer_seconds", "Time that those transfers took", lambda w: w.seconds),
    ("kv_fetches", "Fetches of KV from slower tiers", lambda w: w.fetches),
    ("kv_fetch_failures", "Of those that did not bring all", lambda w: w.failed_fetches),
    ("kv_fetch_tokens", "Tokens whose KV they brought", lambda w: w.fetched_tokens),
    ("kv_fetch_bytes", "Bytes that they brought", lambda w: w.fetched_bytes),
    ("kv_fetch_seconds", "Time that they took", lambda w: w.fetch_seconds),
)


class GatewayMetrics(Collector):
    """Counts and times for one gateway."""

    def __init__(self, model_name: str) -> None:
        self._registry = registry = ModelRegistry(model_name)
        self._model_name = model_name
        self._clocks: dict[str, RequestClock] = {}
        self._status: ClusterStatus | None = None
        self._times = RequestTimes(registry)
        self._prompt_tokens = registry.counter("prompt_tokens", "Prompt tokens of begun requests")
        self._generation_tokens = registry.counter("generation_tokens", "Tokens generated")
        self._rejections = registry.counter("admission_rejections", "Requests refused on arrival")
        self._lost = registry.counter("lost_workers", "Workers that died")
        self._journal_lost = registry.counter("journal_lost_turns", "Turns the journal misses")
        self._journal_lost_turns = 0
        registry.add(self)

    def arrived(self, request: Request, now_ns: int) -> None:
        self._clocks[request.request_id] = RequestClock(now_ns, len(request.prompt_tokens))

    def sent(self, requests: Iterable[Request], now_ns: int) -> None:
        """A worker got these; of one that got them before, it is no news."""
        for request in requests:
            clock = self._clocks.get(request.request_id)
            if clock and not clock.scheduled_ns:
                self._times.scheduled(clock, now_ns)
                self._prompt_tokens.inc(clock.prompt_tokens)

    def refused(self, request_id: str) -> None:
        self._rejections.inc()
        self._clocks.pop(request_id, None)

    def emitted(self, emission: EmitTokens, now_ns: int) -> None:
        self._generation_tokens.inc(len(emission.tokens))
        for request_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True):
            clock = self._clocks.get(request_id)
            if clock is None:
                continue
            self._times.token(clock, now_ns)
            if reason:
                self.ended(request_id, reason, now_ns)

    def ended(self, request_id: str, reason: FinishReason, now_ns: int) -> None:
        """The reader left before the answer was whole. Ended before, it does not end again."""
        if clock := self._clocks.pop(request_id, None):
            self._times.finished(clock, reason, now_ns)

    def lost(self) -> None:
        """A worker died."""
        self._lost.inc()

    def journal_lost(self, turns: int) -> None:
        """So many turns of the machine are not in its journal, in all."""
        self._journal_lost.inc(turns - self._journal_lost_turns)
        self._journal_lost_turns = turns

    def exposition(self, status: ClusterStatus) -> bytes:
        """The Prometheus text format, with the cluster as it is now."""
        self._status = status
        return self._registry.exposition()

    def collect(self) -> Iterator[Metric]:
        """For the registry: what the status says."""
        status = self._status
        if status is None:
            return
        for name, text, total in (
            ("gateway_requests_waiting", "Requests that no worker has", status.waiting_requests),
            ("gateway_requests_running", "Requests at workers", status.running_requests),
        ):
            gauge = GaugeMetricFamily(f"tandem:{name}", text, labels=["model_name"])
            gauge.add_metric([self._model_name], total)
            yield gauge
        takeovers = CounterMetricFamily(
            "tandem:request_takeovers", "Requests taken up by another worker", labels=["model_name"]
        )
        takeovers.add_metric([self._model_name], status.takeovers)
        yield takeovers
        recomputed = CounterMetricFamily(
            "tandem:request_recomputed_tokens",
            "Tokens that takeovers computed once more",
            labels=["model_name"],
        )
        recomputed.add_metric([self._model_name], status.recomputed_tokens)
        yield recomputed
        yield from tier_metrics(status, self._model_name)
        if status.planning is not None:
            yield from self._of_planner(status.planning)
        labels = ["model_name", "worker", "pool", "role"]
        for name, text, read in _GAUGES:
            yield self._of_workers(GaugeMetricFamily(f"tandem:{name}", text, labels=labels), read)
        for name, text, read in _TOTALS:
            # A counter's name must not change with the role.
            yield self._of_workers(
                CounterMetricFamily(f"tandem:{name}", text, labels=labels[:3]), read
            )

    def _of_planner(self, planning: PlanningStatus) -> Iterator[Metric]:
        actions = CounterMetricFamily(
            "tandem:planned_actions",
            "Changes of the fleet that the planner began",
            labels=["model_name", "action"],
        )
        for action, count in (
            ("start", planning.starts),
            ("stop", planning.stops),
            ("flip", planning.flips),
            ("migrate", planning.migrations),
        ):
            actions.add_metric([self._model_name, action], count)
        yield actions
        failures = CounterMetricFamily(
            "tandem:planned_start_failures",
            "Workers that the planner wanted and that could not be started",
            labels=["model_name"],
        )
        failures.add_metric([self._model_name], planning.failed_starts)
        yield failures
        held = GaugeMetricFamily(
            "tandem:planner_held_workers",
            "Workers that the planner leaves alone, changed by hand",
            labels=["model_name"],
        )
        held.add_metric([self._model_name], len(planning.held))
        yield held

    def _of_workers(self, family: Metric, read: Read) -> Metric:
        assert self._status is not None
        for worker in self._status.workers:
            labels = [self._model_name, worker.worker, worker.pool, worker.role.value]
            if isinstance(family, CounterMetricFamily):
                family.add_metric(labels[:3], read(worker))
            elif isinstance(family, GaugeMetricFamily):
                family.add_metric(labels, read(worker))
        return family
