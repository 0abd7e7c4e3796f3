"""Writes answers as responses of the Responses API, whole and streamed."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import UNSET, Raw
from msgspec.json import encode
from msgspec.structs import replace

from tandem.api.call import Call, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta
from tandem.api.clock_and_entropy import unix_time_s
from tandem.api.errors import Refusal
from tandem.api.logprobs import CHAT_LISTS, TokenJson, chat_items
from tandem.api.response_items import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseError,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
    item_id,
)
from tandem.api.response_stream import OutputStream
from tandem.api.responses import Finish, Usage
from tandem.api.whole_response import AnswerFrame, Transcript, split_at_field

_STATUSES: dict[Finish | None, ResponseStatus] = {
    None: "failed",
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "abort": "failed",
}


class ResponsesWriter:
    """Writes one call. `draft` is its response before there is any output; `keep` gets the whole
    response as JSON. Log-probabilities are there where `token_json` is."""

    def __init__(
        self,
        call: Call,
        draft: ResponseObject,
        keep: Callable[[Sequence[bytes]], None],
        token_json: TokenJson | None,
    ) -> None:
        self._call = call
        self._draft = draft
        self._keep = keep
        self._token_json = token_json
        self._stream = OutputStream(call.answer_id, call.fresh_call_id)
        self._begun = False
        self._finish: Finish | None = None
        self._transcript: Transcript | None = None

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
        events = b""
        if not self._begun:
            self._begun = True
            for kind in ("response.created", "response.in_progress"):
                events += self._stream.event(kind, response=self._draft)
        events += self._stream.add_delta(delta, self.logprobs_items(delta))
        if delta.finish_reason is not None:
            self._finish = delta.finish_reason
            events += self._stream.close(_item_status(delta.finish_reason))
        return events or None

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        """With the usage, whether or not the client asks for it."""
        last = replace(self._ended(self._finish, usage), output=self._stream.items)
        encoded = encode(last)
        self._keep([encoded])
        return self._stream.event(f"response.{last.status}", response=Raw(encoded))

    def error_event(self, refusal: Refusal) -> bytes:
        detail = refusal.detail()
        return self._stream.event(
            "error", code=detail.code, message=detail.message, param=detail.param
        )

    @property
    def logprobs_lists(self) -> Sequence[str]:
        return CHAT_LISTS

    @property
    def shared_bytes(self) -> int:
        return 0

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        # Those of the text: reasoning and calls have none.
        elsewhere = not delta.text and (delta.reasoning or delta.tool_calls)
        if self._token_json is None or not delta.shown or elsewhere:
            return ()
        return chat_items(delta.shown, self._token_json)

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        """Nobody asks for them here."""
        return 0

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        """None yet: how the response has ended stands before its output."""
        self._transcript = transcript
        return []

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> AnswerFrame:
        """The whole response; nothing stands behind its one choice."""
        transcript = self._transcript
        assert transcript is not None
        head, tail = split_at_field(
            encode(self._ended(transcript.finish_reason, usage)), b"output", b"[]"
        )
        pieces = [head, b"["]
        for place, item in enumerate(self._items(transcript)):
            pieces += [b",", *item] if place else item
        pieces += [b"]", tail]
        self._keep(pieces)
        return pieces, []

    def _ended(self, finish: Finish | None, usage: Usage) -> ResponseObject:
        """The response without its output."""
        status = _STATUSES[finish]
        last = replace(self._draft, status=status, usage=_response_usage(usage))
        if status == "completed":
            last.completed_at = unix_time_s()
        elif status == "incomplete":
            last.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            problem = "the server gave the response up"
            last.error = ResponseError(code="server_error", message=problem)
        return last

    def _items(self, transcript: Transcript) -> list[list[bytes]]:
        """The output, item by item, as JSON in pieces."""
        kinds = ["reasoning"] if transcript.reasoning.pieces() else []
        calls = transcript.tool_calls.calls()
        kinds += ["function_call"] * len(calls)
        if transcript.text.pieces() or not kinds:
            kinds.insert(len(kinds) - len(calls) + transcript.calls_before_text, "message")
        waiting = iter(calls)
        items = []
        for place, kind in enumerate(kinds):
            is_last = place == len(kinds) - 1
            status = _item_status(transcript.finish_reason) if is_last else "completed"
            named: Any = {"id": item_id(kind, self._call.answer_id, "o", place), "status": status}
            if kind == "reasoning":
                reasoning = OutputReasoning(**named, content=[ReasoningText()])
                items.append(_filled(encode(reasoning), transcript.reasoning.pieces()))
            elif kind == "message":
                items.append(self._message_pieces(named, transcript))
            else:
                call = next(waiting)
                named |= {"name": call.name, "arguments": call.arguments}
                call_id = self._call.fresh_call_id()
                items.append([encode(OutputCall(**named, call_id=call_id))])
        return items

    def _message_pieces(self, named: Any, transcript: Transcript) -> list[bytes]:
        message = encode(OutputMessage(**named, content=[OutputText()]))
        *text, rest = _filled(message, transcript.text.pieces())
        if self._token_json is None:
            return [*text, rest]
        before, after = split_at_field(rest, b"logprobs", b"[]")
        (entries,) = transcript.logprobs.values()
        return [*text, before, *entries.pieces(), after]


def _filled(item: bytes, text: Sequence[bytes]) -> list[bytes]:
    """An item with an empty text, and this one in its place."""
    before, after = split_at_field(item, b"text", b'""')
    return [before, b'"', *text, b'"', after]


def _item_status(finish: Finish | None) -> ItemStatus:
    return "completed" if _STATUSES[finish] == "completed" else "incomplete"


def _response_usage(usage: Usage) -> ResponseUsage:
    details = usage.completion_tokens_details
    reasoning_tokens = 0 if details is UNSET else cast(Any, details).reasoning_tokens
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=usage.prompt_tokens_details.cached_tokens
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.total_tokens,
        degraded=usage.degraded,
        cascade=usage.cascade,
    )
