"""A real Prometheus with the configuration and rules of deploy/ scrapes real servers: all that the
dashboard and the alerts ask for is there, and can be evaluated."""

import re

import pytest

from tests.deploy.dashboard import expressions, variable_series
from tests.deploy.prometheus import PATIENCE_S, rules, scraping
from tests.deploy.scraped_servers import scraped_servers
from tests.waiting import until

EXPRESSIONS = expressions()
# Names of series: matchers, whose values may look like some, are taken out before.
SERIES = re.compile(r"\b(?:tandem:|process_|http_)\w+|\bup\b")
MATCHERS = re.compile(r"\{.*?\}")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scraped")
    with scraped_servers(folder) as ports, scraping(ports, folder) as prometheus:
        yield prometheus


def test_servers_and_gateways_are_up(prometheus):
    targets = prometheus.targets()
    assert {target["labels"]["instance"] for target in targets} == {
        "serve",
        "gateway",
        "everything",
    }
    for target in targets:
        assert (target["health"], target["lastError"]) == ("up", "")
        assert target["labels"]["job"] == "tandem"


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_a_panel_shows_something(prometheus, place):
    assert prometheus.values(EXPRESSIONS[place])


def test_a_variable_has_values(prometheus):
    for label, series in variable_series().items():
        assert prometheus.label_values(label, series), label


def test_rules_are_evaluated_without_an_error(prometheus):
    def evaluated():
        found = prometheus.rules()
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = until(evaluated, PATIENCE_S)
    assert len(found) == len(rules())
    assert not [rule["lastError"] for rule in found if rule["health"] != "ok"]


def test_rules_ask_for_series_that_are_there(prometheus):
    there = prometheus.names()
    for rule in rules():
        assert set(SERIES.findall(MATCHERS.sub("", rule["expr"]))) <= there, rule
