"""docs/metrics.md names every family that the code can have, and no other."""

import ast
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem.observe.cluster_metrics import DEGRADE_STEPS
from tests.api.every_endpoint import text_of
from tests.api.server import client_of
from tests.deploy.scraped_servers import app_of_everything
from tests.style.source import PACKAGE, ROOT

PAGE = ROOT / "docs" / "metrics.md"
# What the page says is not there.
ABSENT = re.compile(r"(?ms)^Not there, for they would.*?\n\n|^\|[^\n]*\| is not there\.[^\n]*$")
CELL = re.compile(r"(?m)^\| (`[^|]*`) \|")


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Of a server that has everything, by the names of their series without endings of histograms,
    with the labels of these."""
    folder = tmp_path_factory.mktemp("everything")
    with client_of(app_of_everything(text_of(folder), folder)) as client:
        assert client.post("/v1/completions", json={"prompt": "hello"}).status_code == 200
        page = client.get("/metrics").text
    found: dict[str, set[str]] = {}
    for each in text_string_to_metric_families(page):
        name = each.name + ("_total" if each.type == "counter" else "")
        if not name.endswith("_created"):
            found[name.removeprefix("tandem:")] = {
                label for sample in each.samples for label in sample.labels
            }
    return found


def test_the_page_names_every_family_and_no_other(families):
    text = ABSENT.sub("", PAGE.read_text())
    assert set(families) <= set(re.findall(r"`([a-z]\w+)`", text))
    in_tables = {name for cell in CELL.findall(text) for name in re.findall(r"`(\w+)`", cell)}
    assert in_tables - set().union(*families.values()) <= set(families)


def test_other_pages_name_families_that_there_are(families):
    endings = ("", "_count", "_sum", "_bucket")
    series = {f"{name}{ending}" for name in families for ending in endings}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name in re.findall(r"(?<![\w/.])tandem:([a-z_]+[a-z])\b", page.read_text()):
            assert name in series, (page.name, name)


def test_the_server_has_all_that_the_code_names(families):
    """Whoever adds a family adds its shape to `EveryFamily`. Some names are put together."""
    others = {*DEGRADE_STEPS, "client_gone", "internal_error", "text_completion"}
    makers = [
        text
        for path in PACKAGE.rglob("*.py")
        if re.search(r"prometheus_client|tandem\.observe\.registry", text := path.read_text())
    ]
    assert len(makers) > 8
    words = {
        node.value
        for text in makers
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[a-z]+(_[a-z]+)+", node.value)
    }
    labels = set().union(*families.values())
    unknown = {
        word
        for word in words - labels - others
        if not any(re.match(rf"(.*_)?{word}(_total)?$|{word}_", name) for name in families)
    }
    assert unknown == set()
