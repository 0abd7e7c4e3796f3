"""Runs the script of a client against a server, and reads what it reports."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_S = 600.0
# Servers elsewhere that clients would ask, and whoever collects what they do.
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}
# Tests set it for themselves; AIPerf then takes no tokenizer from a folder.
OF_THE_TESTS = "HF_HUB_OFFLINE"


@dataclass(frozen=True)
class Outcome:
    """Of one check: ok, failed or not offered, and why."""

    feature: str
    check: str
    outcome: str
    why: str


@dataclass(frozen=True)
class Report:
    version: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.outcome == "failed"]


def report_of(command: Sequence[str], url: str) -> Report:
    """What a script says of a server. One that breaks off fails one check more."""
    ours = {name: value for name, value in os.environ.items() if name != OF_THE_TESTS}
    try:
        done = subprocess.run(
            [*command, url],
            env={**ours, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return Report("?", (Outcome("", "script", "failed", f"not done in {PATIENCE_S:g} s"),))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    version = lines[0]["version"] if lines else "?"
    outcomes = [Outcome(**line) for line in lines[1:]]
    if done.returncode != 0 or not outcomes:
        why = done.stderr.strip()[-2000:]
        outcomes.append(Outcome("", "script", "failed", f"status {done.returncode}: {why}"))
    return Report(version, tuple(outcomes))
