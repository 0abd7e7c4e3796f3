"""A beam search over the port `Generator`: each step asks for one token more of each beam, with the
likeliest ones beside it, and `policy/beam_search.py` decides which beams go on.

Prefix caching makes a step cheap: what a request begins with, the step before has computed.
Schedulers and routers see ordinary requests.
"""

import asyncio
import math
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from tandem.api.clock_and_entropy import monotonic_s
from tandem.api.prompts import Tokens
from tandem.api.search_request import step_sampling
from tandem.api.whole_response import HeldResponse
from tandem.facts.errors import EngineFailed, InvalidRequest, Overloaded
from tandem.facts.rate_limits import CallSize
from tandem.facts.request import FinishReason, Request, TokenOutput, sooner
from tandem.facts.serving import Caller, Generator
from tandem.policy.beam_search import Beam, BeamPlan, BeamSearch, Likeliest

# What a kept token, and an alternative to it, takes, about.
_TOKEN_BYTES = 250
_ALTERNATIVE_BYTES = 130
# The deadline of a request for which no time is left.
_SHORTEST_S = 1e-3


class BeamSearcher:
    """The search of one prompt, that of `request`; its requests belong to no session. What is kept
    of it is counted in `held`."""

    def __init__(
        self,
        generator: Generator,
        plan: BeamPlan,
        request: Request,
        caller: Caller,
        held: HeldResponse,
    ) -> None:
        self._generator, self._plan, self._request, self._held = generator, plan, request, held
        deadline_s = sooner(request.deadline_s, caller.deadline_s)
        self._due_s = monotonic_s() + deadline_s if deadline_s else math.inf
        self._caller = replace(caller, deadline_s=0.0, session="", pause_s=None, pin_s=0.0)
        self._step_request = replace(request, sampling=step_sampling(plan))
        self._steps = 0
        self._cached_tokens = 0
        self._is_late = False

    async def run(self) -> list[TokenOutput]:
        """The best answers, best first, each in one output; those that a deadline cut as they are.
        Raises `TandemError` where a step cannot run."""
        search = BeamSearch(self._plan, len(self._request.prompt_tokens))
        alternatives_bytes = _ALTERNATIVE_BYTES * self._plan.alternatives
        while not (search.is_over or self._is_late):
            try:
                likeliest = await self._step(search.running)
            except Overloaded:
                # With a deadline, most likely because no token can come within it any more.
                if self._due_s == math.inf or self._steps == 1:
                    raise
                self._is_late = True
            if not self._is_late:
                search.advance(likeliest)
                self._held.grow(len(search.running) * (_TOKEN_BYTES + alternatives_bytes))
        return [self._output_of(beam) for beam in search.best()]

    async def _step(self, beams: Sequence[Beam]) -> list[Likeliest]:
        """What may follow each of the beams; nothing certain once it is late."""
        self._steps += 1
        size = None
        if len(beams) > 1:
            # They come in together or not at all, and have most of a prompt in common.
            prompt_tokens = len(self._request.prompt_tokens) + len(beams[0].tokens)
            stem = self._request.request_id
            size = CallSize(f"{stem}-{self._steps}", len(beams), prompt_tokens)
        caller = replace(self._caller, call=size)
        steps = [
            asyncio.ensure_future(self._likeliest(beam, number, caller))
            for number, beam in enumerate(beams)
        ]
        try:
            return await asyncio.gather(*steps)
        finally:
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    async def _likeliest(self, beam: Beam, number: int, caller: Caller) -> Likeliest:
        request = self._request_of(beam, number)
        found: Likeliest = ()
        async with aclosing(self._generator.generate(request, caller)) as outputs:
            async for output in outputs:
                if output.cascade is not None:
                    problem = "cannot be combined with a model cascade, whose models would mix"
                    raise InvalidRequest("use_beam_search", problem)
                if not beam.tokens:
                    self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
                if output.logprobs:
                    found = output.logprobs[0].top
                if output.finish_reason is not None:
                    break
        if output.finish_reason is FinishReason.DEADLINE:
            self._is_late = True
        elif not found:
            raise EngineFailed("the answer broke off")
        return found

    def _request_of(self, beam: Beam, number: int) -> Request:
        prompt = self._request.prompt_tokens
        known: Tokens
        if isinstance(prompt, array):
            known = prompt + array("I", beam.tokens)
        else:
            known = (*prompt, *beam.tokens)
        left_s = self._due_s - monotonic_s()
        return replace(
            self._step_request,
            request_id=f"{self._request.request_id}-{self._steps}-{number}",
            prompt_tokens=known,
            deadline_s=0.0 if left_s == math.inf else max(_SHORTEST_S, left_s),
        )

    def _output_of(self, beam: Beam) -> TokenOutput:
        cut = FinishReason.DEADLINE if self._is_late else FinishReason.LENGTH
        return TokenOutput(
            beam.tokens,
            beam.logprobs,
            FinishReason.STOP if beam.is_ended else cut,
            stopped_by_token=beam.is_ended,
            cached_tokens=self._cached_tokens,
        )
