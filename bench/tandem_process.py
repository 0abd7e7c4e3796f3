"""A `tandem serve` or `tandem up` in a process of its own, for as long as it is measured."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TANDEM = (sys.executable, "-u", "-m", "tandem")
STOP_S = 60


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """`tandem` with these words until the block ends; gives its URL, without the /v1."""
    process = subprocess.Popen([*TANDEM, *words], stdout=subprocess.PIPE, text=True)
    printed = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if "Ctrl-C stops" in line:
                break
        found = re.search(r"served on (http://[\d.]+:\d+)/v1", printed)
        assert found, printed
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
