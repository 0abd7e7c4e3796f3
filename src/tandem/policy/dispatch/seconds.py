"""Dispatch by predicted seconds: prefill where all requests together lose the least time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.facts.fleet import Role
from tandem.policy.dispatch.contract import Dispatch, Transfer
from tandem.policy.dispatch.rules import here, one_worker, there, worker_view
from tandem.policy.routing.contract import Route
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class SecondsDispatch:
    """Tandem's own policy, on the same predictions as its routing. Local when wait, prefill and
    decoding on the decode worker, with what its running decodes are slowed down, lose no more
    seconds than wait and prefill on the prefill worker, transfer, and decoding.

    A pull comes after the prefill; a push hides behind it all but the last chunk's share.
    """

    transfer: Transfer = Transfer.PUSH
    predictor: Predictor = field(default_factory=Predictor, repr=False, compare=False)

    def decide(
        self,
        request: RequestView,
        route: Route,
        workers: Sequence[WorkerView],
        now_ns: int,  # noqa: ARG002
    ) -> Dispatch:
        if route.local:
            return one_worker(route, self.transfer)
        prefill, decode = worker_view(workers, route.prefill), worker_view(workers, route.decode)
        local_s = self.predictor.prefill_quotes(request, [decode], Role.BOTH)[0].lost_s
        remote_s = self.remote_seconds(request, prefill, decode)
        reason = (
            f"prefill at {route.decode} loses {local_s:.3g} s in all, "
            f"at {route.prefill} with the transfer {remote_s:.3g} s"
        )
        place = here if local_s <= remote_s else there
        return place(route, self.transfer, reason)

    def remote_seconds(
        self, request: RequestView, prefill: WorkerView, decode: WorkerView
    ) -> float:
        """What everybody loses by prefill on one worker and decode on the other."""
        first = self.predictor.prefill_quotes(request, [prefill], Role.PREFILL)[0]
        second = self.predictor.decode_quotes(request, [decode], prefill.cost.network)[0]
        lost_s = first.lost_s + second.lost_s
        if self.transfer is Transfer.PUSH:
            lost_s -= _hidden_seconds(request, prefill, decode)
        return lost_s


def _hidden_seconds(request: RequestView, prefill: WorkerView, decode: WorkerView) -> float:
    """The part of the transfer that runs while the prompt is still computed."""
    uncached = request.uncached_tokens(prefill.worker)
    earlier_tokens = max(0, uncached - prefill.cost.chunk_tokens)
    earlier_tokens = min(earlier_tokens, request.uncached_tokens(decode.worker))
    transfer_s = max(view.cost.transfer_seconds(earlier_tokens) for view in (prefill, decode))
    known = request.prompt_tokens - uncached
    return min(transfer_s, prefill.cost.prefill_seconds(earlier_tokens, known))
