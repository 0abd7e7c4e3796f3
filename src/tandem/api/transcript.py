"""The whole of one choice, gathered from its deltas, for clients that do not stream."""

from tandem.api.answers import Finish
from tandem.api.choice import ChoiceDelta
from tandem.facts.request import TokenLogprobs
from tandem.text.tools import ToolCall


class Transcript:
    """Grows by deltas; complete once `finish_reason` is set."""

    def __init__(self, choice: int) -> None:
        self.choice = choice
        self.tool_calls: list[ToolCall] = []
        self.tokens: list[int] = []
        self.shown: list[tuple[int, TokenLogprobs]] = []
        self.finish_reason: Finish | None = None
        self.stop_reason: str | int | None = None
        self._texts: list[str] = []

    def add(self, delta: ChoiceDelta) -> None:
        self._texts.append(delta.text)
        self.tool_calls += delta.tool_calls
        self.tokens += delta.tokens
        self.shown += delta.shown
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason

    @property
    def text(self) -> str:
        return "".join(self._texts)
