"""Deadlines of the router's requests: at which instant each is too late, wherever it is by then."""

from tandem.cluster.router.request_state import RequestState
from tandem.policy.admission.contract import in_words
from tandem.policy.keyed_heap import KeyedHeap


class Deadlines:
    """By request id, the instants at which something must be done about those that have a deadline
    and have not ended."""

    def __init__(self) -> None:
        self._instants: KeyedHeap[int, str] = KeyedHeap()

    def next_wakeup(self) -> int | None:
        """The first of them."""
        first = self._instants.first_entry()
        return None if first is None else first[0]

    def watch(self, state: RequestState, least_s: float = 0.0) -> None:
        """From now on it is too late when its first token cannot come in time any more, which takes
        `least_s` even on idle workers; or, once that has come, when its answer is due."""
        instant_ns = state.due_ns
        if instant_ns is None:
            self.forget(state)
            return
        if state.first_token_ns < 0:
            instant_ns -= round(least_s * 1e9)
        self._instants.place(state.request_id, instant_ns)

    def forget(self, state: RequestState) -> None:
        self._instants.discard(state.request_id)

    def take_due(self, now_ns: int) -> list[str]:
        """Those for whom it is too late now, the first to be so first. They are watched no more."""
        taken: list[str] = []
        while (first := self._instants.first_entry()) and first[0] <= now_ns:
            taken.append(first[1])
            self._instants.discard(first[1])
        return taken


def too_late(state: RequestState, least_s: float, now_ns: int) -> str:
    """Why a request without a token is refused at this instant."""
    deadline_ns = state.submission.deadline_ns
    assert deadline_ns is not None
    bound_s = (deadline_ns - state.view.arrival_ns) / 1e9
    waited_s = (now_ns - state.view.arrival_ns) / 1e9
    where = f"at worker {state.prefill}" if state.prefill else "in the queue"
    reason = (
        f"its first token was due in {in_words(bound_s)}: it waited {in_words(waited_s)} {where}"
    )
    if least_s and not state.prefill:
        reason += f", and takes {in_words(least_s)} even on idle workers"
    return reason
