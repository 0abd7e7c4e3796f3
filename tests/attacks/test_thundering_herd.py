"""Many who fail at one instant do not come back at one instant; and what is drawn for it comes from
outside, so that it can be replayed."""

import asyncio

from tandem.api import errors as refusal
from tandem.facts.backoff import longest, retry_after, spread
from tandem.facts.errors import Overloaded
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.kv.tiers.redis_client import Breaker
from tandem.live.channels.keys import make_pair
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import NodeKeys
from tandem.live.launching.supervisor import RestartConfig, Restarts
from tests.kv.pool_coordinator import SECRET, TRANSFER, entropy
from tests.kv.tier_blocks import FORMAT, contents, names

NS = 1_000_000_000
DRAWS = [index / 50 for index in range(50)]


def test_waits_are_spread_over_half_of_them():
    waits = [spread(8.0, chance) for chance in DRAWS]
    assert len(set(waits)) == 50
    assert min(waits) == 4.0
    assert max(waits) < spread(8.0, longest()) == 8.0


def test_clients_of_a_busy_server_are_told_unlike_seconds(monkeypatch):
    for wait_s, fewest in ((0.2, 2), (1.0, 2), (8.0, 3), (60.0, 16)):
        told = [int(retry_after(wait_s, chance)) for chance in [*DRAWS, 1.0]]
        assert len(set(told)) >= fewest
        # Nobody is told to come before there can be room.
        assert min(told) == max(1, round(wait_s))
        assert max(told) <= 1.25 * wait_s + 1.8
    draws = iter(DRAWS)
    monkeypatch.setattr(refusal, "fresh_chance", lambda: next(draws))
    answers = {
        refusal.refusal_of(Overloaded("busy", 20.0)).headers["Retry-After"] for _ in range(50)
    }
    assert answers == {str(seconds) for seconds in range(20, 26)}


def test_processes_start_again_at_unlike_times():
    books = [Restarts(RestartConfig(4.0, 30.0)) for _ in DRAWS]
    delays = [
        book.delay_s("w", 1, 0.0, chance=chance) for book, chance in zip(books, DRAWS, strict=True)
    ]
    assert len(set(delays)) == 50
    assert all(2.0 <= delay <= 4.0 for delay in delays)


def test_a_redis_that_was_away_is_asked_at_unlike_times():
    again = []
    for chance in DRAWS:
        breaker = Breaker(8.0, 30.0, chance=lambda chance=chance: chance)
        breaker.failed("away", 0)
        again.append(next(ms for ms in range(9_000) if not breaker.open(ms * 1_000_000)))
    assert len(set(again)) == 50
    assert min(again) == 4_000


def test_a_process_of_the_pool_that_failed_is_tried_at_unlike_times():
    chain, again = names(1), []
    for chance in DRAWS[::10]:
        clock = [0]
        terms = PoolClientTerms(
            FORMAT,
            SECRET,
            SECRET,
            TRANSFER,
            entropy,
            lambda clock=clock: clock[0],
            retry_s=8.0,
            chance=lambda chance=chance: chance,
        )
        client = PoolClient(terms)
        # Nobody listens there.
        client.connect_pool_node("pool-0", "1", "127.0.0.1:1")
        assert "reached" in client.put_blocks(chain, contents(chain)).problem
        while "is to be reached" in client.put_blocks(chain, contents(chain)).problem:
            clock[0] += NS // 10
        again.append(clock[0] / NS)
        client.close_store()
    assert again == sorted(set(again))
    assert again[0] == 4.0


async def test_workers_that_lost_a_gateway_connect_again_at_unlike_times(monkeypatch):
    delays = []
    for chance in (0.0, 0.5, 1.0):
        gateways, workers = make_pair(), make_pair()
        channel = NodeChannel(
            "tcp://127.0.0.1:1",
            "w/1",
            NodeKeys(workers, gateways.public),
            on_news=lambda _: None,
            refused=lambda reason: None,
            chance=lambda chance=chance: chance,
        )
        tried = asyncio.Event()

        def after(delay_s, then, channel=channel, tried=tried):
            if then == channel._connect:
                delays.append(delay_s)
                tried.set()

        monkeypatch.setattr(channel, "_after", after)
        channel.open()
        async with asyncio.timeout(20):
            await tried.wait()
        await channel.close(0.0)
    assert delays == [spread(0.1, chance) for chance in (0.0, 0.5, 1.0)]
