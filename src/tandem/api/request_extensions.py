"""What the body of a generating call may say beyond the words of OpenAI and vLLM: several samples
for one answer (`scaling`), and what agents know of their sessions (`agent`, Dynamo's `nvext`).

Types alone: `scaling_request.py` and `agent_hints.py` say what they come to.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tandem.api.body_fields import Count, means

HintSeconds = Annotated[float, Meta(ge=0, le=1e6)]
# Of what `scaling` asks, and of a judge's words.
ASK_CHARS = 8192
WORD_CHARS = 32


class VerifierBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What scores the samples of a call with `scaling`."""

    type: Annotated[
        Literal["logprob", "judge"],
        means(
            "logprob: the mean probability of a sample's tokens; judge: the model is asked whether "
            "the sample is right, and the probability of its yes counts."
        ),
    ] = "logprob"
    prompt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=ASK_CHARS)] | None,
        means(
            "What the judge is asked after the sample; {question} and {answer} stand for the last "
            "message (or the prompt) and for the sample."
        ),
    ] = None
    yes: Annotated[
        Annotated[str, Meta(min_length=1, max_length=WORD_CHARS)] | None,
        means("The judge's word for right. Default: yes."),
    ] = None
    no: Annotated[
        Annotated[str, Meta(min_length=1, max_length=WORD_CHARS)] | None,
        means("The judge's word for wrong. Default: no."),
    ] = None


class ScalingBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Several samples or rounds for one answer."""

    method: Annotated[
        Literal["self-consistency", "best-of-n", "re-query"],
        means(
            "self-consistency: the answer that most samples give; best-of-n: the sample that a "
            "verifier scores best; re-query: the model sees its own answer and is asked again."
        ),
    ]
    samples: Annotated[Count | None, means("Samples at most. Default: 8; not of re-query.")] = None
    rounds: Annotated[
        Count | None, means("Rounds of re-query at most, the first included. Default: 3.")
    ] = None
    parallel: Annotated[
        Count | None, means("Samples that run at the same time. Default: all of them.")
    ] = None
    budget_tokens: Annotated[
        Count | None,
        means("Once the gang has generated so many tokens, it stops. Default: no limit."),
    ] = None
    vote: Annotated[
        str | None,
        means(
            "How a sample's answer is read: last-number (default), last-line, boxed, text, "
            "after:MARK or json:PATH. With best-of-n the scores of equal answers add up."
        ),
    ] = None
    confidence: Annotated[
        float | None,
        means(
            "Above 0.5, below 1: stops as soon as the vote is so probable to stand, or with "
            "best-of-n once a sample scores as much. Default: only once nothing can change it."
        ),
    ] = None
    verifier: Annotated[
        VerifierBody | None,
        means("What scores samples: of best-of-n by default logprob; else it breaks ties."),
    ] = None
    prompt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=ASK_CHARS)] | None,
        means("What re-query asks after an answer; {question} and {answer} as in the verifier."),
    ] = None


class AgentHints(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an agent knows of its session and of what comes after this answer."""

    session: Annotated[
        str | None, means("Calls of one session go on from each other. As X-Tandem-Session.")
    ] = None
    expected_output_tokens: Annotated[
        Count | None, means("How long the answer will probably be.")
    ] = None
    pause_s: Annotated[
        HintSeconds | None,
        means("After the answer a tool runs: expected seconds until the session's next call."),
    ] = None
    pin_s: Annotated[
        HintSeconds | None,
        means("Keep what the call leaves in the cache for so long. As X-Tandem-Pin."),
    ] = None


class DynamoAgentHints(Struct, kw_only=True, forbid_unknown_fields=True):
    """Dynamo's `nvext.agent_hints`, as far as they mean something here."""

    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31) + 1, le=2**31 - 1)] | None,
        means("Larger runs sooner: the opposite of `priority`, within the same bounds."),
    ] = None
    osl: Annotated[Count | None, means("As `agent.expected_output_tokens`.")] = None
    speculative_prefill: Annotated[
        bool | None, means("Accepted without effect: KV of prompt and answer is cached anyway.")
    ] = None


class DynamoExtensions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Dynamo's `nvext`."""

    agent_hints: Annotated[DynamoAgentHints | None, means("What an agent knows of the call.")] = (
        None
    )
