"""The port of routing policies: prefill worker, decode worker, and the reasons."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tandem.policy.views import RequestView, WorkerView


class Candidate(Struct, frozen=True):
    """One worker as the policy saw it. The smallest `score` wins, in the policy's own unit;
    `ttft_s` and `tpot_s` are the predicted seconds if the request went there, whatever the policy
    scores by."""

    worker: str
    score: float
    ttft_s: float
    tpot_s: float


class Route(Struct, frozen=True):
    """The chosen pair; one worker twice when it does both. `reasons` hold every candidate of either
    phase; `ttft_s` and `tpot_s` are what this pair is predicted to give."""

    prefill: str
    decode: str
    ttft_s: float
    tpot_s: float
    prefill_reasons: tuple[Candidate, ...]
    decode_reasons: tuple[Candidate, ...] = ()

    @property
    def local(self) -> bool:
        return self.prefill == self.decode


class Routing(Protocol):
    """`choose` gives None when no accepting worker can prefill or none can decode. Pure: the same
    views, the same route; ties go to the smaller worker id. Workers of role BOTH do both phases
    themselves; when the fleet has any PREFILL and DECODE workers a pair is made of those."""

    def choose(
        self, request: RequestView, workers: Sequence[WorkerView], now_ns: int
    ) -> Route | None: ...
