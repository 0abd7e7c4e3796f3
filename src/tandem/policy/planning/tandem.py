"""Tandem's planner: the fewest workers that keep the SLO over the start-up time, from length
distributions; flips before start-ups, slow to scale down. If it is to, it tries shapes in a
simulator before it changes anything (`simulated`)."""

from dataclasses import dataclass, field
from math import ceil

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.forecasting import ExponentialSmoothing, Forecaster
from tandem.policy.planning.contract import FleetView, Flip, Plan
from tandem.policy.planning.demand import (
    DecodeRoom,
    Demand,
    Workload,
    burstiness,
    sampled,
)
from tandem.policy.planning.pools import (
    Sizes,
    in_change,
    interval_kept,
    last_seconds,
    lengths_of,
    movable,
    pool,
    present,
    quietest,
    ttft_kept,
    within_bounds,
)
from tandem.policy.planning.simulated import ShapeTrials, Simulation, Wish

FULL_KV = 0.9
# Fewer running sequences say too little of the context to expect.
TELLING_SEQUENCES = 8
STEADY_TREND = ExponentialSmoothing(alpha=0.3, beta=0.2, damping=0.9)
# Pools beyond the bound still tell in which proportion to share it.
LOOK_BEYOND = 4


@dataclass(frozen=True, slots=True)
class Patience:
    """Against flapping. Workers leave a pool only when it could have spared them for `dwell_s`
    (stopped ones: for as long as it takes to get one back, if that is longer) with `band` more load
    than forecast, and not within `cooldown_s` of the last change."""

    band: float = 0.15
    dwell_s: float = 60.0
    cooldown_s: float = 120.0


@dataclass(slots=True)
class Tandem:
    """`attainment` is the share of requests that must keep each bound; `history_s` is how far back
    lengths are taken from. With `simulate` shapes are tried as `simulation` has it."""

    forecaster: Forecaster = STEADY_TREND
    attainment: float = 0.95
    history_s: float = 300.0
    patience: Patience = Patience()
    interval_s: float = 10.0
    simulate: bool = False
    simulation: Simulation = field(default_factory=Simulation)
    _needs: list[tuple[int, Sizes]] = field(default_factory=list, init=False)
    _watched_from_ns: int | None = field(default=None, init=False)
    _changed_ns: int | None = field(default=None, init=False)
    _trials: ShapeTrials = field(init=False)

    def __post_init__(self) -> None:
        if not 0.5 <= self.attainment < 1:
            raise InvalidConfiguration(
                f"attainment of the tandem planner is {self.attainment:g}; choose 0.5 to below 1"
            )
        self._trials = ShapeTrials(self.simulation, self.attainment, self.patience.cooldown_s)

    @property
    def remembers_s(self) -> float:
        """How long what clients asked for is to be remembered, for the simulator."""
        return self.simulation.window_s if self.simulate else 0.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        """Called once a tick."""
        wish = self._wish(fleet, now_ns)
        plan = self._trials.plan(fleet, wish, now_ns) if self.simulate else wish.plan
        assert plan.prefill is not None
        assert plan.decode is not None
        wanted = Sizes(plan.prefill, plan.decode)
        if wanted != present(fleet):
            self._changed_ns = now_ns
        return plan

    def _wish(self, fleet: FleetView, now_ns: int) -> Wish:
        """By the formulas alone."""
        rate_per_s = self._peak_rate_per_s(fleet)
        demand, most = self._demand(fleet), LOOK_BEYOND * fleet.max_workers
        need = within_bounds(demand.sizes(rate_per_s, most), fleet)
        safe = demand.sizes(rate_per_s * (1 + self.patience.band), most)
        self._remember(within_bounds(safe, fleet), fleet, now_ns)

        have = present(fleet)
        flips = self._flips(fleet, need, now_ns)
        target = _after(have, flips)
        missing = Sizes(max(0, need.prefill - target.prefill), max(0, need.decode - target.decode))
        if missing.total:
            target = _grown(target, missing, fleet.max_workers)
        elif not flips and self._calm(now_ns) and not in_change(fleet):
            target = self._shrunk(fleet, target, now_ns)
        target = within_bounds(target, fleet)
        reason = f"{rate_per_s:.3g} requests/s ahead need {need}; there are {have}"
        plan = Plan(target.prefill, target.decode, flips=flips, reason=reason)
        surplus = Sizes(0, 0)
        if self.simulate:
            surplus = self._surplus(fleet, self.patience.dwell_s, now_ns)
        return Wish(need, plan, rate_per_s, self._calm(now_ns), surplus)

    def _peak_rate_per_s(self, fleet: FleetView) -> float:
        """The highest rate forecast from now until a worker asked for today would help."""
        if not fleet.windows:
            return 0.0
        seconds = fleet.windows[-1].seconds
        steps = max(1, ceil((fleet.startup_s + fleet.drain_s) / seconds))
        counts = [window.requests for window in fleet.windows]
        return max(self.forecaster.forecast(counts, steps)) / seconds

    def _demand(self, fleet: FleetView) -> Demand:
        lengths = sampled(lengths_of(last_seconds(fleet.windows, self.history_s)))
        decoding = pool(fleet, Role.DECODE)
        running = sum(view.running_sequences for view in decoding)
        context_tokens = sum(view.context_tokens for view in decoding)
        workload = Workload(
            lengths,
            burstiness(fleet.windows),
            context_tokens / running if running >= TELLING_SEQUENCES else 0.0,
            _backlog_s(fleet, lengths),
            max(60.0, fleet.startup_s),
            running + sum(view.waiting_requests for view in decoding),
        )
        room = DecodeRoom()
        if decoding:
            room = DecodeRoom(
                FULL_KV * min(view.total_tokens for view in decoding),
                min(view.max_sequences for view in decoding),
            )
        return Demand.of(fleet.cost, fleet.slo, workload, attainment=self.attainment, room=room)

    def _remember(self, safe: Sizes, fleet: FleetView, now_ns: int) -> None:
        if self._watched_from_ns is None:
            self._watched_from_ns = now_ns
        oldest_ns = now_ns - _ns(self._stopping_dwell_s(fleet))
        self._needs = [(at, need) for at, need in self._needs if at >= oldest_ns]
        self._needs.append((now_ns, safe))

    def _stopping_dwell_s(self, fleet: FleetView) -> float:
        return max(self.patience.dwell_s, fleet.startup_s + fleet.drain_s)

    def _surplus(self, fleet: FleetView, dwell_s: float, now_ns: int) -> Sizes:
        """What each pool could have spared all through the last `dwell_s`, and can right now."""
        from_ns = now_ns - _ns(dwell_s)
        if self._watched_from_ns is None or self._watched_from_ns > from_ns:
            return Sizes(0, 0)
        needs = [need for at, need in self._needs if at >= from_ns]
        have = present(fleet)
        prefill = have.prefill - max(need.prefill for need in needs)
        decode = have.decode - max(need.decode for need in needs)
        prefilling, decoding = pool(fleet, Role.PREFILL), pool(fleet, Role.DECODE)
        # The present load has a veto: estimates of what should be needed may be wrong.
        while prefill > 0 and not ttft_kept(fleet, prefilling, 0, fewer=prefill):
            prefill -= 1
        # Prompts that queue for prefill are no load of decodes yet: a backlog of them would keep
        # idle decode workers from helping with it.
        while decode > 0 and not interval_kept(
            fleet, decoding, FULL_KV, fewer=decode, expected=False
        ):
            decode -= 1
        return Sizes(max(0, prefill), max(0, decode))

    def _calm(self, now_ns: int) -> bool:
        return self._changed_ns is None or now_ns - self._changed_ns >= _ns(
            self.patience.cooldown_s
        )

    def _flips(self, fleet: FleetView, need: Sizes, now_ns: int) -> tuple[Flip, ...]:
        """Workers that one pool can spare and the other lacks, if a flip is quicker than a start
        or there may be no more workers."""
        have = present(fleet)
        quicker = fleet.drain_s < fleet.startup_s or have.total >= fleet.max_workers
        if not quicker or not self._calm(now_ns):
            return ()
        dwell_s = max(self.patience.dwell_s, fleet.drain_s)
        surplus = self._surplus(fleet, dwell_s, now_ns)
        missing = max(0, need.prefill - have.prefill) + max(0, need.decode - have.decode)
        if missing <= fleet.spares:
            # Who stands by helps at once, and nobody has to drain for it.
            return ()
        if have.prefill < need.prefill:
            count, source, role = need.prefill - have.prefill, Role.DECODE, Role.PREFILL
            count = min(count, surplus.decode)
        else:
            count, source, role = need.decode - have.decode, Role.PREFILL, Role.DECODE
            count = min(count, surplus.prefill)
        there = pool(fleet, source)
        workers = quietest(movable(there, fleet))
        count = max(0, min(count, len(there) - 1))
        return tuple(Flip(view.worker, role.value) for view in workers[:count])

    def _shrunk(self, fleet: FleetView, sizes: Sizes, now_ns: int) -> Sizes:
        """Without half of what both pools could spare: the other half shows whether that was
        right."""
        surplus = self._surplus(fleet, self._stopping_dwell_s(fleet), now_ns)
        return Sizes(
            sizes.prefill - ceil(surplus.prefill / 2), sizes.decode - ceil(surplus.decode / 2)
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _after(sizes: Sizes, flips: tuple[Flip, ...]) -> Sizes:
    to_prefill = sum(1 if flip.role == Role.PREFILL else -1 for flip in flips)
    return Sizes(sizes.prefill + to_prefill, sizes.decode - to_prefill)


def _grown(sizes: Sizes, missing: Sizes, max_workers: int) -> Sizes:
    """With as much of what is missing as there may be, shared alike between the pools."""
    free = max(0, max_workers - sizes.total)
    if missing.total <= free:
        return Sizes(sizes.prefill + missing.prefill, sizes.decode + missing.decode)
    prefill = min(missing.prefill, round(free * missing.prefill / missing.total))
    return Sizes(sizes.prefill + prefill, sizes.decode + free - prefill)


def _backlog_s(fleet: FleetView, lengths: tuple[tuple[int, int], ...]) -> float:
    """Seconds of prefill that wait beyond what the SLO allows to wait."""
    prefilling = pool(fleet, Role.PREFILL)
    prompt_tokens = sum(prompt for prompt, _ in lengths)
    if not prefilling or not prompt_tokens or fleet.slo.ttft_s is None:
        return 0.0
    queued_tokens = sum(view.queued_prefill_tokens for view in prefilling)
    queued_s = fleet.cost.queue_seconds(queued_tokens, prompt_tokens // len(lengths))
    return max(0.0, queued_s - fleet.slo.ttft_s * len(prefilling) / 2)
