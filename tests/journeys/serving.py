"""Starts the real `tandem serve`, or another command that serves, in a process of its own."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock

from typer.testing import CliRunner

from tandem.commands.main import app


@dataclass
class ServingProcess:
    """A server that is ready, and all that it printed until then."""

    process: subprocess.Popen
    url: str
    greeting: str

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def started(command: Sequence[str]) -> Iterator[ServingProcess]:
    """What a command starts that serves until the block ends, once it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if "Ctrl-C stops" in line:
                break
        found = re.search(r"served on (http://[\d.]+:\d+)/v1", printed)
        assert found, printed
        yield ServingProcess(process, found[1], printed)
    finally:
        process.kill()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def serving(*arguments: str) -> AbstractContextManager[ServingProcess]:
    """`tandem serve --port 0 …` until the block ends."""
    return started([sys.executable, "-u", "-m", "tandem", "serve", "--port", "0", *arguments])


# They ask a cluster or a server, or compute without torch, and end: here they cost no second of
# imports each. That a process around them is the same is seen with some of them, and with all other
# verbs.
HERE = frozenset(
    {
        "apply", "bench", "complete", "drain", "explain", "flip", "hits", "replay", "restart",
        "simulate", "status", "undrain",
    }
)  # fmt: skip

ONE_AT_A_TIME = Lock()


def run_tandem(
    *arguments: str, stdin: str | None = None, own_process: bool = False
) -> subprocess.CompletedProcess:
    """One `tandem` command, to its end: in a process of its own, or here (`HERE`)."""
    if arguments[0] in HERE and not own_process:
        return run_here(*arguments, stdin=stdin)
    return subprocess.run(
        [sys.executable, "-m", "tandem", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
    )


def run_here(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    """One `tandem` command, to its end, in this process: one that asks, or that is refused."""
    # In a thread, which has no event loop yet; one at a time, for they change where is printed.
    with ONE_AT_A_TIME, ThreadPoolExecutor(1) as thread:
        done = thread.submit(CliRunner().invoke, app, arguments, input=stdin).result()
    trouble = done.exception
    if trouble is not None and not isinstance(trouble, SystemExit):
        raise trouble
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def succeeded(done: subprocess.CompletedProcess) -> str:
    """What a command has printed that succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
