"""What serving costs beside the engine's steps (HTTP, event loops, wire, cores that processes
share), and how it is fitted from what a client measured.

Each figure is a number of seconds with a meaning of its own, measured on one machine by
`tandem calibrate`. All zeros is a server around the engine that takes no time at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tandem.cost.fitted import (
    COEFFICIENTS,
    FittedStepTime,
    TimedStep,
    from_coefficients,
    non_negative_fit,
    step_counts,
)
from tandem.cost.worker import LinkCost, ServingCost, StepShape
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.step_totals import StepTotals

SIGNIFICANT_DIGITS = 4
# A worker that has computed nothing for so long is cold: other processes had its caches.
COLD_AFTER_S = 0.02
# How much the engine's own samples weigh beside what the server measured.
SAMPLES_WEIGHT = 0.1
# What factors are at least.
LEAST = {
    "prefill_slowdown": 1.0,
    "decode_slowdown": 1.0,
}


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Requests that had the server to themselves: `seconds` from the client's call to its first
    token, at the median. Of the prompt `computed_tokens` were not found in the prefix cache."""

    prompt_tokens: int
    computed_tokens: int
    seconds: float

    @property
    def shape(self) -> StepShape:
        chunk = (self.prompt_tokens - self.computed_tokens, self.computed_tokens)
        if self.computed_tokens == 1:
            return StepShape((), 1, self.prompt_tokens, 1)
        return StepShape((chunk,), sampled_rows=1)


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """The processor time of a gateway's event loop: of a request, of a worker's message with tokens
    and of a token to a client."""

    request_s: float = 0.0
    message_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoopTime:
    """A load during which a gateway's loop computed for `busy_s` of `wall_s`."""

    requests: int
    messages: int
    tokens: int
    wall_s: float
    busy_s: float


def fit_gateway(loads: Sequence[LoopTime]) -> GatewayLoad:
    """The loop's time shared out over requests, messages and tokens, by least squares of relative
    errors; what it does at all times (heartbeats, reports) is in none of them."""
    timed = [load for load in loads if load.busy_s > 0]
    if not timed:
        return GatewayLoad()
    rows = [
        [each / load.busy_s for each in (load.requests, load.messages, load.tokens, load.wall_s)]
        for load in timed
    ]
    request_s, message_s, token_s, _ = non_negative_fit(rows, [1.0] * len(timed))
    return GatewayLoad(request_s, message_s, token_s)


def fit_steps(
    engine: FittedStepTime, samples: Sequence[TimedStep], loads: Sequence[Sequence[StepTotals]]
) -> FittedStepTime:
    """What steps take in the server, by least squares of relative errors. In each of the `loads`,
    steps with and without chunks of prompts weigh the same, by the time they took. The `samples`
    of the engine alone, as much longer as steps were in the server altogether, count for the sizes
    that no load had. Raises `InvalidConfiguration` without steps of both kinds."""
    timed: list[tuple[Sequence[float], float, float]] = []
    kinds: set[bool] = set()
    for load in loads:
        for chunked in (False, True):
            alike = [each for each in load if each.chunked is chunked and each.duration_ns > 0]
            total_s = sum(each.duration_ns for each in alike) / 1e9
            kinds.update(each.chunked for each in alike)
            for each in alike:
                seconds = each.duration_ns / 1e9
                timed.append((_counts_of(each), seconds, seconds / total_s))
    if len(kinds) < 2:
        raise InvalidConfiguration("a calibration needs steps with prompts and with decodes")
    everything = [each for load in loads for each in load]
    measured_s = sum(each.duration_ns for each in everything) / 1e9
    longer = measured_s / step_seconds(engine, everything)
    for sample in samples:
        weight = SAMPLES_WEIGHT * 2 * len(loads) / len(samples)
        timed.append((step_counts(sample.shape), sample.seconds * longer, weight))
    rows = [[weight**0.5 * count / s for count in counts] for counts, s, weight in timed]
    return from_coefficients(non_negative_fit(rows, [weight**0.5 for _, _, weight in timed]))


def step_seconds(step_time: FittedStepTime, steps: Iterable[StepTotals]) -> float:
    """What all these steps take by this step time, which is linear in their totals."""
    costs: list[float] = [getattr(step_time, name) for name in COEFFICIENTS]
    return sum(
        cost * count for each in steps for cost, count in zip(costs, _counts_of(each), strict=True)
    )


def _counts_of(steps: StepTotals) -> Sequence[float]:
    """What each coefficient of a step time multiplies, of all these steps."""
    return (
        steps.steps,
        steps.prompt_tokens + steps.decodes,
        steps.attended_pairs,
        steps.decodes,
        steps.context_tokens,
        steps.sampled_rows,
    )


def fit_entry(
    served: FittedStepTime, gateway: GatewayLoad, first_tokens: Sequence[FirstTokens]
) -> ServingCost:
    """What a request waits besides, from the client's call until its step starts: `request_wait_s`
    and `prompt_token_s`, with the least squares of relative errors. Steps and the gateway's loop
    are known. Raises `InvalidConfiguration` without first tokens."""
    if not first_tokens:
        raise InvalidConfiguration("a calibration needs first tokens")
    known_s = gateway.request_s + gateway.message_s + gateway.token_s
    rows = [[1.0 / first.seconds, first.prompt_tokens / first.seconds] for first in first_tokens]
    goals = [
        max(0.0, first.seconds - known_s - served.seconds(first.shape)) / first.seconds
        for first in first_tokens
    ]
    wait_s, prompt_token_s = non_negative_fit(rows, goals)
    return ServingCost(request_wait_s=wait_s, prompt_token_s=prompt_token_s)


def fit_transfer(samples: Sequence[tuple[float, float]]) -> LinkCost:
    """Latency and bandwidth of a KV transfer from (bytes, seconds). Raises `InvalidConfiguration`
    without a sample that took time."""
    timed = [(moved_bytes, seconds) for moved_bytes, seconds in samples if seconds > 0]
    if not timed:
        raise InvalidConfiguration("a calibration needs a KV transfer that took time")
    latency_s, byte_s = non_negative_fit(
        [(1.0 / seconds, moved_bytes / seconds) for moved_bytes, seconds in timed],
        [1.0] * len(timed),
    )
    return (
        LinkCost(_digits(1.0 / byte_s), _digits(latency_s))
        if byte_s
        else LinkCost(latency_s=_digits(latency_s))
    )


def serving_fields(serving: ServingCost) -> dict[str, float]:
    """For JSON."""
    return asdict(serving)


def serving_from_fields(values: Mapping[str, object], label: str) -> ServingCost:
    """What `serving_fields` gave. Raises `InvalidConfiguration` naming the field."""
    known = {part.name for part in fields(ServingCost)}
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidConfiguration(
                f"{label}: unknown field {name!r}; expected {', '.join(sorted(known))}"
            )
        read[name] = _figure(value, f"{label}: {name}")
    for name, least in LEAST.items():
        if read.get(name, 1.0) < least:
            raise InvalidConfiguration(
                f"{label}: {name} is {read[name]:g}; expected {least:g} at least"
            )
    return ServingCost(**read)


def transfer_fields(link: LinkCost) -> dict[str, float]:
    """For JSON, which has no infinity: an unlimited bandwidth is left out."""
    values = {"latency_s": link.latency_s}
    return (
        values
        if link == LinkCost(latency_s=link.latency_s)
        else values | {"bytes_per_s": link.bytes_per_s}
    )


def transfer_from_fields(values: Mapping[str, object], label: str) -> LinkCost:
    """What `transfer_fields` gave. Raises `InvalidConfiguration` naming the field."""
    unknown = sorted(set(values) - {"latency_s", "bytes_per_s"})
    if unknown:
        raise InvalidConfiguration(
            f"{label}: unknown field {unknown[0]!r}; expected bytes_per_s, latency_s"
        )
    read = {name: _figure(value, f"{label}: {name}") for name, value in values.items()}
    if not read.get("bytes_per_s", 1.0):
        raise InvalidConfiguration(f"{label}: bytes_per_s is 0; expected more than 0")
    return LinkCost(**read)


def rounded(serving: ServingCost) -> ServingCost:
    """To as many digits as a measurement has."""
    return ServingCost(**{name: _digits(value) for name, value in asdict(serving).items()})


def _figure(value: object, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise InvalidConfiguration(f"{label} is {value!r}; expected a number of 0 or more")
    return float(value)


def _digits(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
