"""What serving costs beside the engine's steps (HTTP, event loops, wire, cores that processes
share), and how it is fitted from what a client measured.

Each figure is a number of seconds with a meaning of its own, measured on one machine by
`tandem calibrate`. All zeros is a server around the engine that takes no time at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tandem.cost.fitted import FittedStepTime, non_negative_fit
from tandem.cost.worker import LinkCost, ServingCost, StepShape
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.step_totals import StepTotals

SIGNIFICANT_DIGITS = 4
# A worker that has computed nothing for so long is cold: other processes had its caches.
COLD_AFTER_S = 0.02
# A server is no quicker than half of its engine's grid; the rest is what else ran meanwhile.
LEAST_STRETCH = 0.5
# What factors are at least.
LEAST = {
    "prompt_stretch": 1e-6,
    "decode_stretch": 1e-6,
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


def fit_steps(engine: FittedStepTime, loads: Sequence[Iterable[StepTotals]]) -> ServingCost:
    """What steps took in the server beside the engine alone: `prompt_stretch` and `decode_stretch`
    (`LEAST_STRETCH` or more), `step_s` and `row_s` with the least squares of relative errors. In
    each of the `loads`, steps with and without chunks of prompts weigh the same, by the time they
    took. Raises `InvalidConfiguration` without steps of both kinds."""
    rows: list[list[float]] = []
    goals: list[float] = []
    for load in loads:
        for chunked in (False, True):
            alike = [each for each in load if each.chunked is chunked and each.duration_ns > 0]
            total_s = sum(each.duration_ns for each in alike) / 1e9
            for each in alike:
                seconds = each.duration_ns / 1e9
                weight = (seconds / total_s) ** 0.5 / seconds
                prompt_s, decode_s, *counts = _step_parts(engine, each)
                known_s = each.steps * engine.fixed_s + LEAST_STRETCH * (prompt_s + decode_s)
                rows.append([weight * part for part in (prompt_s, decode_s, *counts)])
                goals.append(weight * (seconds - known_s))
    prompts, decodes = (any(row[column] for row in rows) for column in (0, 1))
    if not prompts or not decodes:
        raise InvalidConfiguration("a calibration needs steps with prompts and with decodes")
    prompts_more, decodes_more, step_s, row_s = non_negative_fit(rows, goals)
    return ServingCost(
        prompt_stretch=LEAST_STRETCH + prompts_more,
        decode_stretch=LEAST_STRETCH + decodes_more,
        step_s=step_s,
        row_s=row_s,
    )


def _step_parts(engine: FittedStepTime, steps: StepTotals) -> tuple[float, float, float, float]:
    """What `prompt_stretch`, `decode_stretch`, `step_s` and `row_s` multiply."""
    prompt_s = steps.prompt_tokens * engine.token_s + steps.attended_pairs * engine.pair_s
    decode_s = (
        steps.decodes * (engine.token_s + engine.decode_s)
        + steps.context_tokens * engine.context_token_s
        + steps.sampled_rows * engine.row_s
    )
    return prompt_s, decode_s, steps.steps, steps.sampled_rows


def step_seconds(served: FittedStepTime, steps: Iterable[StepTotals]) -> float:
    """What all these steps take by this step time, which is linear in their totals."""
    return sum(
        each.steps * served.fixed_s
        + (each.prompt_tokens + each.decodes) * served.token_s
        + each.attended_pairs * served.pair_s
        + each.decodes * served.decode_s
        + each.context_tokens * served.context_token_s
        + each.sampled_rows * served.row_s
        for each in steps
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


def served_step_time(engine: FittedStepTime, serving: ServingCost) -> FittedStepTime:
    """From the start of a step to the next one: the engine's, longer because it shares the machine,
    and what the worker around it adds."""
    prompts, decodes = serving.prompt_stretch, serving.decode_stretch
    # A decode is one of the batch's tokens, too.
    decode_s = decodes * engine.decode_s + (decodes - prompts) * engine.token_s
    return replace(
        engine,
        fixed_s=engine.fixed_s + serving.step_s,
        token_s=prompts * engine.token_s,
        pair_s=prompts * engine.pair_s,
        decode_s=max(0.0, decode_s),
        context_token_s=decodes * engine.context_token_s,
        row_s=decodes * engine.row_s + serving.row_s,
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
