"""How many tokens has a call used? Counts each prompt once, however many choices continue it."""

from collections.abc import Sequence

from tandem.api.answers import PromptTokensDetails, Usage
from tandem.api.choice import ChoiceDelta


class UsageMeter:
    """`prompt_tokens` has one count a prompt; choice c continues prompt c // choices_per_prompt."""

    def __init__(self, prompt_tokens: Sequence[int], choices_per_prompt: int) -> None:
        self._prompt_tokens = sum(prompt_tokens)
        self._completion_tokens = 0
        self._choices_per_prompt = choices_per_prompt
        self._cached_tokens: dict[int, int] = {}

    def count(self, delta: ChoiceDelta) -> None:
        self._completion_tokens += len(delta.tokens)
        known = self._cached_tokens.get(delta.choice, 0)
        self._cached_tokens[delta.choice] = max(known, delta.cached_tokens)

    def usage(self) -> Usage:
        # Later choices of a prompt find what the first one computed: the least is what was there.
        least: dict[int, int] = {}
        for choice, tokens in self._cached_tokens.items():
            prompt = choice // self._choices_per_prompt
            least[prompt] = min(least.get(prompt, tokens), tokens)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(least.values())),
        )
