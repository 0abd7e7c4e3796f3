"""`tandem chat` and `tandem complete`: pipes, a real terminal with Ctrl-C, clear refusals."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.bench.scripted_server import Script, ScriptedServer
from tests.commands.cli import tandem


def test_piped_question_prints_the_answer_alone() -> None:
    with ScriptedServer() as server:
        flags = ["--url", server.url, "--system", "Be brief.", "--temperature", "0", "--seed", "7"]
        result = tandem("chat", *flags, text="hi there\n")
        body = server.bodies[0]
    assert result.exit_code == 0, result.output
    assert result.stdout == "You said: hi there\n"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi there"},
    ]
    assert (body["temperature"], body["seed"]) == (0.0, 7)
    assert "max_tokens" not in body


def test_empty_pipe_and_no_server_are_one_line() -> None:
    with ScriptedServer() as server:
        empty = tandem("chat", "--url", server.url, text="")
    assert empty.exit_code == 2 and "is empty" in empty.stderr
    for command in ("chat", "complete"):
        flags = ["--url", "http://127.0.0.1:9"] + (["x"] if command == "complete" else [])
        lost = tandem(command, *flags, text="hi")
        assert lost.exit_code == 1
        assert "tandem serve" in lost.stderr and len(lost.stderr.splitlines()) == 1


def test_complete_streams() -> None:
    with ScriptedServer() as server:
        result = tandem("complete", "Once upon", "--url", server.url, "--max-tokens", "4")
        assert server.bodies[0]["prompt"] == "Once upon"
    assert result.stdout == "w0 w1 w2 w3\n"


def test_complete_reads_a_pipe() -> None:
    with ScriptedServer() as server:
        tandem("complete", "-", "--url", server.url, text="from a pipe")
        assert server.bodies[0]["prompt"] == "from a pipe"


def test_complete_goes_on_to_the_end_of_a_sentence_and_beyond_if_told() -> None:
    with ScriptedServer() as server:
        tandem("complete", "Once upon", "--url", server.url)
        tandem("complete", "Once upon", "--url", server.url, "--ignore-eos", "--max-tokens", "9")
        usual, beyond = server.bodies
    # The API's own 16 tokens are half a sentence.
    assert (usual["max_tokens"], "ignore_eos" in usual) == (256, False)
    assert (beyond["max_tokens"], beyond["ignore_eos"]) == (9, True)


def test_complete_with_several_and_logprobs() -> None:
    with ScriptedServer(Script()) as server:
        result = tandem("complete", "x", "--url", server.url, "--n", "2", "--max-tokens", "3")
        assert result.stdout.count("w0 w1 w2\n") == 2
        assert tandem("complete", "x", "--url", server.url, "--logprobs", "2").exit_code == 0
        assert server.bodies[-1]["logprobs"] == 2


class Terminal:
    """`tandem chat` in a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        program = "import typer; from tandem.commands.chat import chat; typer.run(chat)"
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "--url", url, "--max-tokens", "400"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # A test run in the background ignores Ctrl-C, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "TERM": "dumb", "COLUMNS": "100"},
        )
        os.close(slave)
        self.seen, self.waited = "", 0

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    def wait_for(self, text: str, limit_s: float = 15.0) -> None:
        """Waits until `text` was printed after what was waited for before."""
        deadline_s = time.monotonic() + limit_s
        while text not in self.seen[self.waited :]:
            assert time.monotonic() < deadline_s, f"{text!r} not in {self.seen[self.waited :]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.waited = self.seen.index(text, self.waited) + len(text)


def test_a_conversation_in_a_terminal() -> None:
    script = Script(
        reply=lambda messages: (
            " ".join(["word"] * 400)
            if "long" in str(messages[-1]["content"])
            else f"{len(messages)} messages"
        ),
        token_gap_s=0.02,
    )
    with ScriptedServer(script) as server:
        terminal = Terminal(server.url)
        terminal.wait_for("you >")
        terminal.type("hello")
        terminal.wait_for("1 messages")
        terminal.wait_for("TTFT")
        terminal.wait_for("you >")
        terminal.type("something long")
        terminal.wait_for("word word word")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.wait_for("you >")
        terminal.type("again")
        terminal.wait_for("5 messages")
        terminal.wait_for("you >")
        terminal.type("/reset")
        terminal.wait_for("you >")
        terminal.type("/system Speak French.")
        terminal.wait_for("you >")
        terminal.type("new")
        terminal.wait_for("2 messages")
        terminal.wait_for("you >")
        terminal.type("/help")
        terminal.wait_for("Ctrl-C stops an answer")
        terminal.type("/quit")
        assert terminal.process.wait(10) == 0
        os.close(terminal.master)
        assert server.aborted == 1
        said = server.bodies[2]["messages"]
        assert said[3]["content"].startswith("word word") and len(said[3]["content"]) < 1500
        assert server.bodies[3]["messages"][0] == {"role": "system", "content": "Speak French."}


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_server_errors_are_one_line(command: str) -> None:
    with ScriptedServer(Script(refuse=lambda _: 500)) as server:
        flags = ["--url", server.url] + (["x"] if command == "complete" else [])
        result = tandem(command, *flags, text="hi")
    assert result.exit_code == 1
    assert result.stderr == "tandem: HTTP 500: queue full\n"
