"""Measures how long this worker takes to compute a prompt token, which fetching from tiers is
compared with."""

from collections import deque

from tandem.cluster.tiers.benefit_gate import NS_PER_S, BenefitGate
from tandem.facts.steps import StepPlan

# A step says something about prompts from so many tokens on, nearly all of them of prompts.
LEAST_TOKENS = 32
LEAST_PROMPT_SHARE = 0.75


class StepClock:
    """Steps land in the order in which they were launched; one that waited behind another began
    when that landed."""

    def __init__(self, benefit: BenefitGate) -> None:
        self._benefit = benefit
        self._flights: deque[tuple[int, int]] = deque()
        self._landed_ns = 0

    def launched(self, plan: StepPlan, now_ns: int) -> None:
        """A step was asked for."""
        batched_tokens = plan.batched_tokens
        prompt_tokens = batched_tokens - len(plan.slots)
        telling = (
            batched_tokens >= LEAST_TOKENS and prompt_tokens >= LEAST_PROMPT_SHARE * batched_tokens
        )
        self._flights.append((now_ns, batched_tokens if telling else 0))

    def landed(self, now_ns: int) -> None:
        """The step launched first of those under way is done."""
        launched_ns, tokens = self._flights.popleft()
        if tokens:
            seconds = (now_ns - max(launched_ns, self._landed_ns)) / NS_PER_S
            self._benefit.computed(tokens, seconds)
        self._landed_ns = now_ns
