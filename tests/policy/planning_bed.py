"""A fleet as a fluid: prompts and decodes flow through two pools of identical workers, and a
planner is asked at every tick. No randomness but the keyed noise of the arrivals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import cycle, islice
from math import sqrt
from statistics import NormalDist

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.slo import Slo
from tandem.policy.planning.contract import FleetView, Plan, Planning, Window
from tandem.policy.views import WorkerView

BLOCK_SIZE = 16


# About a 70B model on four H100: 20k prompt tokens a second, 20 ms for a small batch.
STEP_TIME = FittedStepTime(
    fixed_s=0.02, token_s=5e-5, pair_s=5e-10, decode_s=5e-5, context_token_s=2e-8
)
COST = WorkerCost(STEP_TIME, kv_bytes_per_token=320e3, chunk_tokens=2048)
PROMISE = Slo(ttft_s=2.0, tpot_s=0.05)
LENGTHS = ((200, 50), (800, 400), (1500, 150), (4000, 250), (12000, 300))


def noise(*key: object) -> float:
    """A standard normal number that belongs to the key."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return NormalDist().inv_cdf((int.from_bytes(digest, "big") + 0.5) / 2**64)


def window(end_s: float, seconds: float, requests: int, lengths=LENGTHS) -> Window:
    pairs = tuple(islice(cycle(lengths), requests))
    return Window(round(end_s * 1e9), seconds, requests, pairs)


def worker(name: str, role: Role, **state) -> WorkerView:
    state = {"total_blocks": 25_000, "free_blocks": 25_000, "max_sequences": 512} | state
    return WorkerView(name, role, COST, as_of_ns=0, block_size=BLOCK_SIZE, **state)


def workers(prefill: int, decode: int, **state) -> list[WorkerView]:
    return [worker(f"p{index:03}", Role.PREFILL, **state) for index in range(prefill)] + [
        worker(f"d{index:03}", Role.DECODE, **state) for index in range(decode)
    ]


def fleet(views=(), windows=(), **changes) -> FleetView:
    settings = {
        "starting": {},
        "cost": COST,
        "slo": PROMISE,
        "min_workers": 2,
        "max_workers": 64,
        "startup_s": 60.0,
        "drain_s": 20.0,
    }
    return FleetView(views, windows, **(settings | changes))


@dataclass
class Machine:
    role: Role
    ready_s: float


@dataclass
class Tick:
    """What one tick showed: the state before the plan, and the plan."""

    now_s: float
    prefill: int
    decode: int
    starting: int
    ttft_s: float
    tpot_s: float
    plan: Plan
    changed: bool


@dataclass
class Bed:
    planning: Planning
    rate_per_s: Callable[[float], float]
    prefill: int = 2
    decode: int = 2
    seed: int = 0
    noisy: float = 1.0
    startup_s: float = 60.0
    drain_s: float = 20.0
    min_workers: int = 2
    max_workers: int = 64
    lengths: tuple[tuple[int, int], ...] = LENGTHS
    machines: dict[str, Machine] = field(default_factory=dict)
    history: list[Tick] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    serial: int = 0
    queued_tokens: float = 0.0
    decoding: float = 0.0

    def run(self, seconds: float) -> list[Tick]:
        for role, count in ((Role.PREFILL, self.prefill), (Role.DECODE, self.decode)):
            self._start(role, count, 0.0)
        tick_s = self.planning.interval_s
        for tick in range(1, int(seconds / tick_s) + 1):
            self._step(tick * tick_s, tick_s)
        return self.history

    def _start(self, role: Role, count: int, ready_s: float) -> None:
        for _ in range(count):
            self.machines[f"w{self.serial:05}"] = Machine(role, ready_s)
            self.serial += 1

    def _step(self, now_s: float, tick_s: float) -> None:
        expected = self.rate_per_s(now_s) * tick_s
        jitter = self.noisy * sqrt(expected) * noise(self.seed, now_s)
        self.windows.append(window(now_s, tick_s, max(0, round(expected + jitter)), self.lengths))
        del self.windows[:-360]
        ttft_s, tpot_s = self._flow(self.windows[-1], now_s)
        view = self._view(now_s)
        plan = self.planning.plan(view, round(now_s * 1e9))
        up = {role: len(self._up(role, now_s)) for role in (Role.PREFILL, Role.DECODE)}
        starting = sum(view.starting.values())
        before = dict(self.machines)
        self._apply(plan, now_s)
        changed = before != self.machines
        self.history.append(
            Tick(now_s, up[Role.PREFILL], up[Role.DECODE], starting, ttft_s, tpot_s, plan, changed)
        )

    def _up(self, role: Role, now_s: float) -> list[str]:
        return [
            name for name, one in self.machines.items() if one.role is role and one.ready_s <= now_s
        ]

    def _flow(self, arrived: Window, now_s: float) -> tuple[float, float]:
        """Moves the fluid over one window; gives the TTFT and TPOT that its requests feel."""
        prompts = [prompt for prompt, _ in self.lengths]
        outputs = [output for _, output in self.lengths]
        prompt, output = sum(prompts) / len(prompts), sum(outputs) / len(outputs)
        token_s = sum(COST.prefill_seconds(one) for one in prompts) / sum(prompts)
        capacity = max(1, len(self._up(Role.PREFILL, now_s))) / token_s
        self.queued_tokens += sum(prompt for prompt, _ in arrived.lengths)
        done = min(self.queued_tokens, capacity * arrived.seconds)
        self.queued_tokens -= done
        decode_workers = max(1, len(self._up(Role.DECODE, now_s)))
        # What is in flight follows the arrivals within a step or two, so steps are short.
        for _ in range(10):
            slot_s = arrived.seconds / 10
            each = self.decoding / decode_workers
            tpot_s = COST.decode_seconds(max(1, round(each)), round(each * (prompt + output / 2)))
            left = min(self.decoding, self.decoding / (output * tpot_s) * slot_s)
            self.decoding += done / prompt / 10 - left
        return self.queued_tokens / capacity + token_s * prompt, tpot_s

    def _view(self, now_s: float) -> FleetView:
        prefilling, decoding = self._up(Role.PREFILL, now_s), self._up(Role.DECODE, now_s)
        views = [
            worker(
                name,
                Role.PREFILL,
                queued_prefill_tokens=round(self.queued_tokens / len(prefilling)),
            )
            for name in prefilling
        ]
        for name in decoding:
            each = round(self.decoding / len(decoding))
            context_tokens = round(each * 3900)
            free = max(0, 25_000 - context_tokens // BLOCK_SIZE)
            views.append(
                worker(
                    name,
                    Role.DECODE,
                    running_sequences=each,
                    context_tokens=context_tokens,
                    free_blocks=free,
                )
            )
        starting = {
            role.value: sum(
                one.role is role and one.ready_s > now_s for one in self.machines.values()
            )
            for role in (Role.PREFILL, Role.DECODE)
        }
        return fleet(
            views,
            tuple(self.windows),
            starting=starting,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            startup_s=self.startup_s,
            drain_s=self.drain_s,
        )

    def _apply(self, plan: Plan, now_s: float) -> None:
        for flip in plan.flips:
            self.machines[flip.worker] = Machine(Role(flip.role), now_s + self.drain_s)
        for role, wanted in ((Role.PREFILL, plan.prefill), (Role.DECODE, plan.decode)):
            mine = [name for name, one in self.machines.items() if one.role is role]
            if wanted is None:
                continue
            self._start(role, wanted - len(mine), now_s + self.startup_s)
            for name in mine[wanted:]:
                del self.machines[name]


def changes(history: list[Tick]) -> int:
    """How many ticks asked for another fleet than there was, started workers included."""
    return sum(tick.changed for tick in history)
