"""Search request: which of several sequences a call answers with, from `best_of`,
`use_beam_search` and their kin, with every check that needs no token."""

from dataclasses import dataclass
from typing import Final

from tandem.api.requests import GenerationBody
from tandem.api.structured_output import wants_form
from tandem.facts.client_fields import client_fields, client_values
from tandem.facts.errors import InvalidRequest
from tandem.facts.sampling import TOP_LOGPROBS_LIMIT, SamplingParameters
from tandem.policy.beam_search import BeamPlan

# Each step looks at twice as many next tokens of a beam.
BEAM_WIDTH_LIMIT: Final = TOP_LOGPROBS_LIMIT // 2
LENGTH_PENALTY_LIMIT: Final = 10.0
# Of the tokens of all requests of a search together: each sends its prompt and the answer so far.
BEAM_SEARCH_TOKENS_LIMIT: Final = 1 << 27
# What a beam search decides by itself, or cannot heed.
NOT_WITH_BEAMS: Final = (
    "stream",
    "scaling",
    "stop",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
)


@dataclass(frozen=True, slots=True)
class Search:
    """For each prompt so many `sequences` are computed, of which the `shown` best make choices.
    `beams` is how wide a beam search is, which computes its sequences itself; 0: there is none.
    `shows_logprobs`: the client asked for them."""

    sequences: int
    shown: int
    beams: int = 0
    shows_logprobs: bool = False

    @property
    def ranks(self) -> bool:
        """Whether sequences are chosen by their log-probabilities."""
        return self.sequences > self.shown


ONE_SEQUENCE: Final = Search(1, 1)


def sequences_of(body: GenerationBody) -> int:
    """How many sequences are computed for each prompt."""
    return max(body.n or 1, body.best_of or 1)


def search_of(body: GenerationBody, *, shows_logprobs: bool) -> Search:
    """What the call asks for. Raises `InvalidRequest` naming the field."""
    shown = body.n or 1
    if body.best_of is not None and body.best_of < shown:
        raise InvalidRequest("best_of", "must be at least n")
    if body.use_beam_search:
        _check_beams(body)
        return Search(shown, shown, sequences_of(body), shows_logprobs)
    if body.length_penalty not in (None, 1.0):
        raise InvalidRequest("length_penalty", "needs use_beam_search to be true")
    if body.early_stopping is True:
        raise InvalidRequest("early_stopping", "needs use_beam_search to be true")
    search = Search(sequences_of(body), shown, shows_logprobs=shows_logprobs)
    if search.ranks:
        for name in ("stream", "scaling"):
            if getattr(body, name):
                raise InvalidRequest(name, "cannot be combined with best_of above n")
    return search


def check_beam_cost(prompt_tokens: int, max_tokens: int, width: int) -> None:
    """Raises `InvalidRequest` for a search that would send too much before it ends."""
    if width * max_tokens * (prompt_tokens + max_tokens) > BEAM_SEARCH_TOKENS_LIMIT:
        raise InvalidRequest(
            "max_tokens",
            f"is too large for use_beam_search: {width} beams of {max_tokens} tokens after a "
            f"prompt of {prompt_tokens}; name a smaller one, or ask for fewer beams",
        )


def beam_plan(body: GenerationBody, sampling: SamplingParameters, width: int) -> BeamPlan:
    """Of a prompt whose answers are drawn like this, as far as a beam search draws."""
    return BeamPlan(
        width,
        sampling.max_tokens,
        1.0 if body.length_penalty is None else body.length_penalty,
        frozenset(sampling.stop_token_ids),
        stops_early=body.early_stopping is True,
        alternatives=sampling.top_logprobs or 0,
    )


def step_sampling(plan: BeamPlan) -> SamplingParameters:
    """Of one step of one beam: its likeliest next tokens are what counts."""
    top_logprobs = max(plan.candidates, plan.alternatives)
    return SamplingParameters(temperature=0.0, max_tokens=1, top_logprobs=top_logprobs)


def _check_beams(body: GenerationBody) -> None:
    width, problem = sequences_of(body), "cannot be combined with use_beam_search"
    if width > BEAM_WIDTH_LIMIT:
        name = "n" if body.best_of is None else "best_of"
        raise InvalidRequest(name, f"must be at most {BEAM_WIDTH_LIMIT} with use_beam_search")
    if abs(body.length_penalty or 0.0) > LENGTH_PENALTY_LIMIT:
        limit = f"{LENGTH_PENALTY_LIMIT:g}"
        raise InvalidRequest("length_penalty", f"must be between -{limit} and {limit}")
    for name in NOT_WITH_BEAMS:
        if getattr(body, name):
            raise InvalidRequest(name, problem)
    if wants_form(body):
        raise InvalidRequest("response_format", f"{problem}, nor can its kin")
    declared = {each.name: each for each in client_fields(SamplingParameters)}
    plain = SamplingParameters()
    for name, value in client_values(body, tuple(declared.values())).items():
        is_greedy = name == "temperature" and value == 0
        is_off = name == "top_k" and value == -1
        if value != getattr(plain, name) and not is_greedy and not is_off:
            raise InvalidRequest(name, problem)
