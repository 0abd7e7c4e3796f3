"""What processes find in their environment, and what they leave there for others."""

import os
import subprocess
import sys

import pytest

from tandem.config.environment import bound_spinning


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_threads_sleep_soon_unless_somebody_says_how_they_wait(given, wanted, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    # Undone by the fixture, whatever is set from here on.
    monkeypatch.setattr(os, "environ", dict(os.environ))
    bound_spinning()
    found = {
        name: os.environ[name]
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        if name in os.environ
    }
    assert found == wanted


def test_the_command_says_so_before_torch_is_there():
    """OpenMP itself shows what it has read when torch brings it."""
    program = (
        "import sys, types, tandem.__main__ as entry\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['tandem']\n"
        "entry.part = lambda _: types.SimpleNamespace(run=lambda: __import__('torch'))\n"
        "entry.main()\n"
    )
    environment = {**os.environ, "OMP_DISPLAY_ENV": "verbose"}
    environment.pop("OMP_WAIT_POLICY", None)
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '2000'" in shown.stderr
