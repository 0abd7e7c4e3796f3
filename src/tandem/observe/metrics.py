"""What a worker did, as Prometheus metrics. Suffixes are those that vLLM's dashboards know."""

from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.request import FinishReason, Request
from tandem.facts.steps import StepPlan
from tandem.messages.worker import EmitTokens
from tandem.observe.registry import TOKENS, ModelRegistry
from tandem.observe.request_times import RequestClock, RequestTimes


class WorkerMetrics:
    """Counts and times for one worker."""

    def __init__(self, model_name: str, machine: WorkerMachine) -> None:
        self._registry = registry = ModelRegistry(model_name)
        self._clocks: dict[str, RequestClock] = {}
        self._times = RequestTimes(registry)
        self._prompt_tokens = registry.counter("prompt_tokens", "Prompt tokens of begun requests")
        self._generation_tokens = registry.counter("generation_tokens", "Tokens generated")
        self._rejections = registry.counter("admission_rejections", "Requests refused on arrival")
        self._step_tokens = registry.histogram("iteration_tokens_total", "Tokens a step", TOKENS)
        self._read_machine(machine)

    @property
    def open_requests(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self._clocks)

    def arrived(self, request: Request, now_ns: int) -> None:
        self._clocks[request.request_id] = RequestClock(now_ns, len(request.prompt_tokens))

    def refused(self, request_id: str) -> None:
        self._rejections.inc()
        self._clocks.pop(request_id, None)

    def ended(self, request_id: str, reason: FinishReason, now_ns: int) -> None:
        """The reader left before the worker was done. Ended before, it does not end again."""
        if clock := self._clocks.pop(request_id, None):
            self._times.finished(clock, reason, now_ns)

    def planned(self, plan: StepPlan, now_ns: int) -> None:
        self._step_tokens.observe(plan.batched_tokens)
        for placement in plan.placements:
            clock = self._clocks.get(placement.request_id)
            if clock and not clock.scheduled_ns:
                self._times.scheduled(clock, now_ns)
                self._prompt_tokens.inc(clock.prompt_tokens)

    def emitted(self, effect: EmitTokens, now_ns: int) -> None:
        self._generation_tokens.inc(len(effect.tokens))
        for request_id, reason in zip(effect.request_ids, effect.finish_reasons, strict=True):
            clock = self._clocks.get(request_id)
            if clock is None:
                continue
            self._times.token(clock, now_ns)
            if reason:
                self.ended(request_id, reason, now_ns)

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return self._registry.exposition()

    def _read_machine(self, machine: WorkerMachine) -> None:
        sequences, planner, gauge = machine.sequences, machine.planner, self._registry.gauge
        pool = sequences.pool
        gauge("num_requests_running", "Sequences in a slot", lambda: len(sequences.running))
        gauge("num_requests_waiting", "Sequences in the queue", lambda: len(planner.waiting))
        gauge(
            "kv_cache_usage_perc",
            "Share of the KV blocks in use (1 is full)",
            lambda: 1 - pool.free_blocks / pool.block_count,
        )
        total = self._registry.total
        total("prefix_cache_queries", "Tokens looked up", lambda: planner.prefix_query_tokens)
        total("prefix_cache_hits", "Tokens found cached", lambda: planner.prefix_hit_tokens)
        total("num_preemptions", "Sequences put back", lambda: planner.preemptions)
