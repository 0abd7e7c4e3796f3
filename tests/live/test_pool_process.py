"""What a process of the shared pool makes of its set-up, before anything is opened."""

import subprocess
import sys

import pytest

from tandem.config.processes import CurveKeys, PoolNodeSetup
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.live.processes.shared_pool import place_of, tiers_of
from tests.config.clusters import node_setup

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
