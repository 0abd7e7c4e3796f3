"""Answers as long as a client may ask for, from a generator that costs next to nothing itself."""

import json
from collections.abc import Iterator

from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.attacks.heavy_bodies import CHAT, COMPLETE, TOKENIZE, USER, Body


class LongWinded(ScriptedGenerator):
    """Who asks for `min_tokens` gets `max_tokens`, with as many alternatives as wanted."""

    tokens_per_output = 1
    different_alternatives = 20

    def _outputs(self, request: Request, script: Script) -> Iterator[TokenOutput]:
        sampling = request.sampling
        if not sampling.min_tokens:
            yield from super()._outputs(request, script)
            return
        spoken = range(1000, 1000 + self.tokens_per_output)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.top_logprobs is not None:
            # The last tokens of the vocabulary are the longest.
            others = [2559 - i % self.different_alternatives for i in range(sampling.top_logprobs)]
            top = tuple((other, -12.345678901234567) for other in others)
            logprobs = (TokenLogprobs(-1.2345678901234567, 1, top),) * len(spoken)
        output = TokenOutput(tuple(spoken), logprobs)
        rounds = sampling.max_tokens // len(spoken)
        for _ in range(rounds - 1):
            yield output
        yield TokenOutput(output.tokens, logprobs, FinishReason.LENGTH)


def long_answers(context_tokens: int) -> dict[str, Body]:
    """Path and body by kind: each asks for about the heaviest answer of it that is allowed."""
    longest = context_tokens - 32
    ids = [2000 + i % 500 for i in range(context_tokens - 128)]
    alternatives: dict[str, object] = {"logprobs": True, "top_logprobs": 20}
    return {
        "20 alternatives": (CHAT, _chat(longest, **alternatives)),
        "20 alternatives, streamed": (CHAT, _chat(longest, stream=True, **alternatives)),
        "20 alternatives, n=64": (CHAT, _chat(60, n=64, return_token_ids=True, **alternatives)),
        "20 alternatives, completion": (COMPLETE, _completion("x", longest, logprobs=20)),
        "no alternatives, n=64": (CHAT, _chat(longest // 8, n=64, logprobs=True)),
        "text and ids, n=64": (CHAT, _chat(longest, n=64, return_token_ids=True)),
        "prompt repeated": (
            COMPLETE,
            _completion(ids, 16, n=64, return_token_ids=True, echo=True),
        ),
        "prompt repeated, streamed": (
            COMPLETE,
            _completion(ids, 16, n=64, return_token_ids=True, echo=True, stream=True),
        ),
        "usage all the time": (
            CHAT,
            _chat(128, n=64, stream=True, stream_options={"continuous_usage_stats": True}),
        ),
        # Kept while it grows, four of these are more than all answers together may hold.
        "as much as is kept": (
            CHAT,
            _chat(longest, n=9, **alternatives),
        ),
        "names of tokens": (
            TOKENIZE,
            json.dumps({"prompt": "q z " * 12_000, "return_token_strs": True}).encode(),
        ),
    }


def _chat(max_tokens: int, **fields: object) -> bytes:
    asked = {"messages": [USER], "max_tokens": max_tokens, "min_tokens": 1}
    return json.dumps(asked | fields).encode()


def _completion(prompt: object, max_tokens: int, **fields: object) -> bytes:
    asked = {"prompt": prompt, "max_tokens": max_tokens, "min_tokens": 1}
    return json.dumps(asked | fields).encode()
