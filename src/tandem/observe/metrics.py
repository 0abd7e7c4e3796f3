"""Prometheus metrics of one model: what requests counted and took, and what one worker did.

Names are those that vLLM's dashboards know, where the meaning is the same. All metrics are labelled
with the model's name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import Counter

from tandem.cluster.worker.load import adapter_figures
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.adapter import AdapterMemory
from tandem.facts.errors import Rejection
from tandem.facts.metrics import Figures, MetricFamily
from tandem.facts.overview import QueueOverview
from tandem.facts.request import FinishReason, Request
from tandem.facts.slo import Slo
from tandem.facts.step_totals import DraftTotals
from tandem.facts.steps import StepPlan
from tandem.messages.worker import EmitTokens
from tandem.observe.adapter_metrics import AdapterNames, adapter_metrics
from tandem.observe.registry import COUNTER, GAUGE, MODEL_LABEL, TOKENS, ModelRegistry
from tandem.observe.tenant_metrics import OneTenant, TenantMetrics
from tandem.observe.timeline import OpenBin, Timeline

NS_PER_S = 1e9
# How vLLM calls the end of a request that failed, beside the reasons that we share.
FAILED = "error"
# Ends of a request that its client wanted, or had asked for.
_FINISHED = frozenset({FinishReason.STOP, FinishReason.LENGTH})
NO_SLO = Slo()


@dataclass(slots=True)
class RequestClock:
    """Instants of one request, in nanoseconds; 0 is "not yet"."""

    arrived_ns: int
    prompt_tokens: int
    max_tokens: int
    account: str
    service_class: str
    slo: Slo
    scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    answer_tokens: int = 0
    cached_tokens: int = 0
    tenant: OneTenant | None = None


# Of a request that has ended: its id, its instants, why, and when.
RequestEnded = Callable[[str, RequestClock, str, int], None]


class RequestMetrics:
    """Counts of requests and their latencies by phase, and by tenant where there are `tenants`. The
    caller says when things happen; `request_ended` gets what was not refused once it is over."""

    def __init__(
        self,
        registry: ModelRegistry,
        tenants: TenantMetrics | None = None,
        request_ended: RequestEnded | None = None,
    ) -> None:
        self.timeline = Timeline()
        self._clocks: dict[str, RequestClock] = {}
        self.tenants = tenants
        self._request_ended = request_ended
        # Of the prompts whose answers have begun: their tokens, and those that were found cached.
        self.looked_up_tokens = self.found_tokens = 0
        self.begun = self.ended_requests = self.drawn_tokens = 0
        histogram = registry.histogram
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step")
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token")
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token")
        self._gap = histogram("inter_token_latency_seconds", "Gap between two tokens")
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean gap between the tokens of a request"
        )
        self._decode = histogram("request_decode_time_seconds", "First to last token")
        self._inference = histogram("request_inference_time_seconds", "First step to last token")
        self._total = histogram("e2e_request_latency_seconds", "Arrival to last token")
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens a request", TOKENS)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens not found cached", TOKENS
        )
        self._max_tokens = histogram(
            "request_params_max_tokens", "Longest answer that a request may have", TOKENS
        )
        self._answer = histogram("request_generation_tokens", "Answer tokens a request", TOKENS)
        reasons = (*FinishReason, FAILED)
        finished = registry.counters(
            "request_success", "Finished requests by reason", "finished_reason", reasons
        )
        self._finished: dict[str, Counter] = dict(zip(reasons, finished, strict=True))
        self._prompt_tokens = registry.counter("prompt_tokens", "Prompt tokens of begun requests")
        self._cached_tokens = registry.counter(
            "prompt_tokens_cached", "Prompt tokens whose KV was found cached"
        )
        self._generation_tokens = registry.counter("generation_tokens", "Tokens generated")
        rejections = registry.counters(
            "admission_rejections", "Requests refused, by reason", "reason", Rejection
        )
        self._rejections = dict(zip(Rejection, rejections, strict=True))

    @property
    def open_requests(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self._clocks)

    def queues(self) -> list[QueueOverview]:
        """The requests that have not ended, by class and by whose they are."""
        counts: dict[tuple[str, str], list[int]] = {}
        for clock in self._clocks.values():
            count = counts.setdefault((clock.service_class, clock.account), [0, 0])
            count[bool(clock.scheduled_ns)] += 1
        return [QueueOverview(*whose, *count) for whose, count in sorted(counts.items())]

    def arrived(
        self, request: Request, now_ns: int, service_class: str = "", slo: Slo = NO_SLO
    ) -> None:
        """A request of this class, which is promised this."""
        clock = RequestClock(
            *(now_ns, len(request.prompt_tokens), request.sampling.max_tokens),
            *(request.account, service_class, slo),
        )
        if self.tenants is not None:
            clock.tenant = self.tenants.of(request.tenant)
            clock.tenant.requests.inc()
            clock.tenant.open_requests.inc()
        self._clocks[request.request_id] = clock

    def scheduled(self, request_ids: Iterable[str], now_ns: int) -> None:
        """These wait no more. One that was scheduled before is not counted again."""
        for request_id in request_ids:
            clock = self._clocks.get(request_id)
            if clock and not clock.scheduled_ns:
                clock.scheduled_ns = now_ns
                self._queue.observe((now_ns - clock.arrived_ns) / NS_PER_S)
                self._prompt.observe(clock.prompt_tokens)
                self._max_tokens.observe(clock.max_tokens)
                self._prompt_tokens.inc(clock.prompt_tokens)

    def rejected(self, request_id: str, by: Rejection, now_ns: int) -> None:
        """It does not run. Its client may have left before."""
        self._rejections[by].inc()
        self.timeline.at(now_ns).reject(by)
        clock = self._clocks.pop(request_id, None)
        if clock is not None and clock.tenant is not None:
            clock.tenant.open_requests.dec()
            clock.tenant.rejections[by].inc()

    def rejected_at_once(self, tenant: str, by: Rejection, now_ns: int) -> None:
        """The request of a tenant was refused before it had arrived."""
        self._rejections[by].inc()
        self.timeline.at(now_ns).reject(by)
        if self.tenants is not None:
            of_tenant = self.tenants.of(tenant)
            of_tenant.requests.inc()
            of_tenant.rejections[by].inc()

    def emitted(self, emission: EmitTokens, now_ns: int) -> None:
        self._generation_tokens.inc(len(emission.tokens))
        self.drawn_tokens += len(emission.tokens)
        time_bin = self.timeline.at(now_ns)
        time_bin.output_tokens += len(emission.tokens)
        # Streams that step together have the same gaps.
        gaps: dict[int, int] = {}
        for request_id, reason, cached_tokens in zip(
            emission.request_ids, emission.finish_reasons, emission.cached_tokens, strict=True
        ):
            if clock := self._clocks.get(request_id):
                if clock.answer_tokens:
                    gap_ns = now_ns - clock.last_token_ns
                    gaps[gap_ns] = gaps.get(gap_ns, 0) + 1
                else:
                    self._first_token(clock, cached_tokens, time_bin, now_ns)
                clock.answer_tokens += 1
                clock.last_token_ns = now_ns
                if reason:
                    self.ended(request_id, reason, now_ns)
        for gap_ns, count in gaps.items():
            time_bin.itl.add(gap_ns, count)
            for _ in range(count):
                self._gap.observe(gap_ns / NS_PER_S)

    def failed(self, request_id: str, now_ns: int) -> None:
        """Over without the rest of its answer, through no fault of its client."""
        self._end(request_id, FAILED, now_ns)

    def all_failed(self, now_ns: int) -> None:
        """Those that have not ended never will."""
        for request_id in tuple(self._clocks):
            self.failed(request_id, now_ns)

    def ended(self, request_id: str, reason: FinishReason, now_ns: int) -> None:
        """Over, also where the reader left before. What has ended does not end again, and what
        never got a token counts, but has no latency."""
        self._end(request_id, reason, now_ns)

    def _end(self, request_id: str, reason: str, now_ns: int) -> None:
        clock = self._clocks.pop(request_id, None)
        if clock is None:
            return
        if self._request_ended is not None:
            self._request_ended(request_id, clock, reason, now_ns)
        self._finished[reason].inc()
        self.ended_requests += 1
        if clock.tenant is not None:
            clock.tenant.open_requests.dec()
        time_bin = self.timeline.at(now_ns)
        time_bin.failed += reason == FAILED
        if not clock.answer_tokens:
            return
        self._answer.observe(clock.answer_tokens)
        self._total.observe((now_ns - clock.arrived_ns) / NS_PER_S)
        self._inference.observe((clock.last_token_ns - clock.scheduled_ns) / NS_PER_S)
        decode_s = (clock.last_token_ns - clock.first_token_ns) / NS_PER_S
        self._decode.observe(decode_s)
        tpot_s = decode_s / (clock.answer_tokens - 1) if clock.answer_tokens > 1 else None
        if tpot_s is not None:
            self._tpot.observe(tpot_s)
        if reason in _FINISHED:
            ttft_s = (clock.first_token_ns - clock.arrived_ns) / NS_PER_S
            total_s = (clock.last_token_ns - clock.arrived_ns) / NS_PER_S
            kept = clock.slo.kept(ttft_s, tpot_s, total_s)
            time_bin.finish(None if tpot_s is None else round(tpot_s * NS_PER_S), kept=kept)
        if clock.tenant is not None:
            clock.tenant.generation_tokens.inc(clock.answer_tokens)
            if tpot_s is not None:
                clock.tenant.tpot.observe(tpot_s)

    def _first_token(
        self, clock: RequestClock, cached_tokens: int, time_bin: OpenBin, now_ns: int
    ) -> None:
        clock.first_token_ns, clock.cached_tokens = now_ns, cached_tokens
        self.begun += 1
        time_bin.begin(now_ns - clock.arrived_ns, clock.prompt_tokens, cached_tokens)
        self._ttft.observe((now_ns - clock.arrived_ns) / NS_PER_S)
        self._prefill.observe((now_ns - clock.scheduled_ns) / NS_PER_S)
        self._computed.observe(clock.prompt_tokens - cached_tokens)
        self._cached_tokens.inc(cached_tokens)
        self.looked_up_tokens += clock.prompt_tokens
        self.found_tokens += cached_tokens
        if clock.tenant is not None:
            clock.tenant.ttft.observe((now_ns - clock.arrived_ns) / NS_PER_S)
            clock.tenant.prompt_tokens.inc(clock.prompt_tokens)
            clock.tenant.cached_tokens.inc(cached_tokens)


# As vLLM names them, but for the last.
DRAFT_COUNTS: Sequence[tuple[str, str, Callable[[DraftTotals], float]]] = (
    ("spec_decode_num_drafts", "Drafts that were checked", lambda t: t.drafts),
    ("spec_decode_num_draft_tokens", "Draft tokens that were checked", lambda t: t.draft_tokens),
    ("spec_decode_num_accepted_tokens", "Of those that were kept", lambda t: t.accepted_tokens),
    (
        "spec_decode_num_declined",
        "Steps of a sequence without drafts, because these cost more than they bring",
        lambda t: t.declined,
    ),
)
ACCEPTED_BY_PLACE = (
    "spec_decode_num_accepted_tokens_per_pos",
    "Draft tokens that were kept, by their place in the draft",
)


def cache_config(
    labels: tuple[str, ...], workers: Iterable[tuple[tuple[str, ...], tuple[int, int]]]
) -> Figures:
    """How the KV of workers lies in blocks: for each its values of these labels, the tokens of a
    block and the number of blocks. As vLLM has it, labels say it all, and blocks are those of a GPU
    wherever they lie."""
    return Figures(
        GAUGE,
        "cache_config_info",
        "Always 1: its labels say how KV lies in blocks",
        (*labels, "block_size", "num_gpu_blocks"),
        [((*values, *map(str, sizes)), 1) for values, sizes in workers],
    )


def sleep_state(labels: tuple[str, ...], workers: Iterable[tuple[str, ...]]) -> Figures:
    """Of workers with these values of the labels. By vLLM's metric of this name its dashboards tell
    what is up; here no worker that runs ever sleeps."""
    return Figures(
        GAUGE,
        "engine_sleep_state",
        "Always 1: no engine that runs sleeps",
        (*labels, "sleep_state"),
        [((*values, "awake"), 1) for values in workers],
    )


@dataclass(frozen=True, slots=True)
class ShownAdapters:
    """Where figures of the adapters of one worker come from: what its `memory` holds now, and what
    they are called."""

    memory: Callable[[], AdapterMemory]
    names: AdapterNames


class WorkerMetrics:
    """Of one worker, whose machine is read when Prometheus asks; with those of its `adapters` where
    it serves any. `request_ended` as of `RequestMetrics`."""

    def __init__(
        self,
        model_name: str,
        machine: WorkerMachine,
        adapters: ShownAdapters | None = None,
        request_ended: RequestEnded | None = None,
    ) -> None:
        self._registry = ModelRegistry(model_name)
        self._machine = machine
        self._adapters = adapters
        self.requests = RequestMetrics(self._registry, request_ended=request_ended)
        self._step_tokens = self._registry.histogram(
            "iteration_tokens_total", "Tokens a step", TOKENS
        )

    def planned(self, plan: StepPlan, now_ns: int) -> None:
        self._step_tokens.observe(plan.batched_tokens)
        self.requests.scheduled((each.request_id for each in plan.placements), now_ns)

    def families(self) -> Iterator[MetricFamily]:
        """All metrics as they are at this moment."""
        yield from self._registry.families()
        yield from self._of_machine()
        yield from self._of_drafts()
        if self._adapters is not None:
            figures = adapter_figures(self._machine, self._adapters.memory())
            of_model = [((self._registry.model_name,), figures)]
            yield from adapter_metrics((MODEL_LABEL,), of_model, self._adapters.names())

    def _of_machine(self) -> Iterator[Figures]:
        sequences, planner = self._machine.sequences, self._machine.planner
        pool, figure, config = sequences.pool, self._registry.figure, self._machine.config
        yield figure(GAUGE, "num_requests_running", "Sequences in a slot", len(sequences.running))
        yield figure(GAUGE, "num_requests_waiting", "Sequences in the queue", len(planner.waiting))
        yield figure(
            GAUGE,
            "kv_cache_usage_perc",
            "Share of the KV blocks in use (1 is full)",
            1 - pool.free_blocks / pool.block_count,
        )
        for name, text, count in (
            ("prefix_cache_queries", "Tokens looked up", planner.prefix_query_tokens),
            ("prefix_cache_hits", "Tokens found cached", planner.prefix_hit_tokens),
            ("num_preemptions", "Sequences put back", planner.preemptions),
        ):
            yield figure(COUNTER, name, text, count)
        yield cache_config(
            (MODEL_LABEL, "enable_prefix_caching"),
            [
                (
                    (self._registry.model_name, str(config.prefix_caching)),
                    (config.block_size, config.block_count),
                )
            ],
        )
        yield sleep_state((MODEL_LABEL,), [(self._registry.model_name,)])

    def _of_drafts(self) -> Iterator[Figures]:
        """Where it speculates."""
        if self._machine.drafting is None:
            return
        totals, figure = self._machine.drafting.totals, self._registry.figure
        for name, text, read in DRAFT_COUNTS:
            yield figure(COUNTER, name, text, read(totals))
        yield Figures(
            COUNTER,
            *ACCEPTED_BY_PLACE,
            (MODEL_LABEL, "position"),
            [
                ((self._registry.model_name, str(place)), count)
                for place, count in enumerate(totals.accepted_by_place)
            ],
        )
