"""Scaling request: from the field `scaling` of a body to a plan, with every check that needs no
sample to be drawn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tandem.api.app_context import AppContext
from tandem.api.prompts import Tokens
from tandem.api.request_extensions import ScalingBody, VerifierBody
from tandem.api.requests import ChatBody, GenerationBody
from tandem.facts.client_fields import client_fields, client_values
from tandem.facts.errors import InvalidRequest
from tandem.facts.sampling import TOP_LOGPROBS_LIMIT, SamplingParameters
from tandem.policy.scaling.answers import AnswerReader, answer_reader
from tandem.policy.scaling.contract import Method, ScalingPlan

DEFAULT_SAMPLES: Final = 8
DEFAULT_ROUNDS: Final = 3
DEFAULT_VOTE: Final = "last-number"
# Of samples where neither the client nor the checkpoint says anything but greedy; that of Wang et
# al. 2022.
SAMPLING_TEMPERATURE: Final = 0.7
JUDGE_PROMPT: Final = "Is this answer right? Reply with yes or no."
ASK_AGAIN: Final = "Check your answer for mistakes, and give the whole answer again."

# The prompt of a request that goes on from an answer: of the call's prompt, the answer's text, and
# what is asked about it. Pure work, as long as the prompt.
FollowUp = Callable[[Tokens, str, str], Tokens]


@dataclass(frozen=True, slots=True)
class Judge:
    """A verifier that asks the served model, and reads its first token as one of two words."""

    prompt: str
    yes: str
    no: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a call with `scaling` asks for.

    Scores come from the `judge`, or, without one, from a sample's own log-probabilities, which only
    a client that asked for them is shown (`shows_logprobs`). `ask` is what a further round is
    asked. `follow_up` makes the prompts of judge and rounds, from about `follow_up_bytes` of the
    call that are kept for it.
    """

    plan: ScalingPlan
    read_answer: AnswerReader
    judge: Judge | None
    shows_logprobs: bool
    ask: str
    follow_up: FollowUp | None
    follow_up_bytes: int

    @property
    def scores_by_logprob(self) -> bool:
        return self.plan.scored and self.judge is None


def asks_again(body: GenerationBody) -> bool:
    """Whether the call has follow-ups: prompts that go on from its answers."""
    asked = body.scaling
    if asked is None:
        return False
    judged = asked.verifier is not None and asked.verifier.type == "judge"
    return judged or Method(asked.method) is Method.RE_QUERY


def check_scaling(body: GenerationBody, prompts: int, context: AppContext) -> None:
    """Raises `InvalidRequest` for what cannot go with `scaling`, before anything is read."""
    asked = body.scaling
    if asked is None:
        return
    limit = context.config.max_scaling_samples
    if not limit:
        raise InvalidRequest("scaling", "is switched off on this server (max-scaling-samples)")
    if (body.n or 1) > 1:
        raise InvalidRequest("n", "must be 1 with scaling: its answer is one; use scaling.samples")
    if prompts > 1:
        raise InvalidRequest("prompt", "must be a single one with scaling")
    for name, count in (("samples", asked.samples), ("rounds", asked.rounds)):
        if (count or 1) > limit:
            raise InvalidRequest(f"scaling.{name}", f"must be at most {limit}, got {count}")
    if asks_again(body) and isinstance(body, ChatBody):
        for name in ("tools", "continue_final_message"):
            if getattr(body, name):
                problem = "cannot be combined with scaling that asks about an answer"
                raise InvalidRequest(name, f"{problem} (re-query, or a judge)")


def scaling_of(
    body: GenerationBody,
    context: AppContext,
    follow_up: FollowUp | None,
    *,
    body_bytes: int,
    shows_logprobs: bool,
) -> Scaling | None:
    """What the call asks for, if it does. Raises `InvalidRequest` naming the field."""
    asked = body.scaling
    if asked is None:
        return None
    method = Method(asked.method)
    _check_fields(asked, method)
    by_rounds = method is Method.RE_QUERY
    limit = context.config.max_scaling_samples
    wished = asked.rounds or DEFAULT_ROUNDS if by_rounds else asked.samples or DEFAULT_SAMPLES
    samples = min(wished, limit)
    verifier = asked.verifier
    if verifier is None and method is Method.BEST_OF_N:
        verifier = VerifierBody()
    plan = ScalingPlan(
        method,
        samples=samples,
        parallel=1 if by_rounds else min(asked.parallel or samples, samples),
        votes=method is not Method.BEST_OF_N or asked.vote is not None,
        scored=verifier is not None,
        budget_tokens=asked.budget_tokens,
        confidence=asked.confidence,
    )
    return Scaling(
        plan,
        read_answer=answer_reader(asked.vote or DEFAULT_VOTE),
        judge=_judge(verifier),
        shows_logprobs=shows_logprobs,
        ask=asked.prompt or ASK_AGAIN,
        follow_up=follow_up,
        follow_up_bytes=body_bytes if follow_up else 0,
    )


def scaled_sampling(
    sampling: SamplingParameters, body: GenerationBody, scaling: Scaling
) -> SamplingParameters:
    """How the samples of the call are drawn. Raises `InvalidRequest` where all would be the
    same."""
    if scaling.plan.method is not Method.RE_QUERY and not sampling.temperature:
        if "temperature" in client_values(body, client_fields(SamplingParameters)):
            problem = "must be above 0 with scaling: greedy samples are all the same"
            raise InvalidRequest("temperature", problem)
        sampling = replace(sampling, temperature=SAMPLING_TEMPERATURE)
    if scaling.scores_by_logprob and sampling.top_logprobs is None:
        sampling = replace(sampling, top_logprobs=0)
    return sampling


def verdict_sampling(sampling: SamplingParameters) -> SamplingParameters:
    """How the one token of a judge is drawn: its log-probabilities are what counts."""
    return SamplingParameters(
        temperature=0.0, seed=sampling.seed, max_tokens=1, top_logprobs=TOP_LOGPROBS_LIMIT
    )


def _check_fields(asked: ScalingBody, method: Method) -> None:
    by_rounds = method is Method.RE_QUERY
    of_samples = ("samples", "parallel", "confidence", "verifier")
    for name in of_samples if by_rounds else ("rounds", "prompt"):
        if getattr(asked, name) is not None:
            known = " and ".join(each for each in Method if (each is Method.RE_QUERY) != by_rounds)
            raise InvalidRequest(f"scaling.{name}", f"belongs to {known}, not to {method}")
    if asked.confidence is not None:
        if not 0.5 < asked.confidence < 1.0:
            raise InvalidRequest("scaling.confidence", "must be above 0.5 and below 1")
        if method is Method.BEST_OF_N and asked.vote is not None:
            problem = "cannot be combined with vote in best-of-n: scores add up without a bound"
            raise InvalidRequest("scaling.confidence", problem)


def _judge(verifier: VerifierBody | None) -> Judge | None:
    if verifier is None:
        return None
    if verifier.type == "logprob":
        for name in ("prompt", "yes", "no"):
            if getattr(verifier, name) is not None:
                problem = "belongs to a judge; set scaling.verifier.type to 'judge'"
                raise InvalidRequest(f"scaling.verifier.{name}", problem)
        return None
    judge = Judge(
        verifier.prompt or JUDGE_PROMPT,
        (verifier.yes or "yes").strip().casefold(),
        (verifier.no or "no").strip().casefold(),
    )
    if not judge.yes or not judge.no or judge.yes == judge.no:
        raise InvalidRequest("scaling.verifier.yes", "and no must be two different words")
    return judge
