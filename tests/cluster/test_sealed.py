"""A worker tells of each block that became full, under which version and name, if asked to."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.messages.worker import BlocksCommitted, ReportBlocks, RequestsArrived
from tests.cluster.ledger_engine import keys_of
from tests.cluster.world import World, configs, requests


@settings(max_examples=60, deadline=None)
@given(
    configs(prefix_caching=True, reports_committed=True),
    st.lists(requests(), min_size=1, max_size=6),
)
def test_what_is_told_to_be_full_is_exactly_what_the_cache_gains(config, wanted):
    world = World.of(config)
    told: dict[bytes, int] = {}
    numbered = [replace(one, request_id=str(n)) for n, one in enumerate(wanted)]
    world.tell(RequestsArrived(tuple(replace(one, tenant="t") for one in numbered)))
    while world.landing:
        world.land()
        kinds = [type(effect) for effect in world.effects]
        sealed = [effect for effect in world.effects if isinstance(effect, BlocksCommitted)]
        stored = [
            digest
            for effect in world.effects
            if isinstance(effect, ReportBlocks)
            for digest in effect.changes.stored
        ]
        if sealed:
            assert kinds.index(BlocksCommitted) < kinds.index(ReportBlocks)
        names = [name for each in sealed for name in each.names]
        assert set(stored) <= {name.digest for name in names}
        for each in sealed:
            for block, version, name in zip(each.blocks, each.versions, each.names, strict=True):
                assert name.tenant == "t"
                told[name.digest] = block
                current = world.machine.sequences.pool.versions[block] == version
                if current:
                    keys = world.engine.kv[block]
                    assert keys == keys_of(keys[-1])[-config.block_size :]
    assert world.cached_hashes <= told.keys()
