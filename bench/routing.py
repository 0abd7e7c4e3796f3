"""How long a routing policy takes to choose among many workers, and how long a router takes for a
new request in all: block hashes, prefix index, admission, routing and dispatch.

Usage: python bench/routing.py [--repetitions N]
"""

import argparse
import gc
import statistics
import time
from array import array
from dataclasses import dataclass

from msgspec.structs import replace

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.cost.worker import LinkCost, StepShape, WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role, Tier
from tandem.facts.request import Request
from tandem.facts.slo import Slo
from tandem.messages.router import (
    LoadReported,
    RequestSubmitted,
    RequestWithdrawn,
    WorkerJoined,
)
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.contract import Admission
from tandem.policy.admission.policies import AdmitAll, EarlyRejection
from tandem.policy.chance import draw
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import ROUTINGS, make_routing
from tandem.policy.views import RequestView, TierHits, WorkerView

FLEETS = (16, 128, 1024)
GOAL_US = {16: 100, 1024: 6000}
ROUTER_GOAL_US = {64: 2000, 1024: 6000}
PROMPT_TOKENS = 8_000
# What is kept of each worker is made with the first requests.
WARM_UP = 20


@dataclass(frozen=True)
class BenchStepTime:
    """A plausible 70B model on eight GPUs: weights are read once, or arithmetic bounds."""

    stages: int = 1

    def seconds(self, shape: StepShape) -> float:
        arithmetic_s = 5e-5 * shape.tokens
        attention_s = sum(8e-10 * count * (before + count / 2) for before, count in shape.chunks)
        return max(0.012, arithmetic_s) + attention_s + 2.5e-8 * shape.decode_context_tokens

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        return max(0.012, 5e-5 * sequences) + 2.5e-8 * context_tokens


COST = WorkerCost(
    BenchStepTime(),
    kv_bytes_per_token=327_680,
    chunk_tokens=2048,
    tiers={Tier.HOST: LinkCost(20e9, 20e-6), Tier.DISK: LinkCost(5e9, 100e-6)},
    network=LinkCost(50e9, 10e-6),
)


def fleet(count: int, disaggregated: bool) -> list[WorkerView]:
    return [
        WorkerView(
            worker=f"worker-{place:04}",
            role=(Role.PREFILL, Role.DECODE)[place % 2] if disaggregated else Role.BOTH,
            cost=COST,
            as_of_ns=0,
            running_sequences=int(64 * draw(1, place)),
            waiting_requests=int(4 * draw(2, place)),
            queued_prefill_tokens=int(30_000 * draw(3, place)),
            context_tokens=int(200_000 * draw(4, place)),
            total_blocks=40_000,
            free_blocks=int(40_000 * draw(5, place)),
        )
        for place in range(count)
    ]


def request(serial: int, views: list[WorkerView]) -> RequestView:
    """8,000 tokens, of which eight workers hold a part."""
    holders = [views[int(draw(6, serial, k) * len(views))].worker for k in range(8)]
    hits = {worker: TierHits(512 * (k + 1), 256 * k) for k, worker in enumerate(holders)}
    return RequestView(f"r{serial}", serial, 0, 8_000, 300.0, hits)


def choose_us(name: str, views: list[WorkerView], repetitions: int, all_new: bool) -> list[float]:
    """Every choice meets a changed view of one worker, as it does in service, or of all."""
    policy, views = make_routing(name, 0), list(views)
    policy.choose(request(0, views), views, 0)
    times = []
    for serial in range(repetitions):
        asked, place = request(serial, views), serial % len(views)
        for changed in range(len(views)) if all_new else (place,):
            waiting_requests = views[changed].waiting_requests + 1
            views[changed] = replace(views[changed], waiting_requests=waiting_requests)
        begin = time.perf_counter()
        policy.choose(asked, views, 0)
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def router(count: int, disaggregated: bool, admission: Admission) -> RouterMachine:
    """Of two classes, with workers that carry something."""
    views = fleet(count, disaggregated)
    capacity = Capacity(COST, block_size=16, block_count=40_000, max_sequences=256)
    classes = (ServiceClass("premium"), ServiceClass("free", priority=5))
    machine = RouterMachine(
        RouterConfig(
            block_size=16,
            root=CacheRoot("bench", "1", b"layout"),
            capacities={view.worker: capacity for view in views},
            routing=make_routing("cost", 0),
            admission=admission,
            dispatching=DISPATCHES["remote"](),
            classes=Classes(classes),
        )
    )
    for view in views:
        machine.handle(WorkerJoined(view.worker, view.role), 0)
        machine.handle(load_of(view), 0)
    return machine


def load_of(view: WorkerView, more: int = 0) -> LoadReported:
    return LoadReported(
        view.worker,
        view.running_sequences,
        view.waiting_requests + more,
        view.queued_prefill_tokens,
        view.context_tokens,
        view.free_blocks,
    )


def submit_us(machine: RouterMachine, views: list[WorkerView], repetitions: int) -> list[float]:
    """A request of one class or the other with a prompt of its own; between two of them one worker
    reports."""
    slo, times = Slo(ttft_s=5.0, tpot_s=0.1), []
    for serial in range(WARM_UP + repetitions):
        now_ns = serial * 10_000_000
        machine.handle(load_of(views[serial % len(views)], serial % 7), now_ns)
        prompt = array("I", range(serial, serial + PROMPT_TOKENS))
        service = ("premium", "free")[serial % 2]
        asked = Request(f"r{serial}", prompt, priority=5 * (serial % 2))
        event = RequestSubmitted(asked, 300.0, service_class=service, slo=slo)
        begin = time.perf_counter()
        machine.handle(event, now_ns)
        if serial >= WARM_UP:
            times.append((time.perf_counter() - begin) * 1e6)
        if serial >= 64:
            machine.handle(RequestWithdrawn(f"r{serial - 64}"), now_ns)
    return times


def show(name: str, kind: str, times_us: list[float], goal_us: int | None) -> None:
    p50, p99 = statistics.median(times_us), statistics.quantiles(times_us, n=100)[-1]
    print(f"{name:<16}{kind:<20}{p50:9.0f}{p99:9.0f}{goal_us or '':>8}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--router-only", action="store_true")
    repetitions = parser.parse_args().repetitions
    # As a gateway process does: what it is made of is no garbage.
    gc.freeze()
    if not parser.parse_args().router_only:
        choices(repetitions)
    routers(repetitions)


def choices(repetitions: int) -> None:
    """Every routing policy alone."""
    print(f"{'policy':<16}{'fleet':<20}{'p50 us':>9}{'p99 us':>9}{'goal':>8}")
    for count in FLEETS:
        for disaggregated in (False, True):
            views = fleet(count, disaggregated)
            kind = f"{count} {'pairs' if disaggregated else 'both'}"
            for name in ROUTINGS:
                times = choose_us(name, views, repetitions, all_new=False)
                show(name, kind, times, GOAL_US.get(count))
            times = choose_us("cost", views, repetitions, all_new=True)
            show("cost", f"{kind}, all new", times, None)


def routers(repetitions: int) -> None:
    """A router with early rejection."""
    print(f"\na new request of {PROMPT_TOKENS:,} tokens, by admission")
    admissions: dict[str, Admission] = {
        "none": AdmitAll(),
        "prediction": EarlyRejection(True),
        "with breaker": EarlyRejection(True, breaker=BreakerTerms()),
    }
    for count, goal_us in ROUTER_GOAL_US.items():
        for disaggregated in (False, True):
            kind = f"{count} {'pairs' if disaggregated else 'both'}"
            for name, admission in admissions.items():
                machine = router(count, disaggregated, admission)
                times = submit_us(machine, fleet(count, disaggregated), repetitions)
                show(name, kind, times, goal_us)


if __name__ == "__main__":
    main()
