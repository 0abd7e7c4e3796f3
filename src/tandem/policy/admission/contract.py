"""The port of admission policies: admitted or refused, with the reason and an honest Retry-
After."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is one clear sentence, empty when admitted; `retry_after_s` is when the same request
    is predicted to be admitted. Not `feasible`: no idle worker could keep what was asked for."""

    admitted: bool
    reason: str = ""
    retry_after_s: float = 0.0
    feasible: bool = True


ADMITTED = Verdict(True)


class Admission(Protocol):
    """Early rejection over both phases, before any work is done. `route` is where the request would
    go, with its predicted seconds; None when no worker can take it. A `breaker` watches what comes
    of those that were admitted because their SLO was predicted to hold."""

    @property
    def breaker(self) -> BreakerTerms | None: ...

    def judge(
        self, request: RequestView, route: Route | None, workers: Sequence[WorkerView], now_ns: int
    ) -> Verdict: ...


MIN_RETRY_S = 0.1
MAX_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """`wait_s` is when the cause is predicted to be gone, infinite where waiting does not help."""

    reason: str
    wait_s: float


def verdict_of(refusals: Sequence[Refusal], max_retry_s: float) -> Verdict:
    """The refusal that lasts longest; admitted where there is none."""
    if not refusals:
        return ADMITTED
    longest = max(refusals, key=lambda refusal: refusal.wait_s)
    retry_s = min(max(longest.wait_s, MIN_RETRY_S), max_retry_s)
    return Verdict(False, longest.reason, retry_s, feasible=longest.wait_s < inf)


def check_max_retry(max_retry_s: float) -> None:
    """Raises `InvalidConfiguration`."""
    if not max_retry_s >= MIN_RETRY_S:
        raise InvalidConfiguration(
            f"max_retry_s is {max_retry_s:g}; choose at least {MIN_RETRY_S:g}, "
            "the shortest retry that is ever told"
        )


def no_worker(workers: Sequence[WorkerView], max_retry_s: float) -> Verdict:
    """When a worker comes is not known: the longest retry."""
    phases = []
    if not any(view.accepting and view.role.prefills for view in workers):
        phases.append("prefill")
    if not any(view.accepting and view.role.decodes for view in workers):
        phases.append("decode")
    what = f"requests for {' or '.join(phases)}" if phases else "this request"
    return Verdict(False, f"no worker accepts {what}", max_retry_s, feasible=False)


def in_words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
