"""A process of the shared pool: what it makes of its set-up before anything is opened, and what
clients' threads wait for when it leaves."""

import subprocess
import sys
import threading

import pytest

from tandem.config.processes import CurveKeys, PoolNodeSetup
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.tiers.contract import Found, TierCalls
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.pool.stores import PoolStores
from tandem.live.clock import now_ns
from tandem.live.pool_node import LivePoolCoordinator
from tandem.live.processes.shared_pool import place_of, tiers_of
from tandem.messages.pool_node import BlocksAsked, FetchHeld
from tests.config.clusters import node_setup
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


MIB = 1 << 20


def setup(block_bytes=64 << 10, **changes) -> PoolNodeSetup:
    usual = {
        "node": "pool-0",
        "gateways": ("tcp://127.0.0.1:9000",),
        "keys": CurveKeys(gateway_public="", worker_public="", worker_secret=""),
    }
    kept = node_setup(BlockFormat(bytes(16), block_bytes), 256 * MIB, changes)
    return PoolNodeSetup(**{**usual, **kept})


def test_sizes_become_blocks():
    assert tiers_of(setup()).capacities == {Tier.HOST: 4096}
    both = tiers_of(setup(disk="/somewhere", disk_bytes=1024 * MIB))
    assert both.capacities == {Tier.HOST: 4096, Tier.DISK: 16384}
    redis = tiers_of(setup(redis="redis://h:1/0", redis_bytes=MIB))
    assert redis.capacities[Tier.DISK] == 16


@pytest.mark.parametrize("block_kib", [1, 64, 4096])
def test_what_is_on_its_way_takes_a_bounded_part(block_kib):
    config = tiers_of(setup(block_bytes=block_kib << 10))
    slack_bytes = config.limits.slack_blocks * block_kib << 10
    assert slack_bytes <= 256 * MIB * 1.25
    assert slack_bytes >= MIB


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity_bytes": 1000}, "room for none"),
        ({"disk": "/somewhere", "disk_bytes": 1000}, "room for none"),
        ({"disk": "/somewhere", "redis": "redis://h:1/0"}, "exclude each other"),
    ],
)
def test_mistakes_are_told(changes, words):
    with pytest.raises(InvalidConfiguration, match=words):
        tiers_of(setup(**changes))


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("", ("127.0.0.1", 0)),
        ("10.0.0.1", ("10.0.0.1", 0)),
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("[::1]:7000", ("::1", 7000)),
        ("::1", ("::1", 0)),
    ],
)
def test_where_it_listens(listen, place):
    assert place_of(setup(listen=listen)) == place


def test_a_place_that_is_none():
    with pytest.raises(InvalidConfiguration, match="expected address:port"):
        place_of(setup(listen=":7000"))


def test_it_starts_without_torch_and_copies_natively_all_the_same():
    script = (
        "import sys; import tandem.live.processes.shared_pool; "
        "from tandem.kernels.transfer import choose_transfer; "
        "print(choose_transfer().name, 'torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [choose_transfer().name, "False"]
