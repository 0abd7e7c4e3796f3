"""What the script of a client reports: one line of JSON a check, after one with the version.

Standard library alone, because Tandem is not installed where the scripts run:

    @check("text")
    def text(): ...

    report("openai")
"""

import asyncio
import inspect
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from importlib.metadata import version

URL = sys.argv[1]  # of the server, without /v1
PATIENCE_S = 20.0

_checks: list[tuple[str, Callable[[], object]]] = []


class NotOffered(Exception):
    """The client has nothing of the kind, or the server was not started with it: says why."""


def check(feature: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """The function, or coroutine, passes unless it raises."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        _checks.append((feature, function))
        return function

    return register


def not_offered(feature: str, why: str) -> None:
    @check(feature)
    def refuse() -> None:
        raise NotOffered(why)


def report(distribution: str) -> None:
    """Runs every check of the script, which is what this client's line of the table says."""
    print(json.dumps({"version": version(distribution)}), flush=True)
    with asyncio.Runner() as loop:  # one for all, as connections of a client live in their loop
        for feature, function in _checks:
            outcome, why = _outcome(function, loop)
            line = {"feature": feature, "check": function.__name__, "outcome": outcome, "why": why}
            print(json.dumps(line), flush=True)


def _outcome(function: Callable[[], object], loop: asyncio.Runner) -> tuple[str, str]:
    try:
        result = function()
        if inspect.iscoroutine(result):
            loop.run(result)
    except NotOffered as reason:
        return "not offered", str(reason)
    except Exception as error:  # noqa: BLE001 - whatever went wrong is the table's to show
        return "failed", f"{type(error).__name__}: {error}{_place(error)}"
    return "ok", ""


def _place(error: Exception) -> str:
    """The line of the script on which it failed."""
    lines = []
    traceback = error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == sys.argv[0]:
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return f" (line {lines[-1]})" if lines else ""


class aborted:
    """What is begun in this block, and left, the server gives up rather than finish. A coroutine
    says `async with`, because some clients close their connections only as their loop goes on."""

    def __enter__(self) -> None:
        self._before = _aborted_requests()

    def __exit__(self, *_: object) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while _aborted_requests() == self._before:
            assert time.monotonic() < end_s, "the server went on with what its client had left"
            time.sleep(0.05)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


def _aborted_requests() -> float:
    page = urllib.request.urlopen(f"{URL}/metrics", timeout=PATIENCE_S).read().decode()
    return sum(
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("tandem:request_success_total") and 'reason="abort"' in line
    )


def served_models() -> list[str]:
    page = urllib.request.urlopen(f"{URL}/v1/models", timeout=PATIENCE_S)
    return [model["id"] for model in json.load(page)["data"]]
