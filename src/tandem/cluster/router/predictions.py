"""What was predicted for requests beside what came of them: for the report of calibration, and for
what first tokens take beside their steps."""

from dataclasses import dataclass
from math import log2

from tandem.cluster.router.fleet import TrackedWorker
from tandem.facts.calibration import Calibration
from tandem.facts.slo import Slo
from tandem.policy.routing.contract import Route

# What is shown is of the last so many minutes.
MINUTE_NS = 60_000_000_000
SHOWN_MINUTES = 10
# A running step, and the one planned behind it, end before a prompt's first step begins; and a
# prediction may be wrong by such a share.
STEPS_BEFORE = 2
ERROR_SHARE = 0.1
# Nobody predicts or measures less.
SHORTEST_S = 1e-6


@dataclass(slots=True)
class Forecast:
    """What was predicted of a request when it went to its first workers at `decided_ns`, after it
    had waited `waited_s`. Where nothing that nobody reports could delay its first token by more
    than `slack_s`, its prefill `worker` is judged by it; else that is empty. `learnt_s` of the
    prediction is what was learnt so."""

    decided_ns: int
    waited_s: float
    ttft_s: float
    tpot_s: float
    worker: str = ""
    slack_s: float = 0.0
    learnt_s: float = 0.0
    first_token_ns: int = -1


def forecast_of(
    route: Route, prefill: str, tracked: TrackedWorker, now_ns: int, arrival_ns: int
) -> Forecast:
    """Of a request that is about to go to the worker `prefill`."""
    waited_s = (now_ns - arrival_ns) / 1e9
    forecast = Forecast(now_ns, waited_s, route.ttft_s, route.tpot_s)
    view = tracked.view
    if prefill != route.prefill or view is None or tracked.prefilling:
        return forecast
    if view.waiting_requests or view.queued_prefill_tokens:
        return forecast
    running = view.running_sequences
    step_s = view.cost.decode_stage_seconds(running, view.context_tokens) if running else 0.0
    forecast.worker = prefill
    forecast.slack_s = STEPS_BEFORE * step_s + ERROR_SHARE * route.ttft_s
    forecast.learnt_s = view.cost.correction.first_token_s
    return forecast


class Predictions:
    """Owns the counts of all requests that ended, and those of each of the last minutes."""

    def __init__(self) -> None:
        self._all = Calibration()
        self._minutes: dict[int, Calibration] = {}
        self._late: list[tuple[str, float]] = []

    def total(self) -> Calibration:
        """Of all."""
        shown = Calibration()
        shown.add(self._all)
        return shown

    def recent(self, now_ns: int) -> Calibration:
        """Of the last ten minutes."""
        shown = Calibration()
        for minute, counted in self._minutes.items():
            if minute > now_ns // MINUTE_NS - SHOWN_MINUTES:
                shown.add(counted)
        return shown

    def take_late(self) -> list[tuple[str, float]]:
        """Since the last call: by how many seconds a first token of a worker came later than its
        steps explain (less than 0: earlier)."""
        late, self._late = self._late, []
        return late

    def first_token(self, forecast: Forecast, now_ns: int, *, alone: bool = True) -> None:
        """A request got its first token; `alone`: no other prompt has come to its worker since."""
        forecast.first_token_ns = now_ns
        if not forecast.worker or not alone:
            # Later prompts fill up its steps.
            return
        expected_s = forecast.ttft_s - forecast.learnt_s
        late_s = (now_ns - forecast.decided_ns) / 1e9 - expected_s
        # Up to the slack it may be the doing of other steps: then it tells nothing new.
        if not late_s - forecast.slack_s <= forecast.learnt_s <= late_s:
            nearest_s = late_s if late_s < forecast.learnt_s else late_s - forecast.slack_s
            self._late.append((forecast.worker, nearest_s))

    def answered(self, forecast: Forecast, slo: Slo, tokens: int, now_ns: int) -> None:
        """A request got its last token, after `tokens` in all."""
        first_ns = forecast.first_token_ns
        if first_ns < 0:
            return
        ttft_s = (first_ns - forecast.decided_ns) / 1e9 + forecast.waited_s
        tpot_s = (now_ns - first_ns) / 1e9 / (tokens - 1) if tokens > 1 else None
        self._count(forecast, slo, ttft_s, tpot_s, now_ns)

    def failed(self, forecast: Forecast, slo: Slo, now_ns: int) -> None:
        """A request that was let in ended without its answer."""
        self._count(forecast, slo, None, None, now_ns)

    def _count(
        self, forecast: Forecast, slo: Slo, ttft_s: float | None, tpot_s: float | None, now_ns: int
    ) -> None:
        predicted = forecast.waited_s + forecast.ttft_s, forecast.tpot_s
        for counted in (self._all, self._minute(now_ns // MINUTE_NS)):
            counted.count(slo, predicted, ttft_s, tpot_s)
            for ratios, expected_s, measured_s in (
                (counted.ttft_ratios, predicted[0], ttft_s),
                (counted.tpot_ratios, predicted[1], tpot_s),
            ):
                if measured_s is not None:
                    ratios.requests += 1
                    ratios.log2_sum += log2(
                        max(measured_s, SHORTEST_S) / max(expected_s, SHORTEST_S)
                    )

    def _minute(self, minute: int) -> Calibration:
        counted = self._minutes.get(minute)
        if counted is None:
            counted = self._minutes[minute] = Calibration()
            while len(self._minutes) > SHOWN_MINUTES:
                del self._minutes[next(iter(self._minutes))]
        return counted
