"""A chat as a person holds it: the turns so far, one streamed answer at a time, and its pace."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.bench.client import Client
from tandem.bench.load import CHAT_PATH, Clock, start_clock
from tandem.bench.tasks.task import Message

Show = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """A request to be streamed: where, and what."""

    path: str
    body: Mapping[str, Any]


@dataclass
class Answer:
    """One answer while it comes; complete once `ended`. Without the server's own count an event is
    taken for a token. `worker` drew the latest, where the request asks for sources."""

    pieces: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=start_clock, repr=False)
    sent_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    output_tokens: int = 0
    worker: str = ""
    ended: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def pace(self) -> str:
        """How fast it came, in words."""
        if self.first_s is None:
            return "no tokens" if self.ended else "stopped before the first token"
        parts = [
            f"TTFT {(self.first_s - self.sent_s) * 1e3:.0f} ms",
            f"{self.output_tokens} token{'s' if self.output_tokens != 1 else ''}",
        ]
        if self.output_tokens > 1 and self.last_s > self.first_s:
            speed_tps = (self.output_tokens - 1) / (self.last_s - self.first_s)
            parts.append(f"{speed_tps:.1f} tokens/s")
        if not self.ended:
            parts.append("stopped")
        return ", ".join(parts)

    def add(self, text: str) -> None:
        """A piece that just arrived."""
        self.last_s = self.clock()
        if self.first_s is None:
            self.first_s = self.last_s
        self.output_tokens += 1
        self.pieces.append(text)


@dataclass
class Dialogue:
    """The turns so far; the system prompt stands apart, so that forgetting the turns keeps it.

    `sampling` holds the body's other fields; what is absent is left to the server.
    """

    model: str
    sampling: Mapping[str, Any]
    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def ask(self, question: str) -> Asked:
        """The request for the next answer."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.turns, {"role": "user", "content": question}]
        return Asked(CHAT_PATH, {"model": self.model, "messages": messages, **self.sampling})

    def keep(self, question: str, answer: Answer) -> None:
        """Remembers a question with its answer, also one that was stopped half-way."""
        if answer.pieces:
            self.turns.append({"role": "user", "content": question})
            self.turns.append({"role": "assistant", "content": answer.text})


async def stream_answer(client: Client, asked: Asked, answer: Answer, show: Show) -> None:
    """Streams an answer into `answer` and through `show`. Raises `RequestFailed`.

    Whoever cancels it finds in `answer` what came until then.
    """
    answer.sent_s = answer.clock()
    async with contextlib.aclosing(client.stream(asked.path, asked.body)) as chunks:
        async for chunk in chunks:
            for choice in chunk.choices:
                if choice.token_sources:
                    answer.worker = choice.token_sources[-1][0]
                if choice.carries_tokens:
                    answer.add(choice.shown_text)
                    show(choice.shown_text)
            if chunk.usage is not None:
                answer.output_tokens = chunk.usage.completion_tokens
    answer.ended = True
