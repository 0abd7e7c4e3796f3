"""Writes deltas and answers in the words of Anthropic's Messages API: blocks of text, reasoning and
tool use, and the events that open, grow and close them.

A stream has the blocks as they come, and text may follow a call. A whole answer has all of its text
in one block, and the calls behind it.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from tandem.api.call import Call, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refusal
from tandem.api.messages_responses import (
    AnswerBlock,
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from tandem.api.responses import CompletionTokensDetails, Finish, Usage
from tandem.api.streaming import named_event
from tandem.api.whole_response import AnswerFrame, Transcript, filled_choice, split_at_field
from tandem.text.tool_calls import CallPart, ToolCall, sent_object

_STOP_REASONS: dict[Finish | None, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    # To clients' libraries it is an answer cut short like any other.
    "abort": "max_tokens",
}
_CALL_ID = "toolu_"
# What a choice fills in an answer, as JSON without one.
_NO_CHOICE = b'[],"stop_reason":null,"stop_sequence":null'
_encode = msgspec.json.Encoder().encode


class MessagesWriter:
    """One answer. Without `shows_thinking` its reasoning is a block without words."""

    def __init__(self, call: Call, *, shows_thinking: bool) -> None:
        self._call = call
        self._shows_thinking = shows_thinking
        self._begun = False
        # Of the block that was begun last, and what it is while it is open.
        self._index = -1
        self._open: type[AnswerBlock] | None = None
        self._end: MessageEnd | None = None

    def delta_event(
        self,
        delta: ChoiceDelta,
        usage: StreamUsage,
        scaling: Scaled = UNSET,
    ) -> bytes | None:
        events: list[bytes] = []
        if not self._begun:
            self._begun = True
            events.append(named_event(MessageStart(message=self._beginning(delta))))
        if delta.reasoning:
            thinking = ThinkingDelta(thinking=delta.reasoning) if self._shows_thinking else None
            events += self._grow(ThinkingBlock(thinking=""), thinking)
        # What goes on an open call was written before the text.
        begun = [isinstance(part, ToolCall) for part in delta.tool_calls]
        first = begun.index(True) if any(begun) else len(begun)
        events += self._call_events(delta.tool_calls[:first])
        if delta.text:
            events += self._grow(TextBlock(text=""), TextDelta(text=delta.text))
        events += self._call_events(delta.tool_calls[first:])
        if delta.finish_reason is not None:
            events += self._close()
            self._end = _end_of(delta.finish_reason, delta.stop_reason)
        return b"".join(events) or None

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        assert self._end is not None
        last = MessageDelta(delta=self._end, usage=_message_usage(usage))
        return named_event(last) + named_event(MessageStop())

    def error_event(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: %b\n\n" % refusal.anthropic_body(self._call.caller.call_id)

    @property
    def logprobs_lists(self) -> Sequence[str]:
        return ()

    @property
    def shared_bytes(self) -> int:
        return 0

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        return ()

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        return 0

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        """The content, and how it ended."""
        blocks = []
        if reasoning := transcript.reasoning.pieces():
            shown = reasoning if self._shows_thinking else ()
            blocks.append(filled_choice(ThinkingBlock(thinking=""), {b"thinking": shown}, None))
        if text := transcript.text.pieces():
            blocks.append(filled_choice(TextBlock(text=""), {b"text": text}, None))
        for call in transcript.tool_calls.calls():
            arguments = cast(dict[str, Any], Raw(sent_object(call.arguments).encode()))
            blocks.append([_encode(self._tool_use(call.name, arguments))])
        pieces: list[bytes] = []
        for block in blocks:
            pieces += [b"," if pieces else b"[", *block]
        end = _encode(_end_of(transcript.finish_reason, transcript.stop_reason))
        return [*(pieces or [b"["]), b"],", end[1:-1]]

    def answer_frame(
        self,
        usage: Usage,
        scaling: Scaled = UNSET,
    ) -> AnswerFrame:
        answer = _encode(self._answer(_message_usage(usage)))
        before, after = split_at_field(answer, b"content", _NO_CHOICE)
        return [before], [after]

    def _answer(self, usage: MessageUsage) -> MessageAnswer:
        call = self._call
        return MessageAnswer(id=call.answer_id, model=call.model, content=[], usage=usage)

    def _beginning(self, delta: ChoiceDelta) -> MessageAnswer:
        cached_tokens = delta.cached_tokens
        usage = MessageUsage(
            input_tokens=len(self._call.prompts[0]) - cached_tokens,
            output_tokens=0,
            cache_read_input_tokens=cached_tokens,
        )
        return self._answer(usage)

    def _tool_use(self, name: str, arguments: dict[str, Any]) -> ToolUseBlock:
        return ToolUseBlock(id=self._call.fresh_call_id(_CALL_ID), name=name, input=arguments)

    def _call_events(self, parts: Sequence[CallPart]) -> list[bytes]:
        events: list[bytes] = []
        for part in parts:
            if isinstance(part, ToolCall):
                events += self._begin(self._tool_use(part.name, {}))
            text = part.arguments if isinstance(part, ToolCall) else part.text
            if text:
                delta = InputJsonDelta(partial_json=text)
                events.append(named_event(ContentBlockDelta(index=self._index, delta=delta)))
        return events

    def _grow(self, empty: AnswerBlock, delta: BlockDelta | None) -> list[bytes]:
        """The open block if it is one like `empty`, else that one, which begins."""
        events = [] if self._open is type(empty) else self._begin(empty)
        if delta is not None:
            events.append(named_event(ContentBlockDelta(index=self._index, delta=delta)))
        return events

    def _begin(self, block: AnswerBlock) -> list[bytes]:
        events = self._close()
        self._index += 1
        self._open = type(block)
        return [*events, named_event(ContentBlockStart(index=self._index, content_block=block))]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [named_event(ContentBlockStop(index=self._index))]


def _end_of(finish: Finish | None, stop: str | int | None) -> MessageEnd:
    if finish == "stop" and isinstance(stop, str):
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=stop)
    assert finish is not None
    return MessageEnd(stop_reason=_STOP_REASONS[finish])


def _message_usage(usage: Usage) -> MessageUsage:
    cached_tokens = usage.prompt_tokens_details.cached_tokens
    written = MessageUsage(
        input_tokens=usage.prompt_tokens - cached_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached_tokens,
    )
    details = usage.completion_tokens_details
    if isinstance(details, CompletionTokensDetails):
        written.output_tokens_details = OutputTokensDetails(
            thinking_tokens=details.reasoning_tokens
        )
    return written
