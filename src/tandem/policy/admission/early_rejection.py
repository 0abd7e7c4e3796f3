"""Early rejection over both phases (Mooncake, arXiv 2407.00079): by present load or by predicted
load.

After Mooncake (arXiv 2407.00079, section 7). Rejecting by the decode load of now lets prefill and
decode loads swing against each other, because an admitted request decodes only after its prefill;
the prediction asks for the load of that later time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.admission.contract import (
    ADMITTED,
    MAX_RETRY_S,
    Verdict,
    check_max_retry,
    no_worker,
)
from tandem.policy.admission.decode_forecast import forecast
from tandem.policy.admission.first_token import first_token_refusal
from tandem.policy.admission.later_tokens import later_tokens_refusal, without_infeasible
from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """Admits when TTFT and TPOT will hold and the decode worker has room.

    `predictive` reads the decode load when this request's decode will start (now + predicted
    TTFT), else now. `answer_tokens` is the mean answer of the fleet, by which the running sequences
    end; None takes this request's expectation. `admit_infeasible` lets in requests whose SLO
    no idle worker could keep, as if nothing had been promised there. A slo on the whole answer
    (E2E) is not judged.
    """

    predictive: bool
    answer_tokens: float | None = None
    admit_infeasible: bool = False
    max_retry_s: float = MAX_RETRY_S

    def __post_init__(self) -> None:
        check_max_retry(self.max_retry_s)
        if self.answer_tokens is not None and not self.answer_tokens >= 1:
            raise InvalidConfiguration(
                f"answer_tokens is {self.answer_tokens:g}; choose at least 1, or leave it out"
            )

    def judge(
        self,
        request: RequestView,
        route: Route | None,
        workers: Sequence[WorkerView],
        now_ns: int,
    ) -> Verdict:
        if route is None:
            return no_worker(workers, self.max_retry_s)
        first = first_token_refusal(request, route, workers, now_ns)
        if first and first.wait_s == inf and self.admit_infeasible:
            first = None
        if self.admit_infeasible:
            request = without_infeasible(request, workers)
        decode = next(view for view in workers if view.worker == route.decode)
        answer_tokens = self.answer_tokens or request.expected_output_tokens
        expected = forecast(decode, answer_tokens, route.ttft_s)
        ahead_s = expected.arriving_s if self.predictive else 0.0
        later = later_tokens_refusal(request, expected, workers, ahead_s)
        refusals = [refusal for refusal in (first, later) if refusal]
        if not refusals:
            return ADMITTED
        return max(refusals, key=lambda refusal: refusal.wait_s).verdict(self.max_retry_s)
