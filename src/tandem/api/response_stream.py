"""A streamed answer in the words of the Responses API: its output items while they come, and the
events that tell of them (`OutputStream`).

At most three things are under way: reasoning, which ends where the rest begins; one message, which
stays open to the end, because text may come behind calls; and the last call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Literal, cast

from msgspec import Raw
from msgspec.json import Encoder

from tandem.api.choice import ChoiceDelta
from tandem.api.response_items import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ResponseEvent,
    item_id,
)
from tandem.api.responses import TokenLogprob
from tandem.text.tool_calls import CallPart, ToolCall

_TextKind = Literal["message", "reasoning"]
_TEXT_EVENTS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
# So much of log-probabilities waits for its text.
_WAITING_BYTES = 64 << 10
_NO_LOGPROBS = cast(list[TokenLogprob], Raw(b"[]"))
_encode = Encoder().encode
_ARGUMENTS_EVENT = "response.function_call_arguments"


@dataclass(slots=True)
class _OpenText:
    """Text or reasoning; the item is `kind`."""

    kind: _TextKind
    item_id: str
    place: int
    written: StringIO = field(default_factory=StringIO)

    @property
    def content_fields(self) -> dict[str, Any]:
        """Where its one part stands."""
        return {"item_id": self.item_id, "output_index": self.place, "content_index": 0}

    def part(self) -> OutputText | ReasoningText:
        text = self.written.getvalue()
        return OutputText(text=text) if self.kind == "message" else ReasoningText(text=text)

    def item(self, status: ItemStatus) -> OutputItem:
        if status == "in_progress":
            content: list[Any] = []
        else:
            content = [self.part()]
        of_kind = OutputMessage if self.kind == "message" else OutputReasoning
        return of_kind(id=self.item_id, status=status, content=content)


@dataclass(slots=True)
class _OpenCall:
    item_id: str
    place: int
    call_id: str
    name: str
    written: StringIO = field(default_factory=StringIO)

    @property
    def fields(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self.place}

    def item(self, status: ItemStatus) -> OutputItem:
        arguments = "" if status == "in_progress" else self.written.getvalue()
        return OutputCall(
            id=self.item_id,
            status=status,
            call_id=self.call_id,
            name=self.name,
            arguments=arguments,
        )


class OutputStream:
    """The output of the response `response_id`; `fresh_call_id` names its calls."""

    def __init__(self, response_id: str, fresh_call_id: Callable[[], str]) -> None:
        self._response_id = response_id
        self._fresh_call_id = fresh_call_id
        self._sequence = 0
        self._opened = 0
        self._reasoning: _OpenText | None = None
        self._message: _OpenText | None = None
        self._call: _OpenCall | None = None
        self._closed: dict[int, OutputItem] = {}
        # Log-probabilities whose text is held back.
        self._logprobs: list[bytes] = []
        self._logprobs_bytes = 0

    @property
    def items(self) -> list[OutputItem]:
        """Those that are complete, in their order."""
        return [self._closed[place] for place in sorted(self._closed)]

    def event(self, kind: str, **fields: Any) -> bytes:
        """The next event."""
        told = ResponseEvent(type=kind, sequence_number=self._sequence, **fields)
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(told))

    def add_delta(self, delta: ChoiceDelta, logprobs: Sequence[bytes]) -> bytes:
        """The events that tell of it. `logprobs` are those of its tokens, as JSON."""
        self._keep_logprobs(logprobs)
        events = b""
        if delta.reasoning:
            events += self._add_reasoning(delta.reasoning)
        if (delta.text or delta.tool_calls) and self._reasoning is not None:
            events += self._close_text(self._reasoning, "completed")
            self._reasoning = None
        before = 0
        if delta.text:
            before = self._parts_before_text(delta)
            events += self._add_calls(delta.tool_calls[:before])
            events += self._add_text(delta.text)
        events += self._add_calls(delta.tool_calls[before:])
        if self._logprobs_bytes > _WAITING_BYTES:
            events += self._let_logprobs_go()
        return events

    def close(self, status: ItemStatus) -> bytes:
        """The last events of all items that are open; the last item ends with `status`. There is
        one item at least."""
        events = b"" if self._opened else self._open_message()
        events += self._let_logprobs_go()
        still_open = [self._reasoning, self._message, self._call]
        for each in sorted((o for o in still_open if o is not None), key=lambda o: o.place):
            of_item: ItemStatus = status if each.place == self._opened - 1 else "completed"
            is_call = isinstance(each, _OpenCall)
            close = self._close_call if is_call else self._close_text
            events += close(cast(Any, each), of_item)
        self._reasoning = self._message = self._call = None
        return events

    def _keep_logprobs(self, logprobs: Sequence[bytes]) -> None:
        for each in filter(None, logprobs):
            self._logprobs.append(each)
            self._logprobs_bytes += len(each)

    def _taken_logprobs(self) -> list[TokenLogprob]:
        """As JSON that an encoder takes as it is."""
        taken = Raw(b"[" + b",".join(self._logprobs) + b"]")
        self._logprobs, self._logprobs_bytes = [], 0
        return cast(list[TokenLogprob], taken)

    def _let_logprobs_go(self) -> bytes:
        """Their text is still held back, or there is none: what is held for long is a call."""
        if self._message is not None and self._logprobs:
            return self._text_delta(self._message, "")
        self._logprobs, self._logprobs_bytes = [], 0
        return b""

    def _parts_before_text(self, delta: ChoiceDelta) -> int:
        """How many parts of calls come before the text, so that the message has its place among
        the calls; none where it has that already."""
        if self._message is not None:
            return 0
        calls = 0
        for count, part in enumerate(delta.tool_calls):
            calls += isinstance(part, ToolCall)
            if calls > delta.calls_before_text:
                return count
        return len(delta.tool_calls)

    def _add_reasoning(self, text: str) -> bytes:
        events = b""
        if self._reasoning is None:
            self._reasoning = _OpenText("reasoning", *self._next_item("reasoning"))
            events = self._open_text(self._reasoning)
        return events + self._text_delta(self._reasoning, text)

    def _add_text(self, text: str) -> bytes:
        events = b"" if self._message is not None else self._open_message()
        assert self._message is not None
        return events + self._text_delta(self._message, text)

    def _add_calls(self, parts: Sequence[CallPart]) -> bytes:
        events = b""
        for part in parts:
            more = part.arguments if isinstance(part, ToolCall) else part.text
            if isinstance(part, ToolCall):
                events += self._open_call(part.name)
            assert self._call is not None
            if more:
                self._call.written.write(more)
                fields = self._call.fields
                events += self.event(f"{_ARGUMENTS_EVENT}.delta", **fields, delta=more)
        return events

    def _next_item(self, kind: str) -> tuple[str, int]:
        place = self._opened
        self._opened += 1
        return item_id(kind, self._response_id, "o", place), place

    def _open_message(self) -> bytes:
        self._message = _OpenText("message", *self._next_item("message"))
        return self._open_text(self._message)

    def _open_text(self, opened: _OpenText) -> bytes:
        added = self._item_event("added", opened, "in_progress")
        part = opened.part()
        return added + self.event("response.content_part.added", **opened.content_fields, part=part)

    def _open_call(self, name: str) -> bytes:
        events = b"" if self._call is None else self._close_call(self._call, "completed")
        named, place = self._next_item("function_call")
        self._call = _OpenCall(named, place, self._fresh_call_id(), name)
        return events + self._item_event("added", self._call, "in_progress")

    def _text_delta(self, opened: _OpenText, text: str) -> bytes:
        opened.written.write(text)
        fields = opened.content_fields
        if opened.kind == "message":
            fields["logprobs"] = self._taken_logprobs() if self._logprobs else _NO_LOGPROBS
        return self.event(f"{_TEXT_EVENTS[opened.kind]}.delta", **fields, delta=text)

    def _close_text(self, opened: _OpenText, status: ItemStatus) -> bytes:
        fields, part = opened.content_fields, opened.part()
        # Told with the deltas, and not kept: alternatives to all tokens may be hundreds of times
        # the text.
        no_logprobs: dict[str, Any] = {"logprobs": _NO_LOGPROBS} if opened.kind == "message" else {}
        events = self.event(
            f"{_TEXT_EVENTS[opened.kind]}.done", **fields, text=part.text, **no_logprobs
        )
        events += self.event("response.content_part.done", **fields, part=part)
        return events + self._item_event("done", opened, status)

    def _close_call(self, opened: _OpenCall, status: ItemStatus) -> bytes:
        arguments = opened.written.getvalue()
        done = self.event(
            f"{_ARGUMENTS_EVENT}.done", **opened.fields, name=opened.name, arguments=arguments
        )
        return done + self._item_event("done", opened, status)

    def _item_event(
        self, what: Literal["added", "done"], opened: _OpenText | _OpenCall, status: ItemStatus
    ) -> bytes:
        item = opened.item(status)
        if what == "done":
            self._closed[opened.place] = item
        return self.event(f"response.output_item.{what}", output_index=opened.place, item=item)
