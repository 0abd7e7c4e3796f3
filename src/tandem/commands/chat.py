"""`tandem chat`: a conversation with a served model, or one question from a pipe."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from tandem.bench.client import Client, Endpoint, RequestFailed
from tandem.bench.dialogue import Answer, Dialogue, stream_answer
from tandem.commands.options import SamplingOptions, ServerOptions, with_options
from tandem.commands.terminal import print_plain, write_now
from tandem.facts.errors import InvalidRequest

_HELP = """/reset          forget the conversation
/system TEXT    set the system prompt (without TEXT: none) and forget the conversation
/quit           leave, as Ctrl-D does
Ctrl-C stops an answer."""


@with_options
def chat(
    server: ServerOptions,
    sampling: SamplingOptions,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
) -> None:
    """Chat with a served model.

    Streams answers in the terminal. With a pipe (echo hi | tandem chat) the whole input is one
    question, and only the answer is printed.
    """
    endpoint = Endpoint(server.url, server.api_key, server.timeout_s)
    with asyncio.Runner() as runner:
        client = runner.run(_connect(endpoint))
        try:
            model = runner.run(client.choose_model(server.model))
            dialogue = Dialogue(model.id, sampling.fields(), system)
            if sys.stdin.isatty():
                _Terminal(runner, client, dialogue, Console()).run()
            else:
                _answer_pipe(runner, client, dialogue)
        finally:
            runner.run(client.__aexit__())


async def _connect(endpoint: Endpoint) -> Client:
    return await Client(endpoint).__aenter__()


def _answer_pipe(runner: asyncio.Runner, client: Client, dialogue: Dialogue) -> None:
    question = sys.stdin.read().strip()
    if not question:
        raise InvalidRequest("the piped input", "is empty; write the question into it")
    runner.run(stream_answer(client, dialogue.ask(question), Answer(), write_now))
    write_now("\n")


@dataclass
class _Terminal:
    """The conversation with a person: reads lines, runs commands, prints answers as they come."""

    runner: asyncio.Runner
    client: Client
    dialogue: Dialogue
    console: Console

    def run(self) -> None:
        """Until /quit or the end of the input."""
        console = self.console
        print_plain(console, self.dialogue.model, "bold", end="  ")
        print_plain(console, "/help shows the commands", "dim")
        while True:
            try:
                line = console.input("\n[bold cyan]you >[/bold cyan] ").strip()
            except EOFError:
                console.print()
                return
            except KeyboardInterrupt:
                console.print("\n[dim]/quit or Ctrl-D leaves[/dim]")
                continue
            if line == "/quit":
                return
            if line.startswith("/"):
                self.run_command(line)
            elif line:
                self.answer(line)

    def run_command(self, line: str) -> None:
        """A line that starts with a slash."""
        command, _, rest = line.partition(" ")
        if command == "/reset":
            self.dialogue.turns.clear()
            self.console.print("[dim]forgotten[/dim]")
        elif command == "/system":
            self.dialogue.system = rest.strip()
            self.dialogue.turns.clear()
            self.console.print("[dim]system prompt set, conversation forgotten[/dim]")
        else:
            print_plain(self.console, _HELP, "dim")

    def answer(self, question: str) -> None:
        """One answer. A failed one leaves the conversation as it was."""
        answer = Answer()
        asked = self.dialogue.ask(question)
        try:
            self.runner.run(stream_answer(self.client, asked, answer, self._show))
        except KeyboardInterrupt:
            # The runner turned Ctrl-C into a cancelled stream: what was said so far stays.
            pass
        except RequestFailed as failure:
            print_plain(self.console, f"\n{failure}", "red")
            return
        self.dialogue.keep(question, answer)
        print_plain(self.console, f"\n{answer.pace}", "dim")

    def _show(self, text: str) -> None:
        self.console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
