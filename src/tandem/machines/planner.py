"""How many workers there should be, decided anew at every tick from what came in and what it
got."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.cost.worker import WorkerCost
from tandem.facts.service_level import ServiceLevel
from tandem.policy.planning.contract import FleetView, Plan, Planning, Window
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """`window_s` is the length of an observation window, of which the last `windows` are kept; the
    rest are the bounds and costs of the fleet (see `FleetView`)."""

    cost: WorkerCost
    promise: ServiceLevel
    min_workers: int
    max_workers: int
    startup_s: float
    drain_s: float = 10.0
    window_s: float = 30.0
    windows: int = 240


class PlannerMachine:
    """Gathers windows; `plan` at `next_wakeup()` says what is wanted."""

    def __init__(self, planning: Planning, config: PlannerConfig) -> None:
        self.planning = planning
        self.config = config
        self._windows: deque[Window] = deque(maxlen=config.windows)
        self._window_ns = round(config.window_s * 1e9)
        self._window_end_ns = self._window_ns
        self._tick_ns = round(planning.interval_s * 1e9)
        self._next_tick_ns = self._tick_ns
        self._arrived = 0
        self._lengths: list[tuple[int, int]] = []
        self._ttft_s: list[float] = []
        self._tpot_s: list[float] = []

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
        self._lengths.append(lengths)
        if ttft_s is not None:
            self._ttft_s.append(ttft_s)
        if tpot_s is not None:
            self._tpot_s.append(tpot_s)

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
            promise=config.promise,
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
                    lengths=tuple(self._lengths),
                    ttft_s=tuple(self._ttft_s),
                    tpot_s=tuple(self._tpot_s),
                )
            )
            self._arrived = 0
            self._lengths, self._ttft_s, self._tpot_s = [], [], []
            self._window_end_ns += self._window_ns
