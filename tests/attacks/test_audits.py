"""Whoever breaks the books of a machine is found by its audit, under `python -O` too."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-O", "-m", "tests.attacks.broken_books"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert answer["optimised"] == 1, "assertions were left in"
    return answer["found"]


def test_books_in_order_have_no_problem(answers):
    untouched = {name: found for name, found in answers.items() if name.startswith("nothing of")}
    assert len(untouched) == 4
    assert set(untouched.values()) == {""}


def test_every_auditor_finds_what_was_broken(answers):
    broken = {name: found for name, found in answers.items() if not name.startswith("nothing of")}
    assert len(broken) > 20
    for name, found in broken.items():
        assert "does not hold at" in found, name
    # Auditors of every part were asked, and said where.
    places = {found.split(" at ")[1].split(".audit")[0] for found in broken.values()}
    parts = {
        "AdmissionFront", "BlockPool", "BlockRuns", "Fetches", "GatewayMachine", "InboundTransfers",
        "KvTransfers", "PoolContents", "RouterMachine", "RunningSequences", "TierCaches",
        "TierHierarchy", "Transfers", "Work", "WorkerMachine", "WorkerTiers", "WriteThrough",
    }  # fmt: skip
    assert places == parts
