"""The dashboard for Grafana: it is what its script makes, what Grafana's schema knows, and of one
style."""

import subprocess
import sys
from collections import Counter

import pytest

from tests.deploy.dashboard import DASHBOARD, SCRIPT, panels, written
from tests.deploy.grafana_schema import UNITS, problems

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def made(*options: str) -> str:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_is_what_the_script_makes():
    assert DASHBOARD.read_text() == made(), "python deploy/grafana/dashboard.py > tandem.json"


def test_another_prefix_stands_before_all_families():
    other = made("--prefix", "vllm")
    assert "tandem:" not in other
    assert other.replace("vllm:", "tandem:") == made()


def test_grafana_knows_all_of_it():
    assert problems(written()) == []


@pytest.mark.parametrize(
    ("key", "value"), [("titel", "Tandem"), ("refresh", 30), ("graphTooltip", 7), ("panels", {})]
)
def test_what_grafana_does_not_know_is_found(key, value):
    assert problems(written() | {key: value})


def test_every_panel_has_a_title_a_unit_and_says_what_it_shows():
    titles = Counter(panel["title"] for panel in panels())
    assert not [title for title, count in titles.items() if count > 1]
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS or unit.startswith("suffix: "), panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == SOURCE
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert target["legendFormat"]


def test_panels_lie_side_by_side_within_the_grid():
    taken: set[tuple[int, int]] = set()
    for panel in written()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize(
    "variable", written()["templating"]["list"][1:], ids=lambda each: each["name"]
)
def test_a_variable_means_everything_at_first(variable):
    """And what has no such label: a server has no workers."""
    assert variable["current"]["value"] == ["$__all"]
    assert variable["allValue"] == ".*"
    assert variable["query"].startswith("label_values(tandem:")
