"""Inference-time scaling of one call: the plan of a gang of samples, the view by which it is
decided, and the decision.

A *gang* is all requests that work on one answer: they have one prompt and one budget of tokens.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto


class Method(StrEnum):
    """SELF_CONSISTENCY: the answer that most samples give (Wang et al. 2022). BEST_OF_N: the sample
    that a verifier scores best. RE_QUERY: the model is asked again with its own answer before it
    (Self-Refine, Madaan et al. 2023); its rounds are the samples, one after the other."""

    SELF_CONSISTENCY = "self-consistency"
    BEST_OF_N = "best-of-n"
    RE_QUERY = "re-query"


class StopReason(StrEnum):
    """Why a gang stopped. VOTE: no outstanding sample can change the winner, or two rounds agree.
    CONFIDENCE: the confidence asked for is reached. BUDGET: its tokens are spent. DEADLINE: its
    time is up. SAMPLES: all of them have ended."""

    VOTE = "vote"
    CONFIDENCE = "confidence"
    BUDGET = "budget"
    DEADLINE = "deadline"
    SAMPLES = "samples"


class SampleState(Enum):
    """LOST: it was refused, or could not be asked, and will never have an answer."""

    RUNNING = auto()
    FINISHED = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """What a call asked for; its bounds were checked where it was read.

    `samples` (of RE_QUERY: rounds) at most are started, `parallel` run at the same time, and once
    `budget_tokens` are spent all stop (None: no budget). Equal answers add up where the plan
    `votes`. Samples carry a score from 0 to 1 where it is `scored`. A `confidence` below 1 stops
    earlier than certainty would: that of the vote, or the score of one sample where nothing votes.
    """

    method: Method
    samples: int
    parallel: int
    votes: bool = True
    scored: bool = False
    budget_tokens: int | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a gang as a decision sees it. `answer` is what it votes for, None without a
    vote; `score` is 0 where nothing scored it."""

    state: SampleState
    answer: str | None = None
    score: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state is not SampleState.RUNNING


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """So many samples more are to `start` now. With a `winner`, the number of a sample, the gang
    has `stopped_by` a reason, and what still runs is cancelled."""

    start: int = 0
    winner: int | None = None
    stopped_by: StopReason | None = None
