"""A generating call that was read and checked, and the port of the writer that puts its answer into
the words of one API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from tandem.api.access_log import AnswerRecord
from tandem.api.app_context import SYSTEM_FINGERPRINT
from tandem.api.choice import ChoiceDelta, Presentation, UsageMeter
from tandem.api.clock_and_entropy import fresh_id, fresh_short_id
from tandem.api.degradation import Degradation
from tandem.api.errors import Refusal
from tandem.api.prompts import Tokens
from tandem.api.requests import GenerationBody
from tandem.api.response_cache import ResponseLookup, cache_headers
from tandem.api.responses import ScalingReport, Usage
from tandem.api.scaling_request import Scaling
from tandem.api.search_request import ONE_SEQUENCE, Search
from tandem.api.whole_response import AnswerFrame, Transcript
from tandem.facts.request import TokenSource
from tandem.facts.serving import Caller
from tandem.text.tool_calls import ToolFormat

StreamUsage = Usage | UnsetType | None
Scaled = ScalingReport | UnsetType


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to run: choice c is the request of `lookups[c]`, for prompt
    c // choices_per_prompt. With `scaling` there is one choice, and its request is that of the
    first sample. `headers` are those that its writer adds to an answer that does not stream."""

    body: GenerationBody
    answer_id: str
    created_s: int
    model: str
    prompts: Sequence[Tokens]
    choices_per_prompt: int
    lookups: Sequence[ResponseLookup]
    presentation: Presentation
    caller: Caller
    degradation: Degradation
    record: AnswerRecord | None = None
    scaling: Scaling | None = None
    search: Search = ONE_SEQUENCE
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def returns_token_ids(self) -> bool:
        return bool(self.body.return_token_ids)

    @property
    def head_fields(self) -> dict[str, Any]:
        """What each of its answers and events opens with."""
        return {
            "id": self.answer_id,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }

    def meter(self) -> UsageMeter:
        """Counts its tokens, also for the access log."""
        if self.record is not None:
            return self.record.meter
        prompt_tokens = [len(prompt) for prompt in self.prompts]
        return UsageMeter(prompt_tokens, self.choices_per_prompt, self.degradation)

    def late_headers(self) -> dict[str, str]:
        """What is known of it once its answer begins."""
        return self.degradation.headers() | cache_headers(self.lookups) | self.headers

    def fresh_call_id(self, prefix: str = "call_") -> str:
        """For a tool call of its answer."""
        # Mistral's templates refuse results of calls with any other kind of id.
        is_short = self.presentation.tool_format is ToolFormat.MISTRAL
        return fresh_short_id() if is_short else fresh_id(prefix)

    def prompt_number(self, choice: int) -> int:
        return choice // self.choices_per_prompt

    def token_ids(self, tokens: Tokens) -> list[int] | UnsetType:
        """The ids where the client wants them."""
        return list(tokens) if self.returns_token_ids else UNSET

    def token_sources(self, delta: ChoiceDelta) -> list[TokenSource] | UnsetType:
        """Of the delta's tokens, where the client wants them."""
        return list(delta.sources) if self.body.return_token_sources else UNSET

    def is_silent(self, delta: ChoiceDelta) -> bool:
        """Whether the delta holds nothing that a client would see."""
        return not (
            delta.text
            or delta.reasoning
            or delta.tool_calls
            or delta.shown
            or delta.prompt_scores
            or delta.finish_reason
            or (delta.tokens and self.returns_token_ids)
            or delta.sources
        )


class ResponseWriter(Protocol):
    """Puts deltas into the words of one API, as `ChatWriter` and `CompletionWriter` do."""

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
        """One stream event, or None when there is nothing to tell yet."""
        ...

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        """The last events of a stream: `includes_usage` where the client asked for the usage."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """The last event of a stream that breaks off."""
        ...

    @property
    def logprobs_lists(self) -> Sequence[str]:
        """The parallel lists that log-probabilities are, by name."""
        ...

    @property
    def shared_bytes(self) -> int:
        """What the pieces of several choices have in common, in memory once."""
        ...

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        """What the delta adds to each of `logprobs_lists`, as JSON without brackets."""
        ...

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        """Those of the delta, for the end of an answer that does not stream. Gives how many bytes
        they take."""
        ...

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        """A choice of an answer that does not stream, in pieces; none where all choices stand
        together in the frame."""
        ...

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> AnswerFrame:
        """What stands before the choices of that answer, and after them. Asked for once, when all
        of them are written."""
        ...
