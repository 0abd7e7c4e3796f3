"""Starts the real `tandem serve` in a process of its own."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class ServingProcess:
    """A server that said it is ready, and all that it printed until then."""

    process: subprocess.Popen
    url: str
    greeting: str

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def serving(*arguments: str) -> Iterator[ServingProcess]:
    """`tandem serve --port 0 …` until the block ends."""
    command = [sys.executable, "-u", "-m", "tandem", "serve", "--port", "0", *arguments]
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


def run_tandem(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    """One `tandem` command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tandem", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=120,
    )
