"""The verbs of `tandem`: all are there, and none waits for what only another one needs."""

import subprocess
import sys

import pytest

from tandem.commands.late_imports import PARTS, VERBS
from tandem.commands.main import _spread
from tests.journeys.serving import run_here
from tests.style.source import modules

# What takes long to import, and what these verbs must do without. They run beside a cluster, or
# before it starts, and somebody waits for each.
QUICK = ("up", "status", "drain", "apply", "restart", "join", "down", "gateway", "keys")
SCRIPT = """
import importlib, sys
for verb in sys.argv[1:]:
    importlib.import_module(f"tandem.commands.{verb}")
print(*sys.modules)
"""


def imported_by(*verbs: str) -> set[str]:
    command = [sys.executable, "-c", SCRIPT, *verbs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_operators_wait_for_no_model_and_no_server():
    heavy = {"torch", "tandem.api.app", "aiohttp", "tokenizers"}
    assert not heavy & imported_by("main", *QUICK)


def test_no_verb_waits_for_what_draws_before_a_plot_is_wanted():
    assert not {"matplotlib", "plotly"} & imported_by("bench", "simulate", "hits", "evaluate")


def test_help_lists_every_verb_but_those_that_only_launchers_use():
    told = run_here("--help").stdout
    for verb in ("serve", *QUICK, "demo", "chat", "complete", "bench", "eval", "hits", "calibrate"):
        assert f" {verb} " in told
    assert "worker-process" not in told


def test_a_mistyped_verb_is_told_what_may_be_meant():
    told = run_here("statsu")
    assert told.returncode == 2
    assert "status" in told.stderr


def test_a_former_verb_says_what_it_became():
    told = run_here("profile", "--out", "x.json")
    assert told.returncode == 2
    assert "tandem calibrate" in told.stderr


def test_every_module_named_by_a_string_is_there():
    dotted = {module.dotted: module for module in modules()}
    for place in (*VERBS.values(), *PARTS.values()):
        name, _, function = place.partition(":")
        assert name in dotted, place
        defined = {node.name for node in dotted[name].functions()}
        assert not function or function in defined, place


@pytest.mark.parametrize(
    ("words", "spread"),
    [
        (["serve", "m", "--lora-modules", "a=1", "b=2"], ["a=1", "b=2"]),
        (["serve", "--lora-modules", "a=1", "b=2", "--port", "0"], ["a=1", "b=2"]),
        (["serve", "--lora-modules", "a=1", "--lora-modules", "b=2"], ["a=1", "b=2"]),
        (["serve", "--lora-modules", "a=1", "m", "b=2"], ["a=1"]),
        (["serve", "--lora-modules", "{}", "{1}", "m"], ["{}", "{1}"]),
        (["serve", "--api-key", "a=1", "b=2"], []),
    ],
)
def test_one_flag_takes_several_adapters(words, spread):
    found = _spread(words)
    values = [found[at + 1] for at, word in enumerate(found) if word == "--lora-modules"]
    assert values == spread
    assert [word for word in found if word != "--lora-modules"] == [
        word for word in words if word != "--lora-modules"
    ]
