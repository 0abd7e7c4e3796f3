"""What clients' threads of a process of the shared pool wait for, when it leaves."""

import threading

import pytest

from tandem.facts.fleet import Tier
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.tiers.contract import Found, TierCalls
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.pool.stores import PoolStores
from tandem.live.clock import now_ns
from tandem.live.pool_node import LivePoolCoordinator
from tandem.messages.pool_node import BlocksAsked, FetchHeld
from tests.kv.tier_blocks import FORMAT, contents, names, rows, whole


class SlowStore(HostStore):
    """Reads when it may."""

    def __init__(self) -> None:
        super().__init__(FORMAT, 8, choose_transfer())
        self.may = threading.Event()

    def get_blocks(self, names, rows) -> Found:
        assert self.may.wait(20)
        return super().get_blocks(names, rows)


class Leaving:
    """An inbox whose machine answers this, if anything, and leaves."""

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self.tiers = tiers
        self.coordinator: LivePoolCoordinator | None = None

    def enqueue_threadsafe(self, event) -> None:
        if isinstance(event, BlocksAsked):
            if self.tiers:
                self.coordinator.fetch_held(FetchHeld(event.fetch_id, self.tiers, event.names))
            self.coordinator.close()


@pytest.fixture
def stores():
    store, broken = SlowStore(), threading.Event()
    stores = PoolStores({Tier.HOST: store}, FORMAT, TierCalls(lambda _: None, broken.set, now_ns))
    yield store, stores
    store.may.set()
    stores.stop_stores(20)
    assert not broken.is_set()


def test_nobody_leaves_while_a_store_writes_to_his_rows(stores):
    store, places = stores
    store.put_blocks(names(3), contents(names(3)))
    inbox = Leaving((Tier.HOST,) * 3)
    inbox.coordinator = LivePoolCoordinator(inbox, places)
    threading.Timer(0.05, store.may.set).start()
    room = rows(3)
    assert inbox.coordinator.read_blocks(names(3), room) == 3
    assert whole(names(3), room)


def test_nobody_waits_for_what_is_not_answered_any_more(stores):
    inbox = Leaving(())
    inbox.coordinator = LivePoolCoordinator(inbox, stores[1])
    with pytest.raises(ConnectorError, match="leaving"):
        inbox.coordinator.read_blocks(names(3), rows(3))
    with pytest.raises(ConnectorError, match="leaving"):
        inbox.coordinator.offer_blocks(names(3))
