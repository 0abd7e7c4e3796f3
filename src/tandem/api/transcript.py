"""The whole of one choice, gathered from its deltas, for clients that do not stream."""

from array import array
from collections.abc import Sequence

from tandem.api.answers import Finish
from tandem.api.choice import ChoiceDelta
from tandem.api.whole_answer import JsonList, JsonText
from tandem.text.tools import ToolCall

# Of a tool call: its objects; of a character: itself, and as JSON.
_CALL_BYTES = 256
_CHAR_BYTES = 10
# Of one that is held back, in texts of a few of them.
_HELD_CHAR_BYTES = 16
# Four as a number, up to eight as JSON.
_TOKEN_BYTES = 12
# Of an entry in a list of JSON: an object until it is joined with others.
_ENTRY_BYTES = 40


class Transcript:
    """Grows by deltas; complete once `finish_reason` is set. Text and log-probabilities are kept as
    JSON, the latter in `logprobs_lists` parallel lists; token ids where the client wants them."""

    def __init__(self, choice: int, *, logprobs_lists: int, keeps_tokens: bool) -> None:
        self.choice = choice
        self.text = JsonText()
        self.tool_calls: list[ToolCall] = []
        self.tokens = array("I")
        self.logprobs = [JsonList() for _ in range(logprobs_lists)]
        self.has_logprobs = False
        self.finish_reason: Finish | None = None
        self.stop_reason: str | int | None = None
        self._keeps_tokens = keeps_tokens
        self._held_chars = 0

    def add(self, delta: ChoiceDelta, logprobs: Sequence[bytes] = ()) -> int:
        """`logprobs` has items for each of the lists, or is empty. Gives how many bytes more are
        kept, about."""
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        more_bytes = self.text.add(delta.text)
        more_bytes += _HELD_CHAR_BYTES * (delta.held_chars - self._held_chars)
        self._held_chars = delta.held_chars
        if delta.tool_calls:
            self.tool_calls += delta.tool_calls
            more_bytes += sum(
                _CALL_BYTES + _CHAR_BYTES * (len(call.name) + len(call.arguments))
                for call in delta.tool_calls
            )
        if self._keeps_tokens:
            self.tokens.extend(delta.tokens)
            more_bytes += _TOKEN_BYTES * len(delta.tokens)
        if logprobs:
            self.has_logprobs = True
            for entries, items in zip(self.logprobs, logprobs, strict=True):
                entries.add(items)
                more_bytes += _ENTRY_BYTES + len(items)
        return more_bytes
