"""The planner machine: how many workers of each role there should be, decided at every tick from
arrivals, latencies and load."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandem.cost.worker import WorkerCost
from tandem.facts.slo import Slo
from tandem.policy.planning.contract import FleetView, Plan, Planning, Window
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """`window_s` is the length of an observation window, of which the last `windows` are kept; the
    rest are the bounds and costs of the fleet (see `FleetView`)."""

    cost: WorkerCost
    slo: Slo
    min_workers: int
    max_workers: int
    startup_s: float
    drain_s: float = 10.0
    window_s: float = 30.0
    windows: int = 240


Value = TypeVar("Value")

# So many of a window's requests show how they are distributed; hours of windows are kept.
KEPT_REQUESTS = 1024


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
    """Gathers windows from `now_ns` on; `plan` at `next_wakeup()` says what is wanted."""

    def __init__(self, planning: Planning, config: PlannerConfig, now_ns: int = 0) -> None:
        self.planning = planning
        self.config = config
        self._windows: deque[Window] = deque(maxlen=config.windows)
        self._window_ns = round(config.window_s * 1e9)
        self._window_end_ns = now_ns + self._window_ns
        self._tick_ns = round(planning.interval_s * 1e9)
        self._next_tick_ns = now_ns + self._tick_ns
        self._open_window()

    def next_wakeup(self) -> int | None:
        return self._next_tick_ns

    def request_arrived(self, now_ns: int) -> None:
        self._close_windows(now_ns)
        self._arrived += 1

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

    def plan(self, workers: Sequence[WorkerView], starting: dict[str, int], now_ns: int) -> Plan:
        """The wish of this tick. `starting` counts workers asked for and not yet up, by role."""
        self._close_windows(now_ns)
        while self._next_tick_ns <= now_ns:
            self._next_tick_ns += self._tick_ns
        config = self.config
        view = FleetView(
            workers=workers,
            windows=tuple(self._windows),
            starting=starting,
            cost=config.cost,
            slo=config.slo,
            min_workers=config.min_workers,
            max_workers=config.max_workers,
            startup_s=config.startup_s,
            drain_s=config.drain_s,
        )
        return self.planning.plan(view, now_ns)

    def _close_windows(self, now_ns: int) -> None:
        while now_ns >= self._window_end_ns:
            self._windows.append(
                Window(
                    end_ns=self._window_end_ns,
                    seconds=self.config.window_s,
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
