"""Something that nobody foresaw is raised in a thread that others wait for: it is said, and nobody
waits for ever."""

import logging
import threading
import time
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.contract import ConnectorError, Spans
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp import link, stream
from tandem.kv.connectors.tcp.connector import TcpConnector
from tandem.kv.connectors.tcp.listener import TcpListener
from tandem.kv.connectors.tcp.protocol import Credentials
from tandem.kv.connectors.tcp.stream import TcpLimits, listening_socket
from tandem.kv.region import SharedRegion
from tandem.kv.threads import StepThread, SupervisedThread, WorkerThread
from tandem.kv.tiers.contract import TierCalls
from tandem.kv.tiers.pool.stores import PoolStores
from tandem.kv.transfer.config import TransferCalls, TransferConfig
from tandem.kv.transfer.coordinator import ConnectorWorker
from tandem.live.pool_node import LivePoolCoordinator, PoolInbox
from tests.kv.ending import closing
from tests.kv.pool_coordinator import SECRET, entropy
from tests.kv.tier_blocks import contents, names

END_S = 20.0
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


@pytest.fixture
def region():
    with closing(SharedRegion.create(1 << 16, "attacked")) as shared:
        yield shared


def problems(connector, handle: int, reads: int) -> list[str]:
    """What becomes of so many reads of a hundred bytes from the peer."""
    zero, found = np.zeros(1, np.int64), []
    for _ in range(reads):
        connector.begin_read("peer", Spans(zero, zero, zero + 100), handle)
    while len(found) < reads:
        ended = connector.poll_completions(END_S)
        assert ended, "a handle did not end"
        found += [completion.problem for completion in ended]
    return found


def test_copies_through_shared_memory_fail_all_and_stay_off(region):
    transfer = copy(choose_transfer())
    transfer.copy_spans = explode
    with closing(ShmConnector(transfer)) as connector:
        handle = connector.register_region(region.region, exported=True)
        connector.connect_peer("peer", connector.describe_endpoint())
        for reads in (3, 1):
            assert all("failed" in problem for problem in problems(connector, handle, reads))


def test_a_link_over_tcp_fails_what_waits_and_the_next_one_works(region, monkeypatch):
    with closing(TcpConnector("127.0.0.1", SECRET, entropy=entropy)) as connector:
        region.view[:100] = 7
        handle = connector.register_region(region.region, exported=True)
        own = connector.register_region(region.region, exported=False)
        connector.connect_peer("peer", connector.describe_endpoint())
        with monkeypatch.context() as broken:
            broken.setattr(link.frames, "request", explode)
            assert all("failed" in problem for problem in problems(connector, own, 3))
        assert "failed" in problems(connector, own, 1)[0]
        # A reader connects anew to a peer that failed.
        connector.disconnect_peer("peer")
        connector.connect_peer("peer", connector.describe_endpoint())
        assert problems(connector, handle, 1) == [""]


def test_a_port_whose_thread_dies_refuses_and_tells(monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(TcpListener, "_admit", explode)
    listening = listening_socket("127.0.0.1", 0)
    credentials = Credentials(SECRET, bytes(16))
    listener = TcpListener(
        listening, credentials, explode, entropy=entropy, limits=LIMITS, failed=told.set
    )
    address = stream.PeerAddress("peer", ("127.0.0.1", listener.port), credentials, entropy, LIMITS)
    with pytest.raises(ConnectorError):
        stream.open_stream(address, lambda: "", 1.0)
    assert told.wait(END_S)
    with pytest.raises(ConnectorError, match="cannot be reached"):
        stream.open_stream(address, lambda: "", 1.0)
    listener.close_listener(END_S)


class Exploding:
    """A store, and the connector of a worker thread."""

    name = "exploding"
    put_blocks = get_blocks = forget_blocks = explode

    def register_region(self, region, *, exported):
        return 0

    def describe_endpoint(self):
        return b""

    connect_peer = explode

    def close_connector(self):
        pass


def test_the_worker_thread_of_a_tier_tells_its_owner():
    told = threading.Event()
    worker = StepThread("test", told.set)
    worker.start_worker()
    worker.post(explode)
    assert told.wait(END_S)
    assert worker.join_worker(END_S)
    assert not worker.post(explode)


def test_the_worker_thread_of_a_connector_tells_its_owner():
    told, buffers = threading.Event(), SimpleNamespace(own=None, scratch_region=None)
    calls = TransferCalls(explode, told.set, time.monotonic_ns)
    worker = ConnectorWorker(Exploding(), buffers, TransferConfig(), calls, explode)
    worker.start_worker()
    worker.read_shard(SimpleNamespace(peer="p"), b"")
    assert told.wait(END_S)


def test_a_store_of_the_pool_that_dies_ends_the_process_and_every_wait():
    chain, inbox, told = names(1), PoolInbox(), threading.Event()
    calls = TierCalls(lambda event: None, told.set, time.monotonic_ns)
    stores = PoolStores({Tier.HOST: Exploding()}, BlockFormat(bytes(16), 3_000), calls)
    coordinator, ended = LivePoolCoordinator(inbox, stores), []

    def keep():
        with pytest.raises(ConnectorError, match="failed"):
            coordinator.keep_blocks(chain, contents(chain))
        ended.append(True)

    client = threading.Thread(target=keep)
    client.start()
    assert told.wait(END_S)
    # What the event loop of the process does when it hears of it.
    coordinator.close(failed=True)
    client.join(END_S)
    assert ended


def test_every_supervised_thread_tells_what_was_raised():
    failures = []
    thread = SupervisedThread("test", explode, failures.append)
    thread.start()
    thread.join(END_S)
    assert not thread.alive
    assert [type(failure) for failure in failures] == [Unforeseen]


def test_a_worker_thread_that_fails_hands_over_what_waits_and_refuses_the_rest():
    handed: list[list[str]] = []
    begun, go_on = threading.Event(), threading.Event()

    def work(task: str) -> bool:
        begun.set()
        assert go_on.wait(END_S)
        explode()

    worker = WorkerThread("test", work, failed=lambda _, waiting: handed.append(list(waiting)))
    worker.start_worker()
    assert worker.post("first")
    assert begun.wait(END_S)
    assert worker.post("second") and worker.post("urgent", urgent=True)
    go_on.set()
    assert worker.join_worker(END_S)
    assert handed == [["urgent", "second"]]
    assert isinstance(worker.failure, Unforeseen)
    assert not worker.post("late")
