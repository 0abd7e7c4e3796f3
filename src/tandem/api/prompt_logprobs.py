"""Log-probabilities of the tokens of prompts: which of them a call wants, and as JSON, in vLLM's
form (`prompt_logprobs`) and as the beginning of the lists of a completion that echoes its prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tandem.api.logprobs import COMPLETION_LISTS, completion_items, finite, token_name, token_text
from tandem.api.requests import CompletionBody, GenerationBody
from tandem.api.responses import PromptToken
from tandem.api.whole_response import JsonList
from tandem.facts.errors import InvalidRequest
from tandem.facts.request import TokenLogprobs
from tandem.text.detokenize import TokenBytes

_encoder = msgspec.json.Encoder()
# Of an entry in a list of JSON: an object until it is joined with others.
_ENTRY_BYTES = 40


@dataclass(frozen=True, slots=True)
class WantedScores:
    """How many alternatives to each prompt token are shown in `prompt_logprobs`, and how many in
    the lists of an answer that echoes its prompt; None where that is not wanted."""

    field: int | None = None
    echoed: int | None = None

    @property
    def alternatives(self) -> int | None:
        """As of `SamplingParameters.prompt_logprobs`."""
        return max((each for each in (self.field, self.echoed) if each is not None), default=None)


NO_SCORES = WantedScores()


def wanted_scores(body: GenerationBody) -> WantedScores:
    """What the call asks for. Raises `InvalidRequest` naming the field."""
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    wanted = WantedScores(body.prompt_logprobs, echoed)
    if wanted.alternatives is None:
        return wanted
    name = "echo with logprobs" if wanted.field is None else "prompt_logprobs"
    for field in ("stream", "scaling", "use_beam_search"):
        if getattr(body, field):
            raise InvalidRequest(field, f"cannot be combined with {name}")
    return wanted


class PromptTranscript:
    """Those of one prompt, kept as JSON; its first token has none. Tokens are named `by_id` or by
    their texts."""

    def __init__(
        self, prompt: Sequence[int], wanted: WantedScores, token_bytes: TokenBytes, *, by_id: bool
    ) -> None:
        self._prompt, self._wanted = prompt, wanted
        self._token_bytes, self._by_id = token_bytes, by_id
        self._scored_tokens = 1
        self._field = JsonList()
        self._field.append(b"null")
        self._lists = {name: JsonList() for name in COMPLETION_LISTS}
        name = token_name(prompt[0], token_bytes, by_id=by_id)
        for entries, value in zip(self._lists.values(), (name, None, None, 0), strict=True):
            entries.append(_encoder.encode(value))
        self._offset_chars = len(token_text(prompt[0], token_bytes))

    def add(self, logprobs: Sequence[TokenLogprobs]) -> int:
        """The next ones. Gives how many bytes more are kept, about."""
        first = self._scored_tokens
        self._scored_tokens += len(logprobs)
        scored = list(zip(self._prompt[first : self._scored_tokens], logprobs, strict=True))
        added = 0
        if self._wanted.field is not None:
            for token, chosen in scored:
                items = _encoder.encode(self._entry(token, chosen, self._wanted.field))
                self._field.append(items)
                added += _ENTRY_BYTES + len(items)
        if self._wanted.echoed is not None:
            count = self._wanted.echoed
            shown = [
                (token, TokenLogprobs(chosen.logprob, chosen.rank, chosen.top[:count]))
                for token, chosen in scored
            ]
            lists = completion_items(
                shown, self._token_bytes, self._offset_chars, by_id=self._by_id
            )
            self._offset_chars += sum(
                len(token_text(token, self._token_bytes)) for token, _ in scored
            )
            for entries, items in zip(self._lists.values(), lists, strict=True):
                entries.append(items)
                added += _ENTRY_BYTES + len(items)
        return added

    def with_field(self, pieces: list[bytes]) -> list[bytes]:
        """The pieces of an object, with the field `prompt_logprobs` at its end where it is
        wanted."""
        if self._wanted.field is None:
            return pieces
        opening = pieces[-1][:-1] + b',"prompt_logprobs":'
        return [*pieces[:-1], opening, *self._field.pieces(), b"}"]

    def before(self, lists: Mapping[str, JsonList]) -> Mapping[str, JsonList]:
        """The lists of a completion, which begin with those of the prompt where it is echoed."""
        if self._wanted.echoed is None:
            return lists
        return {name: self._lists[name].followed_by(lists[name]) for name in lists}

    def _entry(self, token: int, chosen: TokenLogprobs, count: int) -> dict[str, PromptToken]:
        """The token itself, then the likeliest ones."""
        ranked = [(token, chosen.logprob, chosen.rank)]
        ranked += [
            (other, logprob, rank)
            for rank, (other, logprob) in enumerate(chosen.top[:count], 1)
            if other != token
        ]
        return {
            str(each): PromptToken(
                logprob=finite(logprob),
                rank=rank,
                decoded_token=token_text(each, self._token_bytes),
            )
            for each, logprob, rank in ranked
        }
