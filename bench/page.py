"""What the page of a gateway costs by the number of its workers: how soon it is drawn, and what
each look of an open page takes of the gateway.

python bench/page.py [--workers 64] [--repetitions 20]

Behind the real application is a scripted gateway: a quarter of an hour of requests in every bin,
workers with three tiers each, and KV that moves between them. The browser is Chromium, without a
window; the time is from the navigation to the first frame in which all workers stand.
"""

import asyncio
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, cast

import httpx2
import msgspec
import typer
import uvicorn
from selenium import webdriver

from figures import Figure, show
from metrics import a_cluster
from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.overview import Overview, RequestDetail, RequestLine
from tandem.facts.serving import Generator, ModelCard
from tandem.live.gateway.overview import gateway_overview
from tandem.messages.gateway import ClusterStatus
from tandem.observe.cluster_metrics import GatewayMetrics
from tandem.observe.timeline import added_up
from tandem.text.model import TextModel

POLL_S = 2.0
GOAL_DRAWN_S, GOAL_COST = 1.0, 0.02
BINS, REQUESTS_A_BIN = 180, 50
# Sets the instant of the first frame that shows everything.
WATCH = """
const look = () => {
  if (document.querySelectorAll(".map a").length === %d) window.drawnMs = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
WAIT = """
const done = arguments[0];
const look = () => window.drawnMs ? done(window.drawnMs) : requestAnimationFrame(look);
look();
"""


class ScriptedGateway:
    """Generates nothing; its overview is that of a large cluster."""

    card = ModelCard(("tiny",), 4096, 32_000, (), 0)
    failed = False
    ready = True
    model_identity = None

    def __init__(self, workers: int) -> None:
        self._status = _with_flows(a_cluster(workers, ("acme", "hobby")))
        self._metrics = GatewayMetrics("tiny")
        self._now_ns = 1_000 * self._metrics.requests.timeline.bin_ns
        self._fill()

    def _fill(self) -> None:
        timeline = self._metrics.requests.timeline
        first_ns = self._now_ns - BINS * timeline.bin_ns
        for number in range(BINS):
            counted = timeline.at(first_ns + number * timeline.bin_ns)
            for place in range(REQUESTS_A_BIN):
                counted.begin((50 + place * 7) * 1_000_000, 500, 300)
                counted.finish((5 + place % 9) * 1_000_000, kept=place % 10 > 0)
                counted.itl.add((1 + place) * 1_000_000)
            counted.output_tokens += 9_000
            counted.reject("admission")

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        del account
        timeline = self._metrics.requests.timeline
        seen = gateway_overview(
            "tiny",
            self._status,
            timeline,
            (),
            (),
            queues=(),
            now_ns=self._now_ns,
        )
        bins = added_up(timeline.since(since_bin, self._now_ns), ())
        return msgspec.structs.replace(seen, bins=tuple(bins))

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        del account, most
        return []

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        del account, name
        return []


def _with_flows(status: ClusterStatus) -> ClusterStatus:
    """Each decode worker has read from four prefill workers."""
    sources = [each.worker for each in status.workers if each.role.prefills]
    workers = tuple(
        msgspec.structs.replace(
            each, read_from=tuple((sources[(place + n) % len(sources)], 1 << 24) for n in range(4))
        )
        if not each.role.prefills
        else each
        for place, each in enumerate(status.workers)
    )
    return msgspec.structs.replace(status, workers=workers)


@contextmanager
def serving(gateway: ScriptedGateway) -> Iterator[str]:
    text = TextModel.load(BUNDLED_MODEL)
    app = build_app(cast(Generator, gateway), text, ApiConfig(), observed=gateway)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def looks(url: str, query: str, repetitions: int) -> tuple[list[float], int]:
    """Milliseconds of each call, and the bytes of its answer."""
    with httpx2.Client(base_url=url, timeout=30) as client:
        durations = []
        for _ in range(repetitions + 3):
            began = time.perf_counter()
            answer = client.get(f"/tandem/overview{query}")
            durations.append((time.perf_counter() - began) * 1e3)
        return durations[3:], len(answer.content)


def drawn(url: str, workers: int, repetitions: int) -> list[float]:
    """Seconds from the navigation to the first whole frame."""
    found = []
    driver = chromium()
    try:
        source = {"source": WATCH % workers}
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
        for _ in range(repetitions):
            # Another fragment alone would keep the document.
            driver.get("about:blank")
            driver.get(f"{url}/#/cluster")
            found.append(float(driver.execute_async_script(WAIT)) / 1e3)
    finally:
        driver.quit()
    return found


def chromium() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def _figure(name: str, measured: list[float], unit: str, goal: str = "") -> Figure:
    quartiles = statistics.quantiles(measured, n=4)
    spread = (quartiles[2] - quartiles[0]) / 2
    return Figure(name, statistics.median(measured), unit, spread, goal=goal)


def main(
    workers: Annotated[int, typer.Option(min=1)] = 64,
    repetitions: Annotated[int, typer.Option(min=2)] = 20,
) -> None:
    gateway = ScriptedGateway(workers)
    newest = asyncio.run(gateway.overview(None)).current_bin
    with serving(gateway) as url:
        first, first_bytes = looks(url, "", repetitions)
        later, later_bytes = looks(url, f"?since={newest - 1}", repetitions)
        frames = drawn(url, workers, max(3, repetitions // 4))
    cost = statistics.median(later) / 1e3 / POLL_S
    show(
        [
            _figure(f"drawn, {workers} workers", frames, "s", goal=f"at most {GOAL_DRAWN_S:g}"),
            _figure(f"first look, {first_bytes / 1e3:.0f} kB", first, "ms"),
            _figure(f"each look after it, {later_bytes / 1e3:.0f} kB", later, "ms"),
            Figure(
                "share of one core that an open page takes",
                cost,
                "",
                goal=f"at most {GOAL_COST:g}",
            ),
        ],
        f"the page of a gateway with {workers} workers",
    )


if __name__ == "__main__":
    typer.run(main)
