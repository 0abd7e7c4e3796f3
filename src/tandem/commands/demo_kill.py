"""`tandem demo --kill`: a story is told, and told again while the worker that tells it is killed in
mid-sentence; the second is the first, letter by letter."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console

from tandem.bench.client import Client, Endpoint
from tandem.bench.dialogue import Answer, Dialogue, stream_answer
from tandem.commands.terminal import print_plain
from tandem.facts.errors import TandemError
from tandem.live.launching.state_directory import ClusterRecord, StateDirectory

CLUSTER = "laptop-pd"
# Beside whatever else runs on this machine.
OVERRIDES = ("name=demo-kill", "serve.port=0")
QUESTION = "Tell me a story."
SAMPLING = {"temperature": 0.8, "seed": 2, "max_tokens": 256, "return_token_sources": True}
# The worker is killed once so much was told: early, for a short story is over in moments.
KILL_AFTER_CHARS = 72
# On a busy machine so much may be read only when the story is over.
MOST_TELLINGS = 5
TIMEOUT_S = 60.0


class NotTheSame(TandemError):
    """The second telling differs from the first, or nobody could be killed in time."""


@dataclass
class _Telling:
    """One answer as it is shown, and the longest time that nothing came. Who tells it is killed
    once it has told enough, if it is among the `pids` of workers."""

    console: Console
    pids: Mapping[str, int] = field(default_factory=dict)
    answer: Answer = field(default_factory=Answer)
    longest_pause_s: float = 0.0
    # Tokens that had come when the worker was killed.
    killed_after: int | None = None
    _chars: int = 0
    _before_s: float | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether more came after the worker was killed."""
        return self.killed_after is not None and self.killed_after < self.answer.output_tokens

    def show(self, text: str) -> None:
        now_s = self.answer.clock()
        if self._before_s is not None:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self._before_s)
        self._before_s = now_s
        self._chars += len(text)
        self.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        if self._chars >= KILL_AFTER_CHARS and self.killed_after is None:
            self._kill()

    def _kill(self) -> None:
        victim = self.answer.worker
        if (pid := self.pids.get(victim)) is not None:
            os.kill(pid, signal.SIGKILL)
            self.killed_after = self.answer.output_tokens
            self.console.print(f"\n[bold red]>>> {victim}, process {pid}, is killed <<<[/bold red]")


@dataclass(frozen=True)
class KillDemo:
    """Both tellings, beside a cluster that runs in `directory`."""

    console: Console
    directory: StateDirectory

    async def play(self) -> None:
        """Raises `TandemError`, also where the tellings differ."""
        async with Client(Endpoint(self._record().url, None, TIMEOUT_S)) as client:
            model = await client.choose_model(None)
            dialogue = Dialogue(model.id, SAMPLING)
            self._head("1. A story, undisturbed")
            first = _Telling(self.console)
            await stream_answer(client, dialogue.ask(QUESTION), first.answer, first.show)
            self._head("2. The same request, and its decode worker is killed in mid-sentence")
            for _ in range(MOST_TELLINGS):
                second = _Telling(self.console, self._pids())
                await stream_answer(client, dialogue.ask(QUESTION), second.answer, second.show)
                if second.is_interrupted:
                    break
                self.console.print("\n\nIt was over before its worker died. Once more:\n")
        self._judge(first, second)

    def _record(self) -> ClusterRecord:
        record = self.directory.read()
        assert record is not None, "the demo runs beside its cluster"
        return record

    def _pids(self) -> dict[str, int]:
        """By process, as they are now: who was killed has another."""
        return {name: process.pid for name, process in self._record().processes.items()}

    def _judge(self, first: _Telling, second: _Telling) -> None:
        self._head("3. Both are the same")
        if first.answer.text != second.answer.text:
            raise NotTheSame("the second telling differs from the first")
        tokens, before = second.answer.output_tokens, second.killed_after
        if before is None or not second.is_interrupted:
            raise NotTheSame("the story was over before its worker could be killed")
        self.console.print(
            f"{len(second.answer.text)} characters, letter by letter the same: {before} tokens "
            f"before the worker died, {tokens - before} from another.\nLongest pause between two "
            f"tokens: {second.longest_pause_s * 1e3:.0f} ms; undisturbed "
            f"{first.longest_pause_s * 1e3:.0f} ms.",
            highlight=False,
        )
        print_plain(self.console, "  $ tandem up laptop-pd      # the same cluster, to stay", "dim")

    def _head(self, title: str) -> None:
        self.console.print(f"\n\n[bold]{title}[/bold]\n")
