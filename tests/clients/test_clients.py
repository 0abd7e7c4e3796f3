"""The scripts of the clients that the tests have anyway, against a server of the suite's own. All
others, and a cluster: `make clients`."""

import sys
from collections.abc import Iterator

import pytest

from tests.clients.catalog import CLIENTS
from tests.clients.environments import PROJECT, command_of
from tests.clients.page import PAGE, cell, gaps, page, settings
from tests.clients.running import Outcome, Report, report_of
from tests.clients.servers import one_process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with one_process() as url:
        yield url


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_every_check_passes(url, client):
    report = report_of(command_of(f"with_{client}.py", PROJECT), url)
    assert not report.failures
    assert sum(each.outcome == "ok" for each in report.outcomes) >= 10


def test_a_script_that_breaks_off_fails():
    said = """print('{"version": "1"}'); raise SystemExit("lost")"""
    report = report_of([sys.executable, "-c", said], "http://127.0.0.1:9")
    assert report.version == "1"
    assert [(each.check, each.why) for each in report.failures] == [("script", "status 1: lost")]


def report(**outcomes: str) -> Report:
    found = [Outcome(feature, "check", outcome, "a why") for feature, outcome in outcomes.items()]
    return Report("1", tuple(found))


def test_the_page_says_what_does_not_work_and_why():
    by_kind = {
        "server": report(text="ok", stream="ok", tools="ok", errors="not offered"),
        "cluster": report(text="ok", stream="failed", tools="not offered", errors="not offered"),
    }
    assert [cell(by_kind, feature) for feature in ("text", "stream", "tools", "errors")] == [
        "yes", "fails", "one process", "–",
    ]  # fmt: skip
    assert gaps({"cluster": by_kind["cluster"]}) == (
        "* Fails: stream (a why).\n* Not offered: tools, errors (a why).\n"
    )
    assert gaps({"server": report(text="ok"), "cluster": report(text="failed")}) == (
        "* Fails with a cluster: text (a why).\n"
    )


def test_what_was_not_run_stays_as_it_is():
    before = PAGE.read_text()
    assert page({}, before) == before
    now = page({"llm": {"server": report(text="ok"), "cluster": report(text="ok")}}, before)
    changed = [line for line in now.splitlines() if line not in before.splitlines()]
    assert [line.partition(" | yes |")[0] for line in changed] == ["| `llm` | 1"]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_page_shows_the_settings_that_are_run(client):
    assert settings(client) in PAGE.read_text()
