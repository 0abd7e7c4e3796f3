"""Tokens of one request between the worker and whoever reads them.

A reader who falls behind gets several tokens at once; what waits is bounded by the request's
max_tokens.
"""

import asyncio

from tandem.facts.errors import TandemError
from tandem.facts.messages import EmitTokens
from tandem.facts.request import FinishReason, TokenLogprobs, TokenOutput


class Mailbox:
    """One reader, one writer, one event loop."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._reason: FinishReason | None = None
        self._stopped_by_token = False
        self._cached_tokens = 0
        self._error: TandemError | None = None

    @property
    def closed(self) -> bool:
        """Whether the worker has said its last word on this request."""
        return self._reason is not None or self._error is not None

    def put(self, effect: EmitTokens, index: int) -> None:
        """Entry `index` of the effect belongs to this request."""
        self._tokens.append(effect.tokens[index])
        if effect.logprobs and (logprobs := effect.logprobs[index]):
            self._logprobs.append(logprobs)
        self._reason = effect.finish_reasons[index]
        self._stopped_by_token = effect.stopped_by_token[index]
        self._cached_tokens = effect.cached_tokens[index]
        self._arrived.set()

    def fail(self, error: TandemError) -> None:
        """End the request, unless its last token is already here."""
        if self._reason is None:
            self._error = error
            self._arrived.set()

    async def take(self) -> TokenOutput:
        """All tokens since the last call, at least one. Raises what `fail` was given."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._error and not self._tokens:
            raise self._error
        if self._error:
            # What was drawn before the failure is handed out first.
            self._arrived.set()
        output = TokenOutput(
            tuple(self._tokens),
            tuple(self._logprobs),
            self._reason,
            self._stopped_by_token,
            self._cached_tokens,
        )
        self._tokens, self._logprobs = [], []
        return output


class Mailboxes:
    """The open mailboxes by request id."""

    def __init__(self) -> None:
        self._open: dict[str, Mailbox] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def open(self, request_id: str) -> Mailbox:
        assert request_id not in self._open
        mailbox = self._open[request_id] = Mailbox()
        return mailbox

    def close(self, request_id: str) -> bool:
        """Whether the last word on the request was said."""
        return self._open.pop(request_id).closed

    def deliver(self, effect: EmitTokens) -> None:
        """Each token to its reader; tokens of readers who left are dropped."""
        for index, request_id in enumerate(effect.request_ids):
            if mailbox := self._open.get(request_id):
                mailbox.put(effect, index)

    def fail(self, request_id: str, error: TandemError) -> None:
        if mailbox := self._open.get(request_id):
            mailbox.fail(error)

    def fail_all(self, error: TandemError) -> None:
        for mailbox in self._open.values():
            mailbox.fail(error)
