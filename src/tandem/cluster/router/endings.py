"""The end of a request in the router: every one passes here, however it ended, and is counted where
predictions are held against what came."""

from enum import Enum

from tandem.cluster.router.admission import AdmissionFront
from tandem.cluster.router.predictions import Predictions
from tandem.cluster.router.request_state import RequestState


class Ending(Enum):
    """How a request ended that was let in. ANSWERED: its answer is whole, or has all that its
    client wanted. CUT_OFF: its deadline ended an answer that had begun. LATE: its deadline ended it
    before that. FAILED: it broke, or was refused after all. LEFT: its client went away."""

    ANSWERED = "answered"
    CUT_OFF = "cut off"
    LATE = "late"
    FAILED = "failed"
    LEFT = "left"


class Endings:
    """Counts them: in the tails of the breakers of `admission`, and in `predictions`. `answers` is
    how many requests got one, whole or cut off."""

    def __init__(self, admission: AdmissionFront, predictions: Predictions) -> None:
        self.answers = 0
        self._admission = admission
        self._predictions = predictions
        self._to_keep: list[RequestState] = []

    def ended(self, state: RequestState, ending: Ending, now_ns: int) -> None:
        """A request ends, which the router still knows, with all tokens that were drawn for it."""
        forecast, slo = state.forecast, state.view.slo
        match ending:
            case Ending.ANSWERED | Ending.CUT_OFF:
                self.answers += 1
                # Of an answer that is cut off, the token that was to come next has taken until now.
                tokens = len(state.output) + (ending is Ending.CUT_OFF)
                self._admission.later_tokens(state, tokens, now_ns)
                if forecast is not None:
                    self._predictions.answered(forecast, slo, tokens, now_ns)
            case Ending.LATE | Ending.FAILED:
                if ending is Ending.LATE:
                    self._admission.no_first_token(state, now_ns)
                if forecast is not None:
                    self._predictions.failed(forecast, slo, now_ns)
        if ending is not Ending.FAILED and state.output and state.decode:
            submission = state.submission
            if submission.pin_ns or submission.pause is not None:
                self._admission.hash_left(state)
                self._to_keep.append(state)

    def take_to_keep(self) -> list[RequestState]:
        """Since the last call, the answers of whose KV something is to be done: it is pinned, or
        its session pauses. Their chains are of what workers have."""
        taken, self._to_keep = self._to_keep, []
        return taken
