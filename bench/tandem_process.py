"""A `tandem serve` or `tandem up` in a process of its own, for as long as it is measured."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.commands.measured_cluster import served_url

TANDEM = (sys.executable, "-u", "-m", "tandem")
STOP_S = 60


@contextmanager
def serving(*words: str, python: str = sys.executable) -> Iterator[str]:
    """`tandem` with these words until the block ends, of this environment or of another; gives its
    URL, without the /v1."""
    process = subprocess.Popen([python, *TANDEM[1:], *words], stdout=subprocess.PIPE)
    try:
        yield served_url(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
