"""Log-probabilities as JSON, in the chat form and in the older completions form."""

from collections.abc import Sequence
from typing import cast

import msgspec

from tandem.api.responses import ChatLogprobs, CompletionLogprobs, TopLogprob
from tandem.facts.request import TokenLogprobs
from tandem.text.detokenize import TokenBytes

Shown = Sequence[tuple[int, TokenLogprobs]]

# Each form as parallel lists, for answers that are written while they grow.
CHAT_LISTS = ("content",)
COMPLETION_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

# About 10 MB.
_KEPT_TOKENS = 32 << 10

_encoder = msgspec.json.Encoder()

# JSON knows no infinity; this is what clients of other servers see in its place.
_LEAST_LOGPROB = -9999.0


def completion_logprobs(
    shown: Shown, token_bytes: TokenBytes, offset_chars: int, *, by_id: bool = False
) -> CompletionLogprobs:
    """Parallel lists; `offset_chars` is where the first shown token begins in the text. Tokens are
    named `by_id` or by their texts, of which several may have the same."""
    result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token, chosen in shown:
        name = token_name(token, token_bytes, by_id=by_id)
        result.tokens.append(name)
        result.token_logprobs.append(finite(chosen.logprob))
        alternatives: dict[str, float] = {}
        # The chosen token is always listed, likely or not. Parts of characters share a name, which
        # has the value of the likeliest, which comes first: clients compare with the largest.
        for other, value in (*chosen.top, (token, chosen.logprob)):
            alternatives.setdefault(token_name(other, token_bytes, by_id=by_id), finite(value))
        result.top_logprobs.append(alternatives)
        result.text_offset.append(offset_chars)
        offset_chars += len(token_text(token, token_bytes))
    return result


class TokenJson:
    """What a token's log-probability stands between in the chat form, as JSON; kept for tokens seen
    lately, because alternatives are many and mostly the same."""

    def __init__(self, token_bytes: TokenBytes, *, by_id: bool = False) -> None:
        self._token_bytes = token_bytes
        self._by_id = by_id
        self._kept: dict[int, tuple[bytes, bytes]] = {}

    def around(self, token: int) -> tuple[bytes, bytes]:
        """What stands before the number and after it."""
        if token in self._kept:
            return self._kept[token]
        if len(self._kept) >= _KEPT_TOKENS:
            self._kept.clear()
        entry = TopLogprob(
            token=token_name(token, self._token_bytes, by_id=self._by_id),
            logprob=0.0,
            bytes=list(self._token_bytes.bytes_of(token)),
        )
        before, _, after = _encoder.encode(entry).rpartition(b":0.0,")
        self._kept[token] = (before + b":", b"," + after)
        return self._kept[token]


def chat_items(shown: Shown, tokens: TokenJson) -> list[bytes]:
    """What `shown` adds to each of `CHAT_LISTS`, without brackets: the JSON of a `TokenLogprob` for
    each token, in a fraction of the time that its encoding takes."""
    entries = []
    for token, chosen in shown:
        values = [chosen.logprob, *[value for _, value in chosen.top]]
        finite = [value if not value < _LEAST_LOGPROB else _LEAST_LOGPROB for value in values]
        own, *others = _items(finite).split(b",")
        top = []
        for (other, _), value in zip(chosen.top, others, strict=True):
            before, after = tokens.around(other)
            top.append(before + value + after)
        before, after = tokens.around(token)
        opening = before + own + after[:-1] + b',"top_logprobs":['
        entries.append(opening + b",".join(top) + b"]}")
    return [b",".join(entries)]


def chat_logprobs(shown: Shown, tokens: TokenJson) -> ChatLogprobs:
    """Each shown token with its bytes and alternatives, as JSON that an encoder takes as it is."""
    (content,) = chat_items(shown, tokens)
    return cast(ChatLogprobs, msgspec.Raw(b'{"content":[%b]}' % content))


def completion_items(added: CompletionLogprobs) -> list[bytes]:
    """What these add to each of `COMPLETION_LISTS`, without brackets."""
    return [_items(getattr(added, name)) for name in COMPLETION_LISTS]


def token_text(token: int, token_bytes: TokenBytes) -> str:
    """One token on its own; part of a character shows as U+FFFD."""
    return token_bytes.bytes_of(token).decode("utf-8", "replace")


def token_name(token: int, token_bytes: TokenBytes, *, by_id: bool) -> str:
    """As log-probabilities name it: by its text or, as vLLM has it, by its id."""
    return f"token_id:{token}" if by_id else token_text(token, token_bytes)


def _items(values: Sequence[object]) -> bytes:
    return _encoder.encode(values)[1:-1]


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return max(logprob, _LEAST_LOGPROB)
