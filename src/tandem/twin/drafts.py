"""Drafts of simulated workers: how many are right, and how long it takes to make them, as somebody
measured or supposes. What comes of each is a keyed hash of seed, request and position: the same
scenario drafts the same, whoever runs the request and however often.

A wrong draft is never checked twice in its position, so each place has exactly the chance that it
is given, whatever was kept before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import StepPlan
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.policy.chance import draw

# What a draft says, instead of a token: those of simulated answers do not fit into a plan.
WRONG, RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """`kept[i]` is the chance that a draft in place i is what the model draws, given that all
    before it were; the last holds for every further place. So many of the rows that want drafts
    are `offered` some, and `token_s` is what each place of the longest proposal of a step takes.
    Raises `InvalidConfiguration`."""

    kept: tuple[float, ...] = (0.7,)
    offered: float = 1.0
    token_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.kept:
            raise InvalidConfiguration("kept: name at least one chance, as [0.7]")
        for name, shares in (("kept", self.kept), ("offered", (self.offered,))):
            if not all(0.0 <= share <= 1.0 for share in shares):
                raise InvalidConfiguration(f"{name} must be 0 to 1, got {shares}")
        if not 0.0 <= self.token_s < float("inf"):
            raise InvalidConfiguration(f"token_s must be 0 or more, got {self.token_s:g}")


NO_DRAFT_COST = DraftQuality()


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """As in `StepResult`: the tokens of a step, how many each drawing row has, and what is proposed
    to each; empty where it is one each and nothing."""

    tokens: tuple[int, ...]
    token_counts: tuple[int, ...]
    proposals: tuple[TokenTree, ...]


class SimulatedDrafts:
    """What a worker's engine drafts, and what it makes of the drafts that it is to check."""

    def __init__(self, quality: DraftQuality, seed: int) -> None:
        self._quality = quality
        self._seed = seed

    def seconds(self, plan: StepPlan) -> float:
        """Beyond the step itself, for what it proposes: the places one after the other, all rows
        at once."""
        return max(plan.proposals.tolist(), default=0) * self._quality.token_s

    def outcome(
        self, plan: StepPlan, request_ids: Sequence[str], tokens: Sequence[int]
    ) -> DraftOutcome:
        """Of a step whose drawing rows belong to these requests and draw these tokens, whatever
        their position."""
        rows = [row for row, draws in enumerate(plan.samples.tolist()) if draws]
        ends = (plan.starts + plan.counts).tolist()
        drafted, wanted = plan.draft_counts.tolist(), plan.proposals.tolist()
        drafts = iter(plan.draft_tokens.tolist())
        drawn: list[int] = []
        token_counts: list[int] = []
        proposals: list[TokenTree] = []
        for row, request_id, token in zip(rows, request_ids, tokens, strict=True):
            own = [next(drafts) for _ in range(drafted[row] if drafted else 0)]
            count = 1 + (own.index(WRONG) if WRONG in own else len(own))
            drawn += [token] * count
            token_counts.append(count)
            position = ends[row] - len(own) + count
            most = wanted[row] if wanted else 0
            proposals.append(self._proposal(request_id, position, most))
        return DraftOutcome(
            tuple(drawn),
            tuple(token_counts) if drafted else (),
            tuple(proposals) if any(proposals) else (),
        )

    def _proposal(self, request_id: str, position: int, wanted: int) -> TokenTree:
        """The drafts for a request from this position of its tokens on."""
        quality, seed = self._quality, self._seed
        if not wanted or draw(seed, "offered", request_id, position) >= quality.offered:
            return NO_GUESSES
        proposal = []
        for place in range(wanted):
            kept = quality.kept[min(place, len(quality.kept) - 1)]
            right = draw(seed, "draft", request_id, position + place) < kept
            proposal.append(RIGHT if right else WRONG)
        return TokenTree(tuple(proposal))
