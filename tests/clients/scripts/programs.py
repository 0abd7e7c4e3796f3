"""Runs the command of a client that is a program of its own."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_folder = tempfile.TemporaryDirectory()
FOLDER = Path(_folder.name)
# The harness, the load generators, count tokens themselves.
TOKENIZER = Path(__file__).parents[3] / "src" / "tandem" / "bundled" / "tandem-mini"


class ProgramFailed(Exception):
    """Says what the program said last."""


def run(command: str) -> None:
    """A command of this environment, in `FOLDER`. Raises `ProgramFailed`."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=FOLDER,
        env={**os.environ, "OPENAI_API_KEY": "none", "HF_HOME": str(FOLDER)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ProgramFailed((done.stderr or done.stdout)[-2000:])
