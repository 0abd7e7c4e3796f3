"""Typed errors: callers' mistakes and the system's refusals. Broken invariants are assertions."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum


class TandemError(Exception):
    """Root of the errors that a user may see; its text is one clear line."""


class InvalidRequest(TandemError):
    """A request field holds what it must not. `field` names it, `problem` says why."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


class NotFound(InvalidRequest):
    """What a field names is not there."""


class PromptTooLong(InvalidRequest):
    """Prompt (and at least one new token) do not fit into the context. Without `exact` the prompt
    has at least `prompt_tokens`: it was refused before they were all counted."""

    def __init__(self, prompt_tokens: int, context_tokens: int, *, exact: bool = True) -> None:
        at_least = "" if exact else "at least "
        super().__init__(
            "prompt",
            # Clients that know no codes know too long a prompt by "maximum context length".
            f"has {at_least}{prompt_tokens} tokens; this model's maximum context length is "
            f"{context_tokens} tokens, and at least one must stay free for the answer",
        )


class InvalidConfiguration(TandemError):
    """An option, a YAML value or a checkpoint cannot be used. Says which, and the remedy."""


class Rejection(StrEnum):
    """What a request was rejected by: one of its account's rate limits (called as in a cluster
    file), admission, a full queue, its deadline, or what it asks for."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent_requests"
    ADMISSION = "admission"
    QUEUE = "queue"
    DEADLINE = "deadline"
    INVALID = "invalid"

    @property
    def is_rate_limit(self) -> bool:
        return self in (Rejection.REQUESTS, Rejection.TOKENS, Rejection.CONCURRENT)


class Overloaded(TandemError):
    """The server cannot take this request now; `retry_after_s` is when it may."""

    def __init__(self, problem: str, retry_after_s: float, by: Rejection = Rejection.QUEUE) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s
        self.by = by


class LeftOut(Overloaded):
    """One of several answers to a prompt is not given, so that the others are: its class allows
    fewer answers under load."""


class NotReady(TandemError):
    """Nobody can run requests just now; soon there may be somebody again."""


class RequestFailed(TandemError):
    """This one request cannot be answered, and asking again will not help; others are served."""


class EngineFailed(TandemError):
    """The engine died under this request; the server is not ready any more."""


def nearest(word: str, known: Iterable[str], *, lists: bool = True) -> str:
    """What a misspelt word may have meant, as the end of a sentence. Where nothing is near, it
    `lists` all that is known, or is empty."""
    names = sorted(known)
    near = get_close_matches(word, names, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if lists else ""
