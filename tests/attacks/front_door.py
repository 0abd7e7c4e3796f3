"""A generator whose answers are as long as a client may ask for and cost next to nothing, and the
front door over it in a process of its own: `python -m tests.attacks.front_door` prints its port and
serves."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.live.http_server import http_server_over, listen
from tandem.text.model import TextModel
from tests.api.scripted_generator import Script, ScriptedGenerator

CONTEXT_TOKENS = 4096


class LongWinded(ScriptedGenerator):
    """Who asks for `min_tokens` gets `max_tokens`, with as many alternatives as wanted.

    Many tokens an output are as when the workers are far ahead of the front door.
    """

    def __init__(
        self,
        text: TextModel,
        context_tokens: int = CONTEXT_TOKENS,
        *,
        tokens_per_output: int = 32,
        different_alternatives: int = 20,
    ) -> None:
        super().__init__(text)
        self._card = replace(self._card, context_tokens=context_tokens)
        self._tokens_per_output = tokens_per_output
        self._different_alternatives = different_alternatives

    def _outputs(self, request: Request, script: Script) -> Iterator[TokenOutput]:
        sampling = request.sampling
        if not sampling.min_tokens:
            yield from super()._outputs(request, script)
            return
        spoken = range(1000, 1000 + self._tokens_per_output)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.top_logprobs is not None:
            # The last tokens of the vocabulary are the longest.
            others = [2559 - i % self._different_alternatives for i in range(sampling.top_logprobs)]
            top = tuple((other, -12.345678901234567) for other in others)
            logprobs = (TokenLogprobs(-1.2345678901234567, 1, top),) * len(spoken)
        output = TokenOutput(tuple(spoken), logprobs)
        rounds = sampling.max_tokens // len(spoken)
        for _ in range(rounds - 1):
            yield output
        yield TokenOutput(output.tokens, logprobs, FinishReason.LENGTH)


def main() -> None:
    text = TextModel.load(BUNDLED_MODEL)
    app = build_app(LongWinded(text, different_alternatives=2), text, ApiConfig())
    with listen("127.0.0.1", 0) as listener:
        server = http_server_over(app, ApiConfig().connections, "critical")
        print(listener.getsockname()[1], flush=True)
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
