"""A worker with slower tiers: write-through, fetches, prefetch and reports."""

from dataclasses import replace

import pytest
from msgspec import structs

from tandem.cluster.node.fetches import Fetches, Wanted, prefetch_of
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.worker.machine import WorkerMachine
from tandem.cluster.worker.prefetches import DEVICE_PART
from tandem.facts.blocks import extend_chain
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.facts.request import Request, session_key
from tandem.messages.cluster import (
    FetchKv,
    ListBlocks,
    MoveEnded,
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    PrefixCacheEmptied,
    StopMove,
    TiersReported,
)
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    ConnectPoolNode,
    CopyBlocks,
    DropStaged,
    EndFetch,
    FetchBlocks,
    ForgetBlocks,
    ForgetPoolNode,
    GatewayGone,
    KeepStaged,
    StageBlocks,
)
from tandem.messages.router import BlocksListed, BlocksReported, ImportReported
from tandem.messages.worker import (
    ImportDone,
    PrefixCacheReset,
    RequestsAborted,
    RequestsArrived,
    SessionPaused,
    SessionReturning,
)
from tests.cluster.cluster_parts import (
    MS,
    TERMS,
    NodeUnderTest,
    of_kind,
    register,
    request,
    sent_to,
)

HOST, DISK, REMOTE = Tier.HOST, Tier.DISK, Tier.REMOTE
POOL = PoolNodeJoined("pool-0", "1", "h:1")


def worker_with(*gateways: str, block_count: int = 30, **config) -> NodeUnderTest:
    """A worker that has host memory, and a disk where it is given one."""
    node = NodeUnderTest(reports_committed=True, block_count=block_count)
    tiers = TiersConfig(
        config.pop("capacities", {HOST: 20, DISK: 20}),
        remote=True,
        limits=TierLimits(**config.pop("limits", {})),
        **config,
    )
    worker = WorkerMachine(node.machine.work.machine.config)
    node.machine = NodeMachine(NodeConfig(register("w"), tiers), worker)
    for gateway in gateways:
        connect(node, gateway)
    return node


def connect(node: NodeUnderTest, gateway: str) -> list:
    node.machine.gateways.connect(gateway)
    return node.receive(gateway, TERMS)


def compute(node: NodeUnderTest, request_id: str = "r", tokens: int = 9) -> list:
    """A request is computed and has its answer. Gives all effects of that."""
    effects = node.receive("g", RequestsArrived((request(request_id, tokens),)))
    effects += node.land_all()
    return effects


def one(effects: list, kind: type):
    (found,) = of_kind(effects, kind)
    return found


def write_through(node: NodeUnderTest, effects: list) -> None:
    """Whatever is staged is kept wherever it is wanted."""
    for stage in of_kind(effects, StageBlocks):
        staged = node.handle(BlocksStaged(stage.copy_id, staged=True))
        for keep in of_kind(staged, KeepStaged):
            digests = tuple(name.digest for name in keep.names)
            node.handle(BlocksKept(keep.copy_id, keep.tier, digests))


def lose_device(node: NodeUnderTest) -> None:
    """Another long request takes all blocks, so that nothing of the others is on the device."""
    other = replace(request("other", 62, 1), prompt_tokens=tuple(range(30, 92)))
    effects = node.receive("g", RequestsArrived((other,)))
    effects += node.land_all()
    write_through(node, effects)


def import_again(node: NodeUnderTest, tokens: int = 8) -> ImportReported:
    """The same prompt comes again, and `tokens` of it can be had elsewhere."""
    effects = node.receive("g", RequestsArrived((request("again"),), (tokens,)))
    return one(sent_to(effects, "g"), ImportReported)


def ready_to_fetch(**config) -> NodeUnderTest:
    """The first two blocks of a prompt lie in the host memory, and only there."""
    node = worker_with("g", block_count=16, **config)
    write_through(node, compute(node))
    lose_device(node)
    return node


def test_full_blocks_are_staged_kept_and_reported():
    node = worker_with("g")
    effects = compute(node)
    stage = one(effects, StageBlocks)
    assert len(stage.blocks) == 2
    staged = node.handle(BlocksStaged(stage.copy_id, staged=True))
    keep = one(staged, KeepStaged)
    assert (keep.tier, keep.rows) == (HOST, (0, 1))
    assert keep.names[0] == BlockName(
        keep.names[0].digest, node.machine.registration.root.hash(""), keep.names[0].digest
    )
    assert keep.names[1].parent == keep.names[1].first == keep.names[0].digest
    digests = tuple(name.digest for name in keep.names)
    effects = node.handle(BlocksKept(keep.copy_id, HOST, digests))
    report = one(sent_to(effects, "g"), BlocksReported)
    assert (report.tier, set(report.changes.stored)) == (HOST, set(digests))
    assert DropStaged(keep.copy_id) in effects
    listed = one(sent_to(node.receive("g", ListBlocks(HOST)), "g"), BlocksListed)
    assert set(listed.hashes) == set(digests)
    assert listed.next_sequence_number == 1


def test_a_reset_empties_the_device_and_slower_tiers_if_that_is_wanted():
    node = worker_with("g")
    node.receive("g", POOL)
    write_through(node, compute(node))
    effects = node.receive("g", PrefixCacheReset())
    (removed, emptied) = sent_to(effects, "g")
    assert (removed.tier, len(removed.changes.removed)) == (Tier.DEVICE, 2)
    assert emptied == PrefixCacheEmptied("w")
    # The memory has it still, and gets it no second time.
    again = compute(node, "again")
    assert len(one(again, StageBlocks).blocks) == 2, "for the pool, which may have lost it"
    effects = node.receive("g", PrefixCacheReset(external=True))
    removed = [(each.tier, len(each.changes.removed)) for each in sent_to(effects, "g")[:-1]]
    assert removed == [(Tier.DEVICE, 2), (HOST, 2)]
    assert len(one(effects, ForgetBlocks).digests) == 2
    # What was staged by then is not written any more.
    late = node.handle(BlocksStaged(one(again, StageBlocks).copy_id, staged=True))
    assert not of_kind(late, KeepStaged)
    assert len(one(late, DropStaged).__struct_fields__) == 1
    node.machine.audit()
    keep = node.handle(BlocksStaged(one(compute(node, "third"), StageBlocks).copy_id, staged=True))
    assert {each.tier for each in of_kind(keep, KeepStaged)} == {HOST, REMOTE}


def test_what_was_overwritten_while_it_was_staged_is_not_kept():
    node = worker_with("g", block_count=16)
    stage = one(compute(node), StageBlocks)
    versions = node.machine.work.machine.sequences.pool.versions
    versions[stage.blocks[0]] += 1
    keep = one(node.handle(BlocksStaged(stage.copy_id, staged=True)), KeepStaged)
    assert keep.rows == (1,)
    node.handle(BlocksKept(keep.copy_id, HOST, (keep.names[0].digest,)))
    assert node.machine.tiers.writing.dropped_blocks == 1


def test_the_pool_is_offered_what_is_full_while_it_is_there():
    node = worker_with("g")
    assert one(node.receive("g", POOL), ConnectPoolNode).address == "h:1"
    stage = one(compute(node), StageBlocks)
    staged = node.handle(BlocksStaged(stage.copy_id, staged=True))
    assert [keep.tier for keep in of_kind(staged, KeepStaged)] == [HOST, REMOTE]
    effects = node.handle(BlocksKept(stage.copy_id, HOST, ()))
    assert not of_kind(effects, DropStaged)
    effects = node.handle(BlocksKept(stage.copy_id, REMOTE, ()))
    assert one(effects, DropStaged) == DropStaged(stage.copy_id)
    assert not sent_to(effects, "g", BlocksReported), "the pool speaks for itself"


def test_a_fetch_fills_reserved_blocks_from_the_fastest_tier():
    node = ready_to_fetch()
    wanted = import_again(node).wanted
    fetch = one(node.receive("g", FetchKv(7, "again", DISK, 0, 8)), FetchBlocks)
    assert fetch.tiers == (HOST, HOST)
    assert fetch.target_blocks == wanted.blocks[:2]
    effects = node.handle(BlocksFetched(fetch.fetch_id, 2, 128, 0.01))
    ended = one(sent_to(effects, "g"), MoveEnded)
    assert ended.transfer_id == 7
    assert (ended.report.arrived, ended.report.tokens) == (True, 8)
    assert ended.report.connector == "host"
    node.receive("g", ImportDone("again", 8))
    (plan,) = node.plans
    assert list(plan.starts) == [8], "only the last token is computed"


def test_the_part_that_came_counts_and_the_corrupt_is_dropped():
    node = ready_to_fetch()
    import_again(node)
    fetch = one(node.receive("g", FetchKv(7, "again", HOST, 0, 8)), FetchBlocks)
    corrupt = fetch.names[1].digest
    effects = node.handle(BlocksFetched(fetch.fetch_id, 1, 64, 0.01, corrupt=(corrupt,)))
    report = one(sent_to(effects, "g"), MoveEnded).report
    assert (report.arrived, report.tokens) == (False, 4)
    assert ForgetBlocks(HOST, (corrupt,)) in effects
    assert one(sent_to(effects, "g"), BlocksReported).changes.removed == (corrupt,)
    node.receive("g", ImportDone("again", 4))
    assert list(node.plans[0].starts) == [4]
    (figures, *_) = node.machine.tiers.figures(node.now_ns).tiers
    assert (figures.fetched_blocks, figures.corrupt_blocks) == (1, 1)


def test_no_block_is_given_back_while_a_fetch_may_write_to_it():
    node = ready_to_fetch()
    import_again(node)
    pool = node.machine.work.machine.sequences.pool
    fetch = one(node.receive("g", FetchKv(7, "again", HOST, 0, 8)), FetchBlocks)
    effects = node.receive("g", RequestsAborted(("again",)))
    assert EndFetch(fetch.fetch_id) in effects
    assert pool.free_blocks < pool.block_count
    node.handle(BlocksFetched(fetch.fetch_id, 0))
    assert pool.free_blocks == pool.block_count


def test_fetches_that_were_not_wanted_any_more_are_no_failures_of_the_tier():
    node = ready_to_fetch()
    for number in range(5):
        import_again(node)
        fetch = one(node.receive("g", FetchKv(number, "again", HOST, 0, 8)), FetchBlocks)
        node.receive("g", RequestsAborted(("again",)))
        node.handle(BlocksFetched(fetch.fetch_id, 0, problem="stopped"))
    assert not node.machine.tiers.fetches.ids()
    (host, *_) = node.machine.tiers.figures(node.now_ns).tiers
    assert (host.on, host.failures) == (True, 0)


def test_a_gateway_that_goes_leaves_no_fetch_behind():
    node = ready_to_fetch()
    import_again(node)
    fetch = one(node.receive("g", FetchKv(7, "again", HOST, 0, 8)), FetchBlocks)
    assert EndFetch(fetch.fetch_id) in node.handle(GatewayGone("g"))
    effects = node.handle(BlocksFetched(fetch.fetch_id, 2))
    assert not sent_to(effects, "g", MoveEnded)
    assert node.machine.work.idle


def test_orders_that_make_no_sense_are_refused():
    node = ready_to_fetch()
    import_again(node)
    for order in (
        FetchKv(1, "nobody", HOST, 0, 8),
        FetchKv(2, "again", HOST, 0, 400),
        FetchKv(3, "again", HOST, 2, 8),
    ):
        ended = one(sent_to(node.receive("g", order), "g"), MoveEnded)
        assert ended.transfer_id == order.transfer_id
        assert not ended.report.arrived
    plain = NodeUnderTest("g")
    plain.receive("g", RequestsArrived((request("r"),), (8,)))
    ended = one(sent_to(plain.receive("g", FetchKv(1, "r", HOST, 0, 8)), "g"), MoveEnded)
    assert ended.report.problem == "this worker has no slower tiers"


def test_what_no_tier_has_ends_at_once():
    node = worker_with("g")
    node.receive("g", RequestsArrived((request("r"),), (8,)))
    ended = one(sent_to(node.receive("g", FetchKv(1, "r", REMOTE, 0, 8)), "g"), MoveEnded)
    assert (ended.report.arrived, ended.report.tokens) == (False, 0)
    node.receive("g", ImportDone("r", 0))
    assert node.plans, "it is computed"


def busy_with_disk() -> tuple[NodeUnderTest, CopyBlocks]:
    """All slots are taken while a prompt comes whose blocks lie on the disk."""
    node = worker_with("g", found=_names(2))
    for index in range(4):
        busy = replace(request(f"b{index}", 20, 30), prompt_tokens=(90 + index,) * 20)
        node.receive("g", RequestsArrived((busy,)))
    effects = node.receive("g", RequestsArrived((request("again"),), (8,)))
    return node, one(effects, CopyBlocks)


def _names(blocks: int) -> tuple[BlockName, ...]:
    node = worker_with("g")
    stage = one(compute(node), StageBlocks)
    staged = node.handle(BlocksStaged(stage.copy_id, staged=True))
    return one(staged, KeepStaged).names[:blocks]


def test_blocks_of_a_waiting_request_come_up_meanwhile():
    node, copy = busy_with_disk()
    assert (copy.source, copy.target) == (DISK, HOST)
    assert copy.names == _names(2)
    digests = tuple(name.digest for name in copy.names)
    effects = node.handle(BlocksKept(copy.copy_id, HOST, digests))
    report = one(sent_to(effects, "g"), BlocksReported)
    assert (report.tier, set(report.changes.stored)) == (HOST, set(digests))


def test_what_does_not_come_up_is_the_fault_of_where_it_comes_from():
    node, copy = busy_with_disk()
    node.handle(BlocksKept(copy.copy_id, HOST, (), "cannot read"))
    host, disk, _ = node.machine.tiers.figures(node.now_ns).tiers
    assert (host.failures, disk.failures) == (0, 1)
    for _ in range(2):
        node.machine.tiers.benefit.failed(DISK, "cannot read", node.now_ns)
    host, disk, _ = node.machine.tiers.figures(node.now_ns).tiers
    assert (host.on, disk.on) == (True, False)


def test_a_fetch_waits_for_what_is_on_its_way_up():
    node, copy = busy_with_disk()
    node.receive("g", RequestsAborted(("b0", "b1", "b2", "b3")))
    node.land_all()
    assert not of_kind(node.receive("g", FetchKv(7, "again", DISK, 0, 8)), FetchBlocks)
    digests = tuple(name.digest for name in copy.names)
    effects = node.handle(BlocksKept(copy.copy_id, HOST, digests))
    assert one(effects, FetchBlocks).tiers == (HOST, HOST)


def test_a_fetch_that_waits_is_stopped_at_once():
    node, _ = busy_with_disk()
    node.receive("g", RequestsAborted(("b0", "b1", "b2", "b3")))
    node.land_all()
    node.receive("g", FetchKv(7, "again", DISK, 0, 8))
    effects = node.receive("g", StopMove(7))
    assert not of_kind(effects, EndFetch)
    assert one(sent_to(effects, "g"), MoveEnded).transfer_id == 7


def test_what_the_disk_held_is_listed_to_gateways_that_register_the_worker():
    names = _names(2)
    node = worker_with(found=names)
    messages = sent_to(connect(node, "g"), "g")
    listed = {each.tier: each for each in of_kind(messages, BlocksListed)}
    assert set(listed) == {Tier.DEVICE, HOST, DISK}
    assert set(listed[DISK].hashes) == {name.digest for name in names}
    tiers = one(messages, TiersReported).tiers
    assert [(each.tier, each.blocks) for each in tiers] == [(HOST, 0), (DISK, 2), (REMOTE, 0)]
    assert tiers[2].reason == "no process of the pool is there"


def test_figures_are_reported_with_the_load_when_they_changed():
    node = worker_with("g")
    assert not sent_to(node.keep_alive(250 * MS, "g"), "g", TiersReported)
    write_through(node, compute(node))
    reports = sent_to(node.keep_alive(250 * MS, "g"), "g", TiersReported)
    assert [report.tiers[0].stored_blocks for report in reports] == [2]


def test_a_pool_process_is_there_as_long_as_a_gateway_reports_it():
    node = worker_with("g", "h")
    assert of_kind(node.receive("g", POOL), ConnectPoolNode)
    assert not of_kind(node.receive("h", POOL), ConnectPoolNode)
    assert not of_kind(node.receive("g", PoolNodeGone("pool-0", "1")), ForgetPoolNode)
    effects = node.receive("h", structs.replace(POOL, incarnation="2", address="h:2"))
    assert of_kind(effects, ForgetPoolNode) == [ForgetPoolNode("pool-0", "1")]
    assert of_kind(effects, ConnectPoolNode) == [ConnectPoolNode("pool-0", "2", "h:2")]
    assert not of_kind(node.receive("h", PoolNodeGone("pool-0", "1")), ForgetPoolNode)
    assert of_kind(node.handle(GatewayGone("h")), ForgetPoolNode) == [ForgetPoolNode("pool-0", "2")]
    assert not node.machine.tiers.shared.there


def test_an_outdated_gateway_reports_the_old_start_only_until_it_learns():
    node = worker_with("g", "h")
    new = structs.replace(POOL, incarnation="2")
    node.receive("h", POOL)
    node.receive("g", new)
    effects = node.receive("g", PoolNodeGone("pool-0", "2"))
    assert of_kind(effects, ConnectPoolNode) == [ConnectPoolNode("pool-0", "1", "h:1")]


def test_pinned_blocks_outlive_what_comes_after_them():
    node = worker_with("g", capacities={HOST: 4})
    write_through(node, compute(node))
    cache = node.machine.tiers.hierarchy.caches.by_tier[HOST]
    digests = cache.store.listing()
    node.receive("g", PinBlocks(digests[::-1], ttl_ns=10_000 * MS))
    lose_device(node)
    assert set(digests) <= set(cache.store.listing())


SESSION = session_key("", "agent")


def of_session(request_id: str, tokens: int = 9) -> Request:
    return replace(request(request_id, tokens), session=SESSION)


def returning(node: NodeUnderTest, tokens: int = 9) -> list:
    """The session is expected back now, with the prompt of `request`."""
    root = node.machine.registration.root.hash("")
    chain: list[bytes] = []
    extend_chain(chain, root, tuple(range(tokens)), 4)
    return node.receive("g", SessionReturning(SESSION, "", root, tuple(chain), 0))


def test_a_paused_session_makes_room_once_its_blocks_are_copied():
    node = worker_with("g", block_count=16)
    effects = node.receive("g", RequestsArrived((of_session("r"),)))
    effects += node.land_all()
    pool = node.machine.work.machine.sequences.pool
    node.receive("g", SessionPaused(SESSION, 10 * MS))
    assert not pool.sessions.idle_blocks, "what is not copied yet would be lost"
    write_through(node, effects)
    assert pool.sessions.idle_blocks == 2
    node.receive("g", RequestsArrived((of_session("again"),)))
    assert not pool.sessions.idle_blocks


def test_a_session_that_is_back_before_its_pause_was_carried_out_does_not_pause():
    node = worker_with("g", block_count=16)
    effects = node.receive("g", RequestsArrived((of_session("r"),)))
    effects += node.land_all()
    node.receive("g", SessionPaused(SESSION, 10 * MS))
    node.receive("g", RequestsArrived((of_session("again"),)))
    effects += node.land_all()
    write_through(node, effects)
    assert not node.machine.work.machine.sequences.pool.sessions.idle_blocks


def test_blocks_are_back_on_the_device_before_the_session_is():
    node = ready_to_fetch()
    fetch = one(returning(node), FetchBlocks)
    assert fetch.tiers == (HOST, HOST)
    assert not of_kind(returning(node), FetchBlocks), "it is on its way"
    effects = node.handle(BlocksFetched(fetch.fetch_id, 2, 128, 0.01))
    report = one(sent_to(effects, "g"), BlocksReported)
    assert report.tier is Tier.DEVICE
    assert set(report.changes.stored) == {name.digest for name in fetch.names}
    assert not of_kind(returning(node), FetchBlocks), "it is there"
    assert node.machine.work.machine.idle
    node.receive("g", RequestsArrived((of_session("again"),)))
    (plan,) = node.plans
    assert list(plan.starts) == [8], "only the last token is computed"


def test_a_request_waits_for_the_prefetch_of_its_blocks_and_takes_what_came():
    node = ready_to_fetch()
    fetch = one(returning(node), FetchBlocks)
    node.receive("g", RequestsArrived((of_session("again"),)))
    assert not node.plans
    corrupt = fetch.names[1].digest
    node.handle(BlocksFetched(fetch.fetch_id, 1, 64, 0.01, corrupt=(corrupt,)))
    (plan,) = node.plans
    assert list(plan.starts) == [4]


def test_who_is_back_needs_no_prefetch_and_no_prefetch_takes_what_runs():
    node = ready_to_fetch()
    node.receive("g", RequestsArrived((of_session("again"),)))
    assert not of_kind(returning(node), FetchBlocks)
    busy = ready_to_fetch()
    busy.receive("g", RequestsArrived((request("big", 60, 3),)))
    assert not of_kind(returning(busy), FetchBlocks)


def test_a_prefetch_brings_at_most_its_part_of_the_device():
    node = worker_with("g", block_count=16)
    effects = node.receive("g", RequestsArrived((request("r", 25),)))
    effects += node.land_all()
    write_through(node, effects)
    lose_device(node)
    assert len(one(returning(node, 25), FetchBlocks).names) == 16 // DEVICE_PART


def test_a_fetch_for_nobody_is_no_evidence_against_a_tier():
    node = ready_to_fetch(limits={"trial_fetches": 1, "trial_tokens": 1})
    node.machine.tiers.benefit.computed(100, 0.001)
    fetch = one(returning(node), FetchBlocks)
    node.handle(BlocksFetched(fetch.fetch_id, 2, 128, 9.0))
    (figures, *_) = node.machine.tiers.figures(node.now_ns).tiers
    assert figures.on


def test_fetches_at_the_same_time_share_the_time_of_their_link():
    node = worker_with("g")
    write_through(node, compute(node))
    fetches = Fetches(4, node.machine.tiers.hierarchy, node.machine.tiers.shared)
    benefit = node.machine.tiers.benefit
    names = node.machine.tiers.hierarchy.caches.by_tier[HOST].listing()[0]
    wanted = [BlockName(digest, b"", names[0], "") for digest in names[:2]]
    for fetch_id in (1, 2):
        fetches.start_fetch(Wanted(fetch_id, tuple(wanted), (0, 1), HOST), 0)
    fetches.start_fetch(Wanted(prefetch_of(0), tuple(wanted), (0, 1), HOST), 0)
    # Until 20 ms there are two, then one more joins the one that is left.
    fetches.fetch_ended(BlocksFetched(1, 2, 8, 0.02), benefit, 20 * MS)
    fetches.start_fetch(Wanted(3, tuple(wanted), (0, 1), HOST), 20 * MS)
    fetches.fetch_ended(BlocksFetched(2, 2, 8, 0.04), benefit, 40 * MS)
    fetches.fetch_ended(BlocksFetched(3, 2, 8, 0.02), benefit, 40 * MS)
    (host, *_) = node.machine.tiers.figures(40 * MS).tiers
    assert host.fetch_s_per_token == pytest.approx(0.04 / 24, rel=0.01), "24 tokens in 40 ms"


def slow_pool(blocks: int) -> tuple[NodeUnderTest, list]:
    """A worker that copies block by block to its memory and to a pool that never answers, and has
    just computed so many. Gives what was written, as pairs of tier and copy."""
    node = worker_with("g", limits={"stagings": 4, "copy_blocks": 1})
    node.receive("g", POOL)
    waiting, written = compute(node, tokens=4 * blocks + 1), []
    while stages := of_kind(waiting, StageBlocks):
        waiting = [each for each in waiting if not isinstance(each, StageBlocks)]
        for stage in stages:
            for keep in of_kind(node.handle(BlocksStaged(stage.copy_id, staged=True)), KeepStaged):
                written.append((keep.tier, keep))
                if keep.tier is HOST:
                    digests = tuple(name.digest for name in keep.names)
                    waiting += node.handle(BlocksKept(keep.copy_id, HOST, digests))
    return node, written


def test_a_pool_that_is_slow_holds_up_no_tier():
    node, written = slow_pool(blocks=12)
    assert [tier for tier, _ in written].count(HOST) == 12
    assert [tier for tier, _ in written].count(REMOTE) == 2, "half of the places"
    assert node.machine.tiers.writing.copied_blocks == 12, "nothing is only on the device"


def test_what_waits_for_the_pool_is_written_in_the_order_in_which_it_was_computed():
    node, written = slow_pool(blocks=6)
    kept = [keep for tier, keep in written if tier is REMOTE]
    for keep in kept:
        effects = node.handle(BlocksKept(keep.copy_id, REMOTE, (keep.names[0].digest,)))
        for stage in of_kind(effects, StageBlocks):
            staged = node.handle(BlocksStaged(stage.copy_id, staged=True))
            kept.append(one(staged, KeepStaged))
    names = [keep.names[0] for keep in kept]
    assert len(names) == 6
    assert [name.parent for name in names[1:]] == [name.digest for name in names[:-1]]
