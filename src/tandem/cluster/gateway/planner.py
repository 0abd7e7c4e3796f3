"""The planner machine: how many workers of each role there should be, decided at every tick from
arrivals, latencies and load.

`PlannerMachine` asks the policy, with the windows of arrivals and finished requests that it has
gathered; `ClientExperience` measures what clients of this gateway got; `figures_of` is what the
policy saw, as it is recorded with each decision.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from statistics import median_low
from typing import Generic, TypeVar

from tandem.cluster.gateway.demand_record import DemandRecord, Entry
from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cost.correction import corrected
from tandem.facts.correction import Correction
from tandem.facts.fleet import PlanningMode, Role
from tandem.facts.slo import Slo
from tandem.messages.router import RequestSubmitted
from tandem.messages.worker import EmitTokens
from tandem.policy.planning.contract import Answer, FleetView, Plan, Planning, Window
from tandem.policy.planning.pools import last_seconds, lengths_of, mean, pool
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class PlanningConfig:
    """`planning` decides how many workers of each role there are, under the `name` that is shown;
    it remembers, so it serves one gateway. `slo` is what clients are to get. Demand is counted in
    windows of `window_s`. What operators change by hand is left alone for `hold_s`. This gateway
    sees the arrivals of one among `gateways`. So many `spares` stand by. A worker that has not
    drained within `patience_s` is not waited for. What clients asked for is remembered for
    `remembers_s` (0: not at all), for a simulator."""

    name: str
    planning: Planning
    pools: tuple[ScaledPool, ...]
    slo: Slo
    mode: PlanningMode = PlanningMode.AUTOMATIC
    window_s: float = 30.0
    hold_s: float = 600.0
    gateways: int = 1
    spares: int = 0
    patience_s: float = 300.0
    remembers_s: float = 0.0


KEPT_WINDOWS = 240
# How long a worker that drains is taken to have work.
DRAIN_S = 10.0

Value = TypeVar("Value")

# So many of a window's requests show how they are distributed; hours of windows are kept.
KEPT_REQUESTS = 1024
# How far back finished requests are counted in the figures that are shown.
RECENT_S = 300.0


class Thinned(Generic[Value]):
    """At most `KEPT_REQUESTS` of the values added, evenly over them."""

    def __init__(self) -> None:
        self.kept: list[Value] = []
        self._added = 0
        self._stride = 1

    def add(self, value: Value) -> None:
        if self._added % self._stride == 0:
            self.kept.append(value)
        self._added += 1
        if len(self.kept) > KEPT_REQUESTS:
            del self.kept[1::2]
            self._stride *= 2


class PlannerMachine:
    """Gathers windows from `now_ns` on; `decide` at `next_wakeup()` gives the wanted fleet."""

    def __init__(self, config: PlanningConfig, now_ns: int = 0) -> None:
        self._config = config
        self._windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._window_ns = round(config.window_s * 1e9)
        self._window_end_ns = now_ns + self._window_ns
        self._tick_ns = round(config.planning.interval_s * 1e9)
        self._next_tick_ns = now_ns + self._tick_ns
        self._open_window()

    def reconfigure(self, config: PlanningConfig, now_ns: int) -> None:
        """Decide by another configuration, from windows that are counted anew where their length
        is another one. The next tick comes no later than one new interval from now."""
        resized = config.window_s != self._config.window_s
        self._config = config
        self._tick_ns = round(config.planning.interval_s * 1e9)
        self._next_tick_ns = min(self._next_tick_ns, now_ns + self._tick_ns)
        if resized:
            self._windows.clear()
            self._window_ns = round(config.window_s * 1e9)
            self._window_end_ns = now_ns + self._window_ns
            self._open_window()

    def next_wakeup(self) -> int | None:
        return self._next_tick_ns

    def request_arrived(self, now_ns: int) -> None:
        self._close_windows(now_ns)
        # The other gateways have as many, which this one does not see.
        self._arrived += self._config.gateways

    def request_finished(
        self, lengths: tuple[int, int], ttft_s: float | None, tpot_s: float | None, now_ns: int
    ) -> None:
        """`lengths` are its (uncached prompt, output) tokens."""
        self._close_windows(now_ns)
        self._lengths.add(lengths)
        if ttft_s is not None:
            self._ttft_s.add(ttft_s)
        if tpot_s is not None:
            self._tpot_s.add(tpot_s)

    def view(
        self,
        workers: Sequence[WorkerView],
        starting: dict[str, int],
        now_ns: int,
        *,
        held: frozenset[str] = frozenset(),
        joined_by_hand: int = 0,
        spares: int = 0,
        answer: Answer | None = None,
    ) -> FleetView:
        """All that the policy may know. `starting` counts workers asked for and not yet up, by
        role. Workers that were `joined_by_hand` come on top of the numbers that the fleet may
        have."""
        self._close_windows(now_ns)
        pools = self._config.pools
        return FleetView(
            workers=workers,
            windows=tuple(self._windows),
            starting=starting,
            cost=corrected(pools[0].cost, _typical_correction(workers)),
            slo=self._config.slo,
            min_workers=sum(each.min_count for each in pools) + joined_by_hand,
            max_workers=sum(each.max_count for each in pools) + joined_by_hand,
            # Wherever a worker starts.
            startup_s=max(each.startup_s for each in pools),
            drain_s=DRAIN_S,
            held=held,
            spares=spares,
            answer=answer,
        )

    def decide(self, fleet: FleetView, now_ns: int) -> Plan:
        """What the policy wants; the next tick comes one interval later."""
        self.skip_tick(now_ns)
        return self._config.planning.plan(fleet, now_ns)

    def skip_tick(self, now_ns: int) -> None:
        """Nothing is asked now; the next tick comes one interval later."""
        while self._next_tick_ns <= now_ns:
            self._next_tick_ns += self._tick_ns

    def _close_windows(self, now_ns: int) -> None:
        while now_ns >= self._window_end_ns:
            self._windows.append(
                Window(
                    end_ns=self._window_end_ns,
                    seconds=self._config.window_s,
                    requests=self._arrived,
                    lengths=tuple(self._lengths.kept),
                    ttft_s=tuple(self._ttft_s.kept),
                    tpot_s=tuple(self._tpot_s.kept),
                )
            )
            self._open_window()
            self._window_end_ns += self._window_ns

    def _open_window(self) -> None:
        self._arrived = 0
        self._lengths: Thinned[tuple[int, int]] = Thinned()
        self._ttft_s: Thinned[float] = Thinned()
        self._tpot_s: Thinned[float] = Thinned()


@dataclass(slots=True)
class OpenRequest:
    """A request whose answer has not ended. Of its prompt, `cached_tokens` were not computed. One
    that is not `measured` counts for no plan."""

    arrival_ns: int
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    measured: bool = True
    slo: Slo | None = None
    recorded: Entry | None = None


class ClientExperience:
    """Times and lengths of a gateway's requests, passed to its planner as they finish, and written
    to a record (`record_to`) if there is one. `chain_of` gives the block hashes of a prompt as far
    as they are known."""

    def __init__(
        self,
        planner: PlannerMachine,
        chain_of: Callable[[str], Sequence[bytes]] = lambda _: (),
    ) -> None:
        self._planner, self._chain_of = planner, chain_of
        self._record: DemandRecord | None = None
        self._open: dict[str, OpenRequest] = {}

    def record_to(self, record: DemandRecord | None) -> None:
        """From now on requests are recorded here."""
        self._record = record

    @property
    def open_ids(self) -> Set[str]:
        """Of the requests whose answers are not whole."""
        return self._open.keys()

    def request_submitted(self, event: RequestSubmitted, now_ns: int) -> None:
        """A client wants this. Refused ones are demand, too."""
        request = event.request
        arrival_ns = now_ns if event.arrived_ns is None else event.arrived_ns
        opened = OpenRequest(arrival_ns, len(request.prompt_tokens))
        self._open[request.request_id] = opened
        self._planner.request_arrived(now_ns)
        if self._record is None:
            return
        most = request.sampling.max_tokens
        expected_tokens = max(1, min(most, round(event.expected_output_tokens)))
        opened.slo = event.slo
        opened.recorded = Entry(
            now_ns, opened.prompt_tokens, expected_tokens, event.tenant, event.service_class
        )
        self._record.request_submitted(opened.recorded)
        self._record.hashed(opened.recorded, self._chain_of(request.request_id))

    def brought_up_to_date(self) -> None:
        """What is recorded of open requests says how long their answers are by now."""
        for request in self._open.values():
            if request.recorded is not None:
                recorded = request.recorded
                recorded.output_tokens = max(recorded.output_tokens, request.output_tokens)

    def request_beside(self, request_id: str, now_ns: int) -> None:
        """One that measures nothing: it was under way before anybody looked, or goes to workers
        that are not planned."""
        self._open[request_id] = OpenRequest(now_ns, 0, measured=False)

    def tokens_delivered(self, emission: EmitTokens, now_ns: int, repeats: int = 1) -> None:
        """Clients get these tokens now, so many for each row."""
        for row, request_id in enumerate(emission.request_ids):
            request = self._open.get(request_id)
            if request is None:
                continue
            if not request.output_tokens:
                request.first_token_ns = now_ns
                request.cached_tokens = emission.cached_tokens[row]
                if self._record is not None and request.recorded is not None:
                    # It may have waited before it was hashed.
                    self._record.hashed(request.recorded, self._chain_of(request_id))
            request.output_tokens += repeats
            request.last_token_ns = now_ns
            if emission.finish_reasons[row] is not None:
                del self._open[request_id]
                self._finished(request, now_ns)

    def request_ended(self, request_id: str, now_ns: int) -> None:
        """Its client left, perhaps with all that it wanted, or its time was over: what was computed
        for it was work."""
        request = self._open.pop(request_id, None)
        if request is not None and request.output_tokens:
            self._finished(request, now_ns)

    def request_dropped(self, request_id: str) -> None:
        """It was refused, or has failed."""
        request = self._open.pop(request_id, None)
        if request is not None and request.recorded is not None:
            request.recorded.kept = False

    def _finished(self, request: OpenRequest, now_ns: int) -> None:
        if not request.measured:
            return
        ttft_s = (request.first_token_ns - request.arrival_ns) / 1e9
        gaps = request.output_tokens - 1
        tpot_s = (request.last_token_ns - request.first_token_ns) / 1e9 / gaps if gaps else None
        uncached_tokens = max(1, request.prompt_tokens - request.cached_tokens)
        lengths = uncached_tokens, request.output_tokens
        if request.recorded is not None and request.slo is not None:
            e2e_s = (request.last_token_ns - request.arrival_ns) / 1e9
            request.recorded.output_tokens = request.output_tokens
            request.recorded.kept = request.slo.kept(ttft_s, tpot_s, e2e_s)
        self._planner.request_finished(lengths, ttft_s, tpot_s, now_ns)


def figures_of(fleet: FleetView) -> tuple[tuple[str, float], ...]:
    """By name: the load of both pools now, the demand and the attainment of the SLO lately."""
    prefilling, decoding = pool(fleet, Role.PREFILL), pool(fleet, Role.DECODE)
    figures = {
        "prefill_workers": float(len(prefilling)),
        "decode_workers": float(len(decoding)),
        "prefill_starting": float(fleet.starting.get(Role.PREFILL, 0)),
        "decode_starting": float(fleet.starting.get(Role.DECODE, 0)),
        "held_workers": float(len(fleet.held)),
        "queued_prefill_tokens": _sum(view.queued_prefill_tokens for view in prefilling),
        "waiting_requests": _sum(view.waiting_requests for view in (*prefilling, *decoding)),
        "running_sequences": _sum(view.running_sequences for view in decoding),
        "kv_used": mean([view.kv_used for view in decoding]),
        **_demand(fleet),
    }
    return tuple(figures.items())


def _demand(fleet: FleetView) -> dict[str, float]:
    """What was never measured is left out."""
    if not fleet.windows:
        return {}
    recent = last_seconds(fleet.windows, RECENT_S)
    figures = {"arrivals_per_s": fleet.windows[-1].requests / fleet.windows[-1].seconds}
    if lengths := lengths_of(recent):
        figures["uncached_prompt_tokens"] = mean([prompt for prompt, _ in lengths])
        figures["output_tokens"] = mean([output for _, output in lengths])
    ttfts_s = [seconds for window in recent for seconds in window.ttft_s]
    tpots_s = [seconds for window in recent for seconds in window.tpot_s]
    for name, measured_s, bound_s in (
        ("ttft", ttfts_s, fleet.slo.ttft_s),
        ("tpot", tpots_s, fleet.slo.tpot_s),
    ):
        if measured_s:
            figures[f"{name}_s"] = mean(measured_s)
            if bound_s is not None:
                figures[f"{name}_kept"] = mean([float(each <= bound_s) for each in measured_s])
    return figures


def _sum(values: Iterable[int]) -> float:
    return float(sum(values))


def _typical_correction(workers: Sequence[WorkerView]) -> Correction:
    """What was learnt of the workers' steps: of those that decode and those that prefill, the
    median of each."""
    decodes = [view.cost.correction.decode for view in workers if view.role.decodes]
    prefills = [view.cost.correction.prefill for view in workers if view.role.prefills]
    return Correction(
        decode=median_low(decodes) if decodes else 1.0,
        prefill=median_low(prefills) if prefills else 1.0,
    )
