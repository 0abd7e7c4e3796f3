"""What serving costs beside the engine's steps (HTTP, event loops, wire, cores that processes
share), and how it is fitted from what a client measured.

Each figure is a number of seconds with a meaning of its own, measured on one machine by
`tandem calibrate`. All zeros is a server around the engine that takes no time at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tandem.cost.fitted import FittedStepTime, non_negative_fit
from tandem.cost.worker import LinkCost, ServingCost, StepShape
from tandem.facts.errors import InvalidConfiguration

SIGNIFICANT_DIGITS = 4
# A worker that has computed nothing for so long is cold: other processes had its caches.
COLD_AFTER_S = 0.02


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
class DecodeGaps:
    """Streams that ran side by side: `seconds` between two tokens of each, at the median, while all
    of them together attended to `context_tokens`."""

    sequences: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GatewayLoad:
    """The processor time of a gateway's event loop: of a request, and of a token to a client."""

    request_s: float = 0.0
    token_s: float = 0.0


def fit_serving(
    engine: FittedStepTime,
    first_tokens: Sequence[FirstTokens],
    decodes: Sequence[DecodeGaps],
    gateway: GatewayLoad,
) -> ServingCost:
    """The non-negative figures that explain all measurements with the least squares of relative
    errors:

    TTFT = request + token + `prompt_token_s` x prompt + `stretch` x engine + `step_s` + `row_s`,
    gap = `stretch` x engine + `step_s` + `row_s` x sequences.

    Prompts of which nothing is computed tell requests from steps, prompts of several lengths tell
    `stretch` from what a step costs whatever it holds. The gateway's own time is known, so it is
    no unknown here. Raises `InvalidConfiguration` without measurements of both kinds.
    """
    if not first_tokens or not decodes:
        raise InvalidConfiguration("a calibration needs first tokens and decodes")
    known_s = gateway.request_s + gateway.token_s
    rows: list[list[float]] = []
    parts: tuple[float, ...]
    goals: list[float] = []
    for first in first_tokens:
        parts = (1.0, first.prompt_tokens, engine.seconds(first.shape), 1.0, 1.0)
        rows.append([part / first.seconds for part in parts])
        goals.append(max(0.0, first.seconds - known_s) / first.seconds)
    for gap in decodes:
        engine_s = engine.decode_seconds(gap.sequences, gap.context_tokens)
        parts = (0.0, 0.0, engine_s, 1.0, gap.sequences)
        rows.append([part / gap.seconds for part in parts])
        goals.append(1.0)
    wait_s, prompt_token_s, stretch, step_s, row_s = non_negative_fit(rows, goals)
    return rounded(
        ServingCost(
            request_s=gateway.request_s,
            request_wait_s=wait_s,
            prompt_token_s=prompt_token_s,
            stretch=stretch,
            step_s=step_s,
            row_s=row_s,
            token_s=gateway.token_s,
        )
    )


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
    """From the start of a step to the next one: the engine's, longer because it shares cores, and
    what the worker around it adds."""
    stretched = {
        part.name: getattr(engine, part.name) * serving.stretch
        for part in fields(FittedStepTime)
        if part.name != "stages"
    }
    stretched["fixed_s"] += serving.step_s
    stretched["row_s"] += serving.row_s
    return replace(engine, **stretched)


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
    for name, least in (("stretch", 1e-6), ("prefill_slowdown", 1.0), ("decode_slowdown", 1.0)):
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
