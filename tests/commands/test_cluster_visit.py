"""What is done with a cluster in its own process: it ends with the cluster, and the cluster with
it."""

import asyncio

import pytest

from tandem.commands.cluster_screen import Visit, ending_text, until_visited
from tandem.facts.errors import TandemError


def visited(visit: Visit, *, stop_first: bool = False) -> bool:
    """Whether the cluster is to stop then."""

    async def run() -> bool:
        stop = asyncio.Event()
        async with asyncio.timeout(10):
            visiting = asyncio.ensure_future(until_visited(visit, stop))
            await asyncio.sleep(0)
            if stop_first:
                stop.set()
            await visiting
        return stop.is_set()

    return asyncio.run(run())


def test_a_cluster_stops_when_its_visit_is_done():
    async def visit() -> None:
        await asyncio.sleep(0)

    assert visited(visit)


def test_a_visit_is_broken_off_when_its_cluster_stops():
    left = []

    async def visit() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.append(True)

    assert visited(visit, stop_first=True)
    assert left


def test_what_a_visit_raises_is_raised_and_the_cluster_stops():
    stop = asyncio.Event()

    async def visit() -> None:
        raise TandemError("nothing is served")

    with pytest.raises(TandemError, match="nothing is served"):
        asyncio.run(until_visited(visit, stop))
    assert stop.is_set()


def test_what_is_not_known_to_be_under_way_is_not_said_to_be_nothing():
    assert ending_text(0, 10) == "ending: no request is under way"
    assert "waiting for 1 request under way" in ending_text(1, 10)
    unknown = ending_text(None, 10)
    assert "no request" not in unknown
    assert "10 s at most" in unknown
