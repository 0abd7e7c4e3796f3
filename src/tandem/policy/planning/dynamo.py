"""The two loops of NVIDIA Dynamo's planner, after its design document: slow on predicted
throughput, quick on present load. It sees mean lengths and never flips a worker."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from tandem.facts.fleet import Role
from tandem.policy.forecasting import ExponentialSmoothing, Forecaster
from tandem.policy.planning.contract import FleetView, Plan, Window
from tandem.policy.planning.pools import (
    Sizes,
    bounded_plan,
    in_change,
    last_seconds,
    lengths_of,
    mean,
    pool,
    present,
    token_interval_s,
    ttft_s,
)

LONGEST_STEP = 8
SAFE_SHARE = 0.8


@dataclass(slots=True)
class DynamoThroughput:
    """Every `period_s`: ceil(predicted rate over the rate one engine serves within the SLO),
    from mean lengths. At most eight workers of a role come or go at once."""

    forecaster: Forecaster = field(default_factory=ExponentialSmoothing)
    period_s: float = 180.0

    @property
    def interval_s(self) -> float:
        return self.period_s

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        sizes, wanted = present(fleet), self.wanted(fleet)
        stepped = Sizes(_step(sizes.prefill, wanted.prefill), _step(sizes.decode, wanted.decode))
        return bounded_plan(stepped, fleet, f"throughput asks for {wanted}")

    def wanted(self, fleet: FleetView) -> Sizes:
        pairs = lengths_of(last_seconds(fleet.windows, self.period_s))
        if not pairs:
            return Sizes(1, 1)
        prompt_tokens = mean([prompt for prompt, _ in pairs])
        output_tokens = mean([output for _, output in pairs])
        rates = _periods(fleet.windows, self.period_s)
        rate_per_s = self.forecaster.forecast(rates, 1)[0]
        prefill_s = fleet.cost.prefill_seconds(ceil(prompt_tokens))
        tokens_per_s = _decode_tokens_per_s(fleet, prompt_tokens + output_tokens / 2)
        decode = rate_per_s * output_tokens / tokens_per_s
        return Sizes(ceil(rate_per_s * prefill_s), ceil(decode))


@dataclass(slots=True)
class DynamoLoad:
    """Every 5 s: one more worker where every engine's estimate breaks the SLO; one fewer where
    N - 1 of them would stay below 0.8 of it, with room for the KV. Nothing while workers change."""

    interval_s: float = 5.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        if in_change(fleet):
            return Plan(reason="a change is still under way")
        wanted = self.wanted(fleet)
        return bounded_plan(wanted, fleet, f"load asks for {wanted}")

    def wanted(self, fleet: FleetView) -> Sizes:
        prompt_tokens = mean([prompt for prompt, _ in lengths_of(fleet.windows[-1:])])
        prefilling, decoding = pool(fleet, Role.PREFILL), pool(fleet, Role.DECODE)

        def intervals_s(spread: float) -> list[float]:
            if any(view.kv_used * spread > 1 for view in decoding):
                return [inf]
            return [token_interval_s(view, spread) for view in decoding]

        def ttfts_s(spread: float) -> list[float]:
            return [ttft_s(view, prompt_tokens, spread) for view in prefilling]

        return Sizes(
            _changed(len(prefilling), fleet.slo.ttft_s, ttfts_s),
            _changed(len(decoding), fleet.slo.tpot_s, intervals_s),
        )


@dataclass(slots=True)
class Dynamo:
    """Both loops: the throughput loop sets the floor, the load loop moves above it."""

    throughput: DynamoThroughput = field(default_factory=DynamoThroughput)
    load: DynamoLoad = field(default_factory=DynamoLoad)
    _floor: Sizes = field(default=Sizes(1, 1), init=False)
    _floor_due_ns: int | None = field(default=None, init=False)

    @property
    def interval_s(self) -> float:
        return self.load.interval_s

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        sizes = present(fleet)
        if self._floor_due_ns is None or now_ns >= self._floor_due_ns:
            self._floor = self.throughput.wanted(fleet)
            self._floor_due_ns = now_ns + round(self.throughput.period_s * 1e9)
        asked = sizes if in_change(fleet) else self.load.wanted(fleet)
        wanted = Sizes(
            _step(sizes.prefill, max(asked.prefill, self._floor.prefill)),
            _step(sizes.decode, max(asked.decode, self._floor.decode)),
        )
        return bounded_plan(wanted, fleet, f"floor {self._floor}, load asks for {asked}")


def _step(now: int, wanted: int) -> int:
    return max(now - LONGEST_STEP, min(now + LONGEST_STEP, wanted))


def _changed(
    workers: int, bound_s: float | None, estimate_s: Callable[[float], list[float]]
) -> int:
    """The number of workers one quick decision later; `estimate_s(spread)` gives each engine's
    latency with its load times `spread`."""
    if bound_s is None or not workers:
        return workers
    if min(estimate_s(1.0)) > bound_s:
        return workers + 1
    if workers > 1 and max(estimate_s(workers / (workers - 1))) <= SAFE_SHARE * bound_s:
        return workers - 1
    return workers


def _periods(windows: Sequence[Window], period_s: float) -> list[float]:
    """Requests per second of each whole period, oldest first, ending with the last window."""
    if not windows:
        return []
    group = max(1, round(period_s / windows[-1].seconds))
    rates = []
    for end in range(len(windows), 0, -group):
        part = windows[max(0, end - group) : end]
        rates.append(
            sum(window.requests for window in part) / sum(window.seconds for window in part)
        )
    return rates[::-1]


def _decode_tokens_per_s(fleet: FleetView, context_tokens: float) -> float:
    """What one engine decodes at the largest batch that keeps the TPOT and fits into its KV."""
    views = pool(fleet, Role.DECODE)
    fits = min((int(view.total_tokens / context_tokens) for view in views), default=256)
    most = max(1, min([fits, *(view.max_sequences for view in views)]))
    bound_s = inf if fleet.slo.tpot_s is None else fleet.slo.tpot_s
    batch = bisect_right(
        range(1, most + 1),
        bound_s,
        key=lambda count: fleet.cost.decode_seconds(count, ceil(count * context_tokens)),
    )
    batch = max(1, batch)
    return batch / fleet.cost.decode_seconds(batch, ceil(batch * context_tokens))
