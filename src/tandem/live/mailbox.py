"""A mailbox for the output of each request, between the worker and the client that reads it.

A reader who falls behind gets several tokens at once, though never so many that reading them takes
long. What waits for all readers together is bounded: beyond that, the one for whom most waits gets
no more.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from tandem.facts.errors import Overloaded, TandemError
from tandem.facts.request import FinishReason, TokenLogprobs, TokenOutput, TokenSource
from tandem.messages.worker import EmitTokens

# A token is one value, its log-probability and each alternative one more, of about 130 bytes.
MOST_WAITING_VALUES: Final = 1 << 20
MOST_TAKEN_VALUES: Final = 1 << 10


class Backlog:
    """What waits in all mailboxes together."""

    def __init__(self) -> None:
        self.values = 0


class Mailbox:
    """One reader, one writer, one event loop. `backlog` is shared with others. A reader who
    `wants_sources` gets those of its tokens."""

    def __init__(self, backlog: Backlog | None = None, *, wants_sources: bool = False) -> None:
        self.waiting_values = 0
        # Whether there was a token.
        self.begun = False
        self._backlog = backlog or Backlog()
        self._arrived = asyncio.Event()
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._sources: list[TokenSource] = []
        self._wants_sources = wants_sources
        self._reason: FinishReason | None = None
        self._stopped_by_token = False
        self._cached_tokens = 0
        self._degraded = ""
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self._error: TandemError | None = None
        self._given_up = False

    @property
    def closed(self) -> bool:
        """Whether the request has ended at the worker."""
        return self._reason is not None or (self._error is not None and not self._given_up)

    def add_output(self, effect: EmitTokens, index: int, worker: str = "") -> None:
        """Entry `index` of the effect, which this worker drew, belongs to this request."""
        if self._given_up:
            return
        values = 1
        self.begun = True
        self._tokens.append(effect.tokens[index])
        if effect.logprobs and (logprobs := effect.logprobs[index]):
            self._logprobs.append(logprobs)
            values += 1 + len(logprobs.top)
        if self._wants_sources:
            # Of the tokens of one step all but the last were guessed.
            ids = effect.request_ids
            drafted = index + 1 < len(ids) and ids[index + 1] == ids[index]
            self._sources.append(TokenSource(worker, drafted))
            values += 1
        if effect.prompt_logprobs and (prompt := effect.prompt_logprobs[index]) is not None:
            self._prompt_logprobs = prompt
            values += _values_of(prompt)
        self._reason = effect.finish_reasons[index]
        self._stopped_by_token = effect.stopped_by_token[index]
        self._cached_tokens = effect.cached_tokens[index]
        self._count(values)
        self._arrived.set()

    def end(self, reason: FinishReason) -> None:
        """End the request without one more token, unless its last one is already here."""
        if self._reason is None and self._error is None:
            self._reason = reason
            self._arrived.set()

    def announce_degraded(self, degraded: str) -> None:
        """Something was cut of the request: every output says so."""
        self._degraded = degraded

    def fail(self, error: TandemError) -> None:
        """End the request, unless its last token is already here."""
        if self._reason is None:
            self._error = error
            self._arrived.set()

    def give_up(self, error: TandemError) -> None:
        """Throw away what waits here, and all that follows."""
        self._given_up = True
        self._error = error
        self._tokens, self._logprobs, self._prompt_logprobs = [], [], None
        self._sources = []
        self._count(-self.waiting_values)
        self._arrived.set()

    async def next_output(self) -> TokenOutput:
        """The tokens since the last call, at least one unless the request was ended without; the
        rest next time if they are very many.
        Raises what `fail` was given."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._error and not self._tokens:
            raise self._error
        if self.waiting_values > MOST_TAKEN_VALUES and len(self._tokens) > 1:
            return self._part()
        if self._error:
            # What was drawn before the failure is handed out first.
            self._arrived.set()
        output = TokenOutput(
            tuple(self._tokens),
            tuple(self._logprobs),
            self._reason,
            self._stopped_by_token,
            self._cached_tokens,
            self._degraded,
            prompt_logprobs=self._take_prompt_logprobs(),
            sources=tuple(self._sources),
        )
        self._tokens, self._logprobs, self._sources = [], [], []
        self._count(-self.waiting_values)
        return output

    def reader_left(self) -> None:
        """Nobody reads any more."""
        self._count(-self.waiting_values)

    def _part(self) -> TokenOutput:
        prompt = self._take_prompt_logprobs()
        self._count(-_values_of(prompt or ()))
        values_per_token = -(-self.waiting_values // len(self._tokens))
        # One stays, to carry the reason to end.
        count = min(len(self._tokens) - 1, max(1, MOST_TAKEN_VALUES // values_per_token))
        tokens, logprobs = tuple(self._tokens[:count]), tuple(self._logprobs[:count])
        sources = tuple(self._sources[:count])
        del self._tokens[:count]
        del self._logprobs[:count]
        del self._sources[:count]
        self._count(-count - _values_of(logprobs) - len(sources))
        self._arrived.set()
        return TokenOutput(
            tokens,
            logprobs,
            cached_tokens=self._cached_tokens,
            degraded=self._degraded,
            prompt_logprobs=prompt,
            sources=sources,
        )

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken

    def _count(self, values: int) -> None:
        self.waiting_values += values
        self._backlog.values += values


def _values_of(logprobs: Iterable[TokenLogprobs]) -> int:
    return sum(1 + len(each.top) for each in logprobs)


class Mailboxes:
    """The open mailboxes by request id."""

    def __init__(self, most_waiting_values: int = MOST_WAITING_VALUES) -> None:
        self._most_waiting_values = most_waiting_values
        self._backlog = Backlog()
        self._open: dict[str, Mailbox] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def has_begun(self, request_id: str) -> bool:
        """Whether there was a token for this reader, who has not left."""
        mailbox = self._open.get(request_id)
        return mailbox is not None and mailbox.begun

    @property
    def waiting_values(self) -> int:
        """Of all of them together."""
        return self._backlog.values

    def open(self, request_id: str, *, wants_sources: bool = False) -> Mailbox:
        assert request_id not in self._open
        mailbox = Mailbox(self._backlog, wants_sources=wants_sources)
        self._open[request_id] = mailbox
        return mailbox

    def close(self, request_id: str) -> bool:
        """Whether the request had ended before."""
        mailbox = self._open.pop(request_id)
        mailbox.reader_left()
        return mailbox.closed

    def deliver(self, effect: EmitTokens, worker: str = "") -> None:
        """Each token, which this worker drew, to its reader; tokens of readers who left are
        dropped."""
        for index, request_id in enumerate(effect.request_ids):
            if mailbox := self._open.get(request_id):
                mailbox.add_output(effect, index, worker)
        while self._backlog.values > self._most_waiting_values:
            slowest = max(self._open.values(), key=lambda each: each.waiting_values)
            problem = "the client reads too slowly, and what waits for it fills the server"
            slowest.give_up(Overloaded(problem, 1.0))

    def fail(self, request_id: str, error: TandemError) -> None:
        if mailbox := self._open.get(request_id):
            mailbox.fail(error)

    def end(self, request_id: str, reason: FinishReason) -> None:
        if mailbox := self._open.get(request_id):
            mailbox.end(reason)

    def announce_degraded(self, request_id: str, degraded: str) -> None:
        if mailbox := self._open.get(request_id):
            mailbox.announce_degraded(degraded)

    def fail_all(self, error: TandemError) -> None:
        for mailbox in self._open.values():
            mailbox.fail(error)
