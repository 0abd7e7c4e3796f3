"""How are log-probabilities written down? In the chat form and in the older completions form."""

from collections.abc import Sequence

from tandem.api.answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from tandem.facts.request import TokenLogprobs
from tandem.text.spelling import Spelling

Shown = Sequence[tuple[int, TokenLogprobs]]

# JSON knows no infinity; this is what clients of other servers see in its place.
_LEAST_LOGPROB = -9999.0


def chat_logprobs(shown: Shown, spelling: Spelling) -> ChatLogprobs:
    """Each shown token with its bytes and alternatives."""
    content = []
    for token, chosen in shown:
        own = _top(token, chosen.logprob, spelling)
        content.append(
            TokenLogprob(
                token=own.token,
                logprob=own.logprob,
                bytes=own.bytes,
                top_logprobs=[_top(other, value, spelling) for other, value in chosen.top],
            )
        )
    return ChatLogprobs(content=content)


def completion_logprobs(shown: Shown, spelling: Spelling, offset_chars: int) -> CompletionLogprobs:
    """Parallel lists; `offset_chars` is where the first shown token begins in the text."""
    result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token, chosen in shown:
        text = token_text(token, spelling)
        result.tokens.append(text)
        result.token_logprobs.append(_finite(chosen.logprob))
        alternatives = {token_text(t, spelling): _finite(value) for t, value in chosen.top}
        # The chosen token is always listed, likely or not.
        result.top_logprobs.append(alternatives | {text: _finite(chosen.logprob)})
        result.text_offset.append(offset_chars)
        offset_chars += len(text)
    return result


def token_text(token: int, spelling: Spelling) -> str:
    """One token on its own; part of a character shows as U+FFFD."""
    return spelling.bytes_of(token).decode("utf-8", "replace")


def _top(token: int, logprob: float, spelling: Spelling) -> TopLogprob:
    return TopLogprob(
        token=token_text(token, spelling),
        logprob=_finite(logprob),
        bytes=list(spelling.bytes_of(token)),
    )


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
