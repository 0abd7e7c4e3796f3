"""What admission answers on arrival: yes, or no with the reason and an honest time to come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is one clear sentence, empty when admitted; `retry_after_s` is when the same request
    is predicted to be admitted."""

    admitted: bool
    reason: str = ""
    retry_after_s: float = 0.0


ADMITTED = Verdict(True)


class Admission(Protocol):
    """Early rejection over both phases, before any work is done. `route` is where the request would
    go, with its predicted seconds; None when no worker can take it."""

    def judge(
        self,
        request: RequestView,
        route: Route | None,
        workers: Sequence[WorkerView],
        now_ns: int,
    ) -> Verdict: ...
