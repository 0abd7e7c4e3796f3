"""Something that nobody foresaw is raised in a thread that others wait for: it is said, and nobody
waits for ever."""

import logging
import threading
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockFormat
from tandem.kernels.transfer.choose import choose_transfer
from tandem.kv.connector import ConnectorError, Spans
from tandem.kv.connectors import tcp_link
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp import TcpConnector
from tandem.kv.connectors.tcp_door import TcpDoor, TcpLimits, listening_socket
from tandem.kv.connectors.tcp_frames import Credentials
from tandem.kv.mover_config import MoverConfig
from tandem.kv.mover_lane import Lane as MoverLane
from tandem.kv.mover_lane import LaneCalls
from tandem.kv.region import SharedRegion
from tandem.kv.threads import SupervisedThread
from tandem.kv.tiers.engine_config import TierCalls
from tandem.kv.tiers.lane import Lane
from tandem.kv.tiers.pool_stores import PoolStores
from tandem.live.shared_pool import Desk, PoolInbox
from tests.kv.pool_desk import SECRET, entropy
from tests.kv.tier_blocks import contents, names

END_S = 20.0
BYTES = 1 << 16
LIMITS = TcpLimits(connect_s=0.1)


class Unforeseen(Exception):
    pass


def explode(*_args, **_kwargs):
    raise Unforeseen("nobody thought of it")


@pytest.fixture(autouse=True)
def said(caplog):
    """Every death has its traceback in the log."""
    caplog.set_level(logging.ERROR, "tandem.kv.threads")
    yield
    assert [record.exc_info[0] for record in caplog.get_records("call")] == [Unforeseen]


def spans(length: int = 100) -> Spans:
    zero = np.zeros(1, np.int64)
    return Spans(zero, zero, np.full(1, length, np.int64))


def problems(connector, count: int) -> list[str]:
    found = []
    while len(found) < count:
        ended = connector.poll(END_S)
        assert ended, "a ticket did not end"
        found += [completion.problem for completion in ended]
    return found


def test_copies_through_shared_memory_fail_all_and_stay_off():
    transfer = replace(choose_transfer(), copy_spans=explode)
    with (
        closing(SharedRegion.create(BYTES, "attacked")) as region,
        closing(ShmConnector(transfer)) as connector,
    ):
        handle = connector.register(region.region, exported=True)
        connector.connect("peer", connector.describe())
        for _ in range(3):
            connector.read("peer", spans(), handle)
        assert all("failed" in problem for problem in problems(connector, 3))
        connector.read("peer", spans(), handle)
        assert all("failed" in problem for problem in problems(connector, 1))


def test_a_link_over_tcp_fails_what_waits_and_the_next_one_works(monkeypatch):
    with (
        closing(SharedRegion.create(BYTES, "attacked")) as region,
        closing(TcpConnector("127.0.0.1", SECRET, entropy=entropy)) as connector,
    ):
        region.view[:100] = 7
        handle = connector.register(region.region, exported=True)
        own = connector.register(region.region, exported=False)
        connector.connect("peer", connector.describe())
        with monkeypatch.context() as broken:
            broken.setattr(tcp_link.frames, "request", explode)
            for _ in range(3):
                connector.read("peer", spans(), own)
            assert all("failed" in problem for problem in problems(connector, 3))
        connector.read("peer", spans(), own)
        assert "failed" in problems(connector, 1)[0]
        # The mover connects anew to a peer that failed.
        connector.disconnect("peer")
        connector.connect("peer", connector.describe())
        connector.read("peer", spans(), handle)
        assert problems(connector, 1) == [""]


def test_a_port_whose_thread_dies_refuses_and_tells(monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(TcpDoor, "_welcome", explode)
    listening = listening_socket("127.0.0.1", 0)
    credentials = Credentials(SECRET, bytes(16))
    door = TcpDoor(listening, credentials, explode, entropy=entropy, limits=LIMITS, failed=told.set)
    way = tcp_link.Way("peer", ("127.0.0.1", door.port), credentials, entropy, LIMITS)
    with pytest.raises(ConnectorError):
        tcp_link.connected(way, lambda: "", 1.0)
    assert told.wait(END_S)
    with pytest.raises(ConnectorError, match="cannot be reached"):
        tcp_link.connected(way, lambda: "", 1.0)
    door.close(END_S)


class Exploding:
    """A store, and the connector of a lane."""

    name = "exploding"
    put = get = forget = explode

    def register(self, region, *, exported):
        return 0

    def describe(self):
        return b""

    connect = explode

    def close(self):
        pass


def test_the_lane_of_a_tier_tells_its_owner():
    told = threading.Event()
    lane = Lane("test", told.set)
    lane.start()
    lane.post(explode)
    assert told.wait(END_S)
    assert lane.join(END_S)


def test_a_lane_of_the_mover_tells_its_owner():
    told, place = threading.Event(), type("Place", (), {"own": None, "scratch_region": None})()
    calls = LaneCalls(explode, told.set, time.monotonic_ns)
    lane = MoverLane(Exploding(), place, MoverConfig(), calls)
    lane.start()
    lane.read(type("Part", (), {"peer": "p"})(), b"")
    assert told.wait(END_S)


def test_a_store_of_the_pool_that_dies_ends_the_process_and_every_wait():
    chain, inbox, told = names(1), PoolInbox(), threading.Event()
    calls = TierCalls(lambda event: None, told.set, time.monotonic_ns)
    stores = PoolStores({Tier.HOST: Exploding()}, BlockFormat(bytes(16), 3_000), calls)
    desk, ended = Desk(inbox, stores), []

    def keep():
        with pytest.raises(ConnectorError, match="failed"):
            desk.keep(chain, contents(chain))
        ended.append(True)

    client = threading.Thread(target=keep)
    client.start()
    assert told.wait(END_S)
    # What the event loop of the process does when it hears of it.
    desk.close(failed=True)
    client.join(END_S)
    assert ended


def test_every_supervised_thread_tells_what_was_raised():
    failures = []
    thread = SupervisedThread("test", explode, failures.append)
    thread.start()
    thread.join(END_S)
    assert not thread.alive
    assert [type(failure) for failure in failures] == [Unforeseen]
