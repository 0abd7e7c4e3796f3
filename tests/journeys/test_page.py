"""The page in a real browser, over a real cluster: somebody asks, looks where the time went, and an
operator drains a worker. With TANDEM_PICTURES=FOLDER pictures of it are kept."""

import os
import re
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.journeys.browser import Browser, browsing
from tests.journeys.clusters import cluster
from tests.journeys.serving import run_tandem, succeeded

CLUSTER = """
name: page
model: tandem-mini
block_size: 16
serve: {port: 0}
slo: {ttft: 2s, tpot: 100ms}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 2, serve: {kv-cache-memory: 16MiB}}
  - {name: decode, role: decode, device: cpu, count: 2, serve: {kv-cache-memory: 16MiB}}
tiers: {remote: {capacity: 64MiB}}
journal: {directory: FOLDER}
"""
SIZES = {"wide": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    text = CLUSTER.replace("FOLDER", str(folder / "journal"))
    with browsing() as browser, cluster(text, folder) as running:
        yield running, browser


def keep_pictures(browser: Browser, name: str) -> None:
    """In both colours and both sizes, in each of which nothing sticks out."""
    folder = os.environ.get("TANDEM_PICTURES")
    for size, (width, height) in SIZES.items():
        browser.resize(width, height)
        assert browser.overflow_px() <= 0, (name, size)
        for scheme in ("light", "dark") if folder else ():
            browser.colours(scheme)
            browser.picture(Path(folder) / f"{name}-{size}-{scheme}.png")
    browser.resize(*SIZES["wide"])


def ask(browser: Browser, question: str) -> None:
    box = browser.one("textarea[name=question]")
    box.send_keys(question + Keys.ENTER)
    browser.one(".turn:last-child .note", "Where did the time go?")


def look_at_the_prompt(browser: Browser) -> None:
    """Of the last question, whose beginning was cached: as many tokens are marked as it says."""
    summary = browser.one(".turn:last-child .prompt summary")
    tokens, cached = (int(each) for each in re.findall(r"[0-9]+", summary.text))
    assert 0 < cached < tokens
    assert not browser.all(".turn:last-child .tokens")
    summary.send_keys(Keys.ENTER)
    shown = browser.one(".turn:last-child .tokens")
    texts = [each.get_attribute("textContent") for each in browser.all(".tokens .token")]
    assert len(texts) == tokens
    assert len(browser.all(".tokens mark .token")) == cached
    # As it was templated, with what was said before.
    said = "".join(texts)
    assert said.index("Tell me a story about a cat.") < said.index("And then?")
    assert "From the cache:" in shown.get_attribute("textContent")


def test_an_answer_streams_and_its_story_is_a_click_away(running):
    up, browser = running
    browser.open(f"{up.url}/")
    browser.one("select option", "tandem-mini")
    browser.one("input[placeholder=drawn]").send_keys("7" + Keys.TAB)
    ask(browser, "Tell me a story about a cat.")
    tokens = browser.all(".turn .token")
    assert len(tokens) > 5
    # Nothing was taken over, and nothing guesses here.
    assert not browser.all(".turn .elsewhere, .turn .drafted")
    assert "%" in tokens[0].get_attribute("title")
    ask(browser, "And then?")
    told = browser.one(".turn:last-child .note").text
    # The second question goes on from the first answer.
    assert "of it cached" in told
    look_at_the_prompt(browser)
    shared = browser.one("details pre", "curl").get_attribute("textContent")
    assert "And then?" in shared
    assert browser.nameless() == []
    keep_pictures(browser, "try")
    browser.all(".turn .note a")[-1].click()
    browser.one("h2", "Where it could have gone")
    browser.one(".spans dt", "decode")
    chosen = [row for row in browser.texts("tr") if "chosen" in row]
    assert len(chosen) == 2
    assert browser.nameless() == []
    keep_pictures(browser, "request")
    assert browser.problems() == []


def test_the_cluster_is_seen_and_changed_by_its_operator(running):
    up, browser = running
    browser.open(f"{up.url}/#/cluster")
    browser.one(".map a[aria-label^='decode-1, decode']")
    assert len(browser.all(".map a")) == 4
    browser.one(".stat", "goodput")
    assert "latest" in browser.one("time-chart[aria-label^='TTFT']").get_attribute("aria-label")
    # KV has moved to whoever answered.
    assert browser.all(".map .flow")
    browser.one(".map a[aria-label^='decode-1']").click()
    browser.one(".card .note", "With an operator's key")
    assert "Drain" not in browser.texts("button")
    assert browser.nameless() == []

    address = up.succeed("page", "--print").strip().replace("\n", "")
    browser.open(address)
    browser.one(".map a[aria-label^='decode-1']").send_keys(Keys.ENTER)
    browser.one("button", "Drain").click()
    browser.one(".map a[aria-label*='decode-1, decode · draining']")
    assert "key=" not in browser.driver.current_url
    states = {each["worker"]: each["accepting"] for each in up.status()["workers"]}
    assert states == {"decode-0": True, "decode-1": False, "prefill-0": True, "prefill-1": True}
    keep_pictures(browser, "cluster")
    form = browser.one("form[class=row]", "Simulate")
    form.find_element("css selector", "select").send_keys("round-robin")
    form.find_element("css selector", "textarea").send_keys("slo.tpot=50ms")
    browser.one("button", "Simulate").click()
    browser.one("td", "round-robin")
    labels = [row.split()[0] for row in browser.texts("section[aria-labelledby=what-if] tbody tr")]
    assert labels == ["recorded", "unchanged", "cost", "round-robin"]
    browser.one("section[aria-labelledby=change] textarea").send_keys("slo.ttft=3s")
    browser.one("button", "Show what changes").click()
    browser.one("section[aria-labelledby=change] td", "slo.ttft")
    browser.one("button", "Apply").click()
    browser.one("section[aria-labelledby=change] .good", "Applied.")
    browser.one(".note", "TTFT 3 s")
    browser.one("button", "Undrain").click()
    browser.gone(".map a[aria-label*='draining']")
    browser.one("nav a", "Requests").click()
    browser.one("td a")
    keep_pictures(browser, "requests")
    assert browser.problems() == []


BUSY_MAP = """
    const done = arguments[0];
    Promise.all([import("/page/map.js"), import("/page/lit-html.js")]).then(([map, lit]) => {
        const worker = (role) => ({ worker: `${role}-0`, role, state: "ready", running: 16,
            waiting: 0, used_blocks: 1, total_blocks: 2, read_from: {}, output_tokens: 264340 });
        const workers = [worker("prefill"), worker("decode")];
        const idle = workers.map((each) => ({ ...each, output_tokens: 0 }));
        const place = document.body.appendChild(document.createElement("div"));
        place.id = "busy";
        const before = { at: 0, overview: { workers: idle } };
        lit.render(map.workersMap({ workers }, { at: 1000 }, before, () => {}, ""), place);
        done(place.textContent);
    });"""


def test_figures_of_busy_workers_fit_the_map_on_a_phone(running):
    up, browser = running
    browser.open(f"{up.url}/")
    browser.one("nav a", "Cluster")
    browser.resize(*SIZES["phone"])
    shown = browser.driver.execute_async_script(BUSY_MAP)
    overlapping = browser.overlapping("#busy .small")
    browser.resize(*SIZES["wide"])
    assert "16 run" in shown
    assert overlapping == []


def test_a_hidden_page_asks_nothing(running):
    up, browser = running
    browser.open(f"{up.url}/#/cluster")
    browser.one(".stat", "goodput")
    hide = """
        const seen = { value: arguments[0], configurable: true };
        Object.defineProperty(document, "visibilityState", seen);
        document.dispatchEvent(new Event("visibilitychange"));
        performance.clearResourceTimings();
    """
    asked = "return performance.getEntriesByType('resource').length"
    browser.driver.execute_script(hide, "hidden")
    # Longer than a page that is seen lets pass between two looks.
    wait = "const done = arguments[0]; setTimeout(done, 2500)"
    browser.driver.execute_async_script(wait)
    assert browser.driver.execute_script(asked) == 0
    browser.driver.execute_script(hide, "visible")
    browser.one(".stat", "goodput")


def test_tandem_top_shows_the_same_in_eighty_columns(running):
    up, _ = running
    shown = succeeded(run_tandem("top", "--once", "--url", up.url, own_process=True))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    for worker in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        assert any(line.startswith(worker) for line in lines)
    assert any("goodput" in line for line in lines)
