"""Admission policies by name: everybody, thresholds of load, early rejection."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.checks import (
    first_token_refusal,
    later_tokens_refusal,
    without_infeasible,
)
from tandem.policy.admission.contract import (
    ADMITTED,
    MAX_RETRY_S,
    Admission,
    Refusal,
    Verdict,
    check_max_retry,
    no_worker,
    verdict_of,
)
from tandem.policy.admission.decode_forecast import forecast
from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView, view_of


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """Only a fleet without a worker refuses."""

    max_retry_s: float = MAX_RETRY_S

    def __post_init__(self) -> None:
        check_max_retry(self.max_retry_s)

    @property
    def breaker(self) -> None:
        """Nothing is predicted."""
        return None

    def judge(
        self, request: RequestView, route: Route | None, workers: Sequence[WorkerView], now_ns: int
    ) -> Verdict:
        return ADMITTED if route else no_worker(workers, self.max_retry_s)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Refuses when every prefill worker, or every decode worker, is past one of its limits; one
    worker that is not busy is enough. After Dynamo's token-capacity admission, with its defaults:
    10,000 queued prompt tokens, 0.85 of the KV blocks. `max_waiting_requests` None is no limit.
    """

    max_queued_tokens: int = 10_000
    max_kv_share: float = 0.85
    max_waiting_requests: int | None = None
    max_retry_s: float = MAX_RETRY_S

    def __post_init__(self) -> None:
        check_max_retry(self.max_retry_s)
        if not 0 < self.max_kv_share <= 1:
            raise InvalidConfiguration(
                f"max_kv_share is {self.max_kv_share:g}; choose a share above 0, at most 1"
            )
        for name in ("max_queued_tokens", "max_waiting_requests"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidConfiguration(f"{name} is {value}; choose 0 or more")

    @property
    def breaker(self) -> None:
        """Nothing is predicted."""
        return None

    def judge(
        self, request: RequestView, route: Route | None, workers: Sequence[WorkerView], now_ns: int
    ) -> Verdict:
        if route is None:
            return no_worker(workers, self.max_retry_s)
        refusals = []
        for phase, pool in (
            ("prefill", [view for view in workers if view.accepting and view.role.prefills]),
            ("decode", [view for view in workers if view.accepting and view.role.decodes]),
        ):
            busy = [(self._busy(view, request), view.worker) for view in pool]
            if all(refusal for refusal, _ in busy):
                wait_s, _, reason = min((r.wait_s, worker, r.reason) for r, worker in busy if r)
                refusals.append(
                    Refusal(f"all {len(pool)} {phase} workers are busy: {reason}", wait_s)
                )
        return verdict_of(refusals, self.max_retry_s)

    def _busy(self, view: WorkerView, request: RequestView) -> Refusal | None:
        """The limit that this worker passes longest; None when it passes none."""
        return max(self._passed(view, request), key=lambda each: each.wait_s, default=None)

    def _passed(self, view: WorkerView, request: RequestView) -> Iterator[Refusal]:
        """Every limit that this worker passes."""
        # Sequences end one by one over the time of one answer.
        gap_s = view.cost.decode_seconds(max(1, view.running_sequences), view.context_tokens)
        answer_s = request.expected_output_tokens * gap_s
        queued, waiting = view.queued_prefill_tokens, view.waiting_requests
        if view.role.prefills and queued > self.max_queued_tokens:
            yield Refusal(
                f"{queued:,} prompt tokens wait at worker {view.worker}, "
                f"above {self.max_queued_tokens:,}",
                view.cost.queue_seconds(queued - self.max_queued_tokens),
            )
        if self.max_waiting_requests is not None and waiting > self.max_waiting_requests:
            over = waiting - self.max_waiting_requests
            prefill_s = view.cost.queue_seconds(-(-queued * over // waiting))
            slots_s = over * answer_s / max(1, view.running_sequences)
            yield Refusal(
                f"{waiting:,} requests wait at worker {view.worker}, "
                f"above {self.max_waiting_requests:,}",
                prefill_s if queued else slots_s,
            )
        if view.role.decodes and view.kv_used > self.max_kv_share:
            yield Refusal(
                f"worker {view.worker} uses {view.kv_used:.1%} of its KV blocks, "
                f"above {self.max_kv_share:.1%}",
                answer_s * (1.0 - self.max_kv_share / view.kv_used),
            )


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """Admits when TTFT and TPOT will hold and the decode worker has room (Mooncake, arXiv
    2407.00079, section 7).

    Rejecting by the decode load of now lets prefill and decode loads swing against each other,
    because an admitted request decodes only after its prefill; the prediction asks for the load of
    that later time.

    `predictive` reads the decode load when this request's decode will start (now + predicted
    TTFT), else now. `answer_tokens` is the mean answer of the fleet, by which the running sequences
    end; None takes this request's expectation. `admit_infeasible` lets in requests whose SLO
    no idle worker could keep, as if nothing had been promised there. A slo on the whole answer
    (E2E) is not judged. With a `breaker` (None: without) predictions are held against what comes.
    """

    predictive: bool
    answer_tokens: float | None = None
    admit_infeasible: bool = False
    breaker: BreakerTerms | None = None
    max_retry_s: float = MAX_RETRY_S

    def __post_init__(self) -> None:
        check_max_retry(self.max_retry_s)
        if self.answer_tokens is not None and not self.answer_tokens >= 1:
            raise InvalidConfiguration(
                f"answer_tokens is {self.answer_tokens:g}; choose at least 1, or leave it out"
            )

    def judge(
        self, request: RequestView, route: Route | None, workers: Sequence[WorkerView], now_ns: int
    ) -> Verdict:
        if route is None:
            return no_worker(workers, self.max_retry_s)
        first = first_token_refusal(request, route, workers, now_ns)
        feasible = True
        if self.admit_infeasible:
            asked = request
            request = without_infeasible(asked, workers)
            feasible = request is asked and not (first and first.wait_s == inf)
            first = first if feasible or (first and first.wait_s < inf) else None
        decode = view_of(workers, route.decode)
        typical_tokens = request.typical_output_tokens or request.expected_output_tokens
        answer_tokens = self.answer_tokens or typical_tokens
        expected = forecast(decode, answer_tokens, route.ttft_s)
        ahead_s = expected.arriving_s if self.predictive else 0.0
        later = later_tokens_refusal(request, expected, workers, ahead_s)
        refusals = [refusal for refusal in (first, later) if refusal]
        verdict = verdict_of(refusals, self.max_retry_s)
        return verdict if feasible else replace(verdict, feasible=False)


ADMISSIONS: dict[str, Callable[..., Admission]] = {
    "none": AdmitAll,
    "threshold": Threshold,
    "load": partial(EarlyRejection, False),
    "prediction": partial(EarlyRejection, True),
}
