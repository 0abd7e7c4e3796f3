"""A worker's adapters are loaded from the moment a request with them is heard of."""

import threading

import pytest

from tandem.engine.adapters import AdapterCache
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.request import Request
from tandem.live.processes.adapter_loading import AdapterLoading
from tandem.messages.cluster import NotNeeded
from tandem.messages.node import LeaveRequested, MessageFromGateway
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived
from tests.cluster.ledger_engine import ADAPTERS

PATIENCE_S = 20.0


class Inbox:
    def __init__(self) -> None:
        self.events: list[object] = []
        self.failed = threading.Event()

    def enqueue(self, event, /) -> None:
        self.events.append(event)

    def fail(self, failure: Exception) -> None:
        self.failed.set()


class Loads:
    """What was loaded; what is `missing` cannot be."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.missing: set[str] = set()
        self.broken = False
        self.loaded = threading.Condition()

    def __call__(self, adapter):
        if self.broken:
            raise MemoryError
        with self.loaded:
            self.digests.append(adapter.digest[0])
            self.loaded.notify_all()
        if adapter.digest[0] in self.missing:
            raise InvalidConfiguration("it is not there")
        return Held()

    def wait_for(self, *digests: str) -> None:
        with self.loaded:
            assert self.loaded.wait_for(lambda: self.digests == [*digests], PATIENCE_S)


class Held:
    held_bytes = 1


@pytest.fixture
def parts():
    inbox, loads = Inbox(), Loads()
    loading = AdapterLoading(inbox, AdapterCache(loads, 100))
    loading.start_loading()
    yield inbox, loads, loading
    loading.stop_loading()


def requests(*kinds: int) -> tuple[Request, ...]:
    return tuple(Request(str(kind), (1,), adapter=ADAPTERS[kind]) for kind in kinds)


def test_every_kind_of_arrival_has_its_adapters_loaded_once(parts):
    inbox, loads, loading = parts
    messages = (
        RequestsArrived(requests(0)),
        RequestsArrived(requests(1, 0, 1)),
        PrefillsArrived(requests(1), (0,)),
        ImportsArrived(requests(2), (0,)),
        NotNeeded(),
    )
    events = [*(MessageFromGateway("g", each) for each in messages), LeaveRequested()]
    for event in events:
        loading.enqueue(event)
    assert inbox.events == events
    loads.wait_for("a", "b")


def test_one_that_is_missing_stops_nothing(parts, caplog):
    inbox, loads, loading = parts
    loads.missing = {"a"}
    loading.enqueue(MessageFromGateway("g", RequestsArrived(requests(1, 2))))
    loads.wait_for("a", "b")
    assert not inbox.failed.is_set()
    assert "it is not there" in caplog.text


def test_what_nobody_foresaw_ends_the_worker(parts):
    inbox, loads, loading = parts
    loads.broken = True
    loading.enqueue(MessageFromGateway("g", RequestsArrived(requests(1))))
    assert inbox.failed.wait(PATIENCE_S)
