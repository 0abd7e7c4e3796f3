"""The shared pool and slower tiers at a gateway: registration, fetches and their prices, pins."""

from dataclasses import replace

import pytest
from msgspec import structs

from tandem.facts.blocks import BlockChanges, extend_chain
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, MoveReport, TierFigures
from tandem.facts.request import FinishReason, Request
from tandem.messages.cluster import (
    PROTOCOL,
    Audit,
    Audited,
    Deregister,
    FetchKv,
    LeasesRenewed,
    ListBlocks,
    MoveEnded,
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    RegisterAgain,
    Registered,
    RegisterPoolNode,
    RegistrationRefused,
    TiersReported,
)
from tandem.messages.gateway import AuditAsked, AuditEnded, Fence, PeerGone
from tandem.messages.router import BlocksListed, BlocksReported, ImportReported, RequestSubmitted
from tandem.messages.worker import ImportBlocks, ImportDone, RequestsArrived
from tandem.policy.dispatch.policies import AlwaysLocal
from tests.cluster.cluster_parts import (
    MS,
    ROOT,
    TERMS,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)

FORMAT = BlockFormat(ROOT.hash(""), 256)
PROMPT = tuple(range(17))
ON = TierFigures(Tier.REMOTE, True, 0, 0)


def node(name: str = "pool-0", **changes) -> RegisterPoolNode:
    presented = RegisterPoolNode(PROTOCOL, "1", name, "1", f"10.0.0.1:7{name[-1]}", FORMAT, 50)
    return structs.replace(presented, **changes)


def gateway(*workers, **config) -> GatewayUnderTest:
    return GatewayUnderTest(*workers, block_format=FORMAT, dispatching=AlwaysLocal(), **config)


def pooled(*workers) -> GatewayUnderTest:
    """A gateway with these workers and one process of the pool."""
    under_test = gateway(*workers)
    under_test.receive(node())
    return under_test


def chain(tokens=PROMPT) -> list[bytes]:
    found: list[bytes] = []
    extend_chain(found, ROOT.hash(""), tokens, 4)
    return found


def holds(holder: str, tier: Tier, blocks: int, number: int = 0) -> BlocksReported:
    digests = chain()[:blocks]
    parents = (ROOT.hash(""), *digests)[:blocks]
    return BlocksReported(holder, tier, BlockChanges(number, (), tuple(digests), parents))


def submitted(request_id: str = "r", **terms) -> RequestSubmitted:
    return RequestSubmitted(Request(request_id, PROMPT), 10.0, **terms)


def test_a_process_of_the_pool_is_made_known_to_everybody():
    under_test = gateway(register("a"))
    effects = under_test.receive(node())
    assert sent_to(effects, "pool-0") == [TERMS]
    joined = PoolNodeJoined("pool-0", "1", "10.0.0.1:70")
    assert sent_to(effects, "a") == [joined]
    effects = under_test.receive(node("pool-1"))
    other = PoolNodeJoined("pool-1", "1", "10.0.0.1:71")
    assert sent_to(effects, "pool-1") == [TERMS, joined]
    assert sent_to(effects, "pool-0") == sent_to(effects, "a") == [other]
    effects = under_test.receive(register("b"))
    assert sent_to(effects, "b", PoolNodeJoined) == [joined, other]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": 99}, "speaks protocol 99"),
        ({"format": replace(FORMAT, block_bytes=512)}, "keeps blocks of 512 bytes"),
        ({"format": replace(FORMAT, root=bytes(16))}, "KV of another model or layout"),
        ({"worker": "a"}, "already known as a worker"),
    ],
)
def test_a_process_that_does_not_fit_is_refused_with_a_reason(changes, words):
    under_test = gateway(register("a"))
    (refused,) = of_kind(
        [effect.message for effect in under_test.receive(node(**{"incarnation": "2"} | changes))],
        RegistrationRefused,
    )
    assert words in refused.reason
    assert not list(under_test.machine.pool.nodes)


def test_without_a_remote_tier_nobody_keeps_blocks_for_all():
    (refused,) = sent_to(GatewayUnderTest().receive(node()), "pool-0")
    assert "has no remote tier" in refused.reason


def test_a_worker_cannot_take_the_name_of_a_process_of_the_pool():
    under_test = pooled()
    (refused,) = sent_to(
        under_test.receive(register("pool-0", incarnation="2")), "pool-0", RegistrationRefused
    )
    assert "already known as a process of the shared pool" in refused.reason


def test_what_the_pool_holds_is_fetched_by_whoever_gets_the_request():
    under_test = pooled(register("a"))
    under_test.receive(holds("pool-0", Tier.REMOTE, 3))
    # A worker that has not reported its tiers fetches nothing.
    (arrived,) = sent_to(under_test.handle(submitted("early")), "a")
    assert not arrived.import_tokens
    under_test.receive(TiersReported("a", (ON,)))
    (arrived,) = sent_to(under_test.handle(submitted()), "a")
    assert arrived.import_tokens == (12,)
    effects = under_test.receive(ImportReported("a", ImportBlocks("r", 0, 12, (5, 6, 7))))
    assert sent_to(effects, "a") == [FetchKv(0, "r", Tier.REMOTE, 0, 12)]
    report = MoveReport(True, "tiers", 700, 3, 0.1, tokens=12)
    effects = under_test.receive(MoveEnded("a", 0, report))
    assert sent_to(effects, "a") == [ImportDone("r", 12)]
    (worker,) = under_test.machine.status(under_test.now_ns).workers
    assert (worker.fetches, worker.failed_fetches, worker.fetched_tokens) == (1, 0, 12)
    assert (worker.fetched_bytes, worker.transfers) == (700, 0)


def test_of_a_fetch_that_breaks_off_the_first_part_is_kept():
    under_test = pooled(register("a"))
    under_test.receive(holds("pool-0", Tier.REMOTE, 4))
    under_test.receive(TiersReported("a", (ON,)))
    under_test.handle(submitted())
    under_test.receive(ImportReported("a", ImportBlocks("r", 0, 16, (5, 6, 7, 8))))
    report = MoveReport(False, problem="lost", tokens=8)
    assert sent_to(under_test.receive(MoveEnded("a", 0, report)), "a") == [ImportDone("r", 8)]
    # What came before is cached for the client, too.
    (delivered,) = [
        effect for effect in under_test.receive(drew("a", "r")) if hasattr(effect, "emission")
    ]
    assert delivered.emission.cached_tokens == (8,)


def test_a_lost_process_is_reported_and_what_it_held_is_forgotten():
    under_test = pooled(register("a"))
    under_test.receive(TiersReported("a", (ON,)))
    under_test.receive(node("pool-1"))
    under_test.receive(holds("pool-0", Tier.REMOTE, 3))
    effects = under_test.handle(PeerGone("pool-0/1", "its process ended"))
    gone = PoolNodeGone("pool-0", "1")
    assert sent_to(effects, "a") == sent_to(effects, "pool-1") == [gone]
    (arrived,) = sent_to(under_test.handle(submitted()), "a")
    assert not arrived.import_tokens
    status = under_test.machine.status(under_test.now_ns)
    assert status.lost == (("pool-0", "its process ended"),)
    assert [each.node for each in status.pool_nodes] == ["pool-1"]
    assert not under_test.receive(holds("pool-0", Tier.REMOTE, 3, 1))[1:]


def test_whoever_leaves_did_not_die():
    under_test = pooled(register("a"))
    assert sent_to(under_test.receive(Deregister("pool-0")), "a") == [PoolNodeGone("pool-0", "1")]
    assert under_test.machine.status(under_test.now_ns).lost == ()


def test_silence_is_a_death_and_every_message_a_sign_of_life():
    under_test = pooled()
    for _ in range(3):
        effects = under_test.pass_time(600 * MS)
        assert LeasesRenewed(()) in sent_to(effects, "pool-0")
        assert not of_kind(effects, Fence)
        under_test.receive(TiersReported("pool-0", ()))
    assert [fence.peer for fence in of_kind(under_test.pass_time(1100 * MS), Fence)] == ["pool-0/1"]
    effects = under_test.receive(TiersReported("pool-0", ()))
    assert sent_to(effects, "pool-0") == [RegisterAgain()]


def test_the_newest_start_has_the_name():
    under_test = pooled(register("a"))
    effects = under_test.receive(node(incarnation="2", address="10.0.0.1:99"))
    assert of_kind(effects, Fence)[0].peer == "pool-0/1"
    assert sent_to(effects, "a") == [
        PoolNodeGone("pool-0", "1"),
        PoolNodeJoined("pool-0", "2", "10.0.0.1:99"),
    ]
    (refused,) = sent_to(under_test.receive(node()), "pool-0")
    assert "another process has taken the name" in refused.reason


def test_the_same_start_again_lists_anew_what_it_holds():
    under_test = pooled(register("a"))
    under_test.receive(TiersReported("a", (ON,)))
    under_test.receive(holds("pool-0", Tier.REMOTE, 3))
    effects = under_test.receive(node())
    assert [type(one) for one in sent_to(effects, "pool-0")] == [Registered]
    assert not sent_to(effects, "a")
    assert not sent_to(under_test.handle(submitted()), "a")[0].import_tokens
    under_test.receive(BlocksListed("pool-0", Tier.REMOTE, tuple(chain()[:2]), 7))
    (arrived,) = sent_to(under_test.handle(submitted("s")), "a")
    assert arrived.import_tokens


def test_a_missed_report_has_the_pool_list_its_blocks():
    under_test = pooled(register("a"))
    effects = under_test.receive(holds("pool-0", Tier.REMOTE, 3, number=5))
    assert sent_to(effects, "pool-0") == [ListBlocks(Tier.REMOTE)]


def test_workers_do_not_report_the_contents_of_the_pool():
    under_test = gateway(register("a"))
    under_test.receive(TiersReported("a", (ON,)))
    under_test.receive(holds("a", Tier.REMOTE, 3))
    assert not sent_to(under_test.handle(submitted()), "a")[0].import_tokens


def test_a_tier_that_is_off_is_not_counted_on():
    under_test = gateway(register("a"))
    disk = TierFigures(Tier.DISK, True, 3, 9)
    under_test.receive(TiersReported("a", (disk,)))
    under_test.receive(holds("a", Tier.DISK, 3))
    assert sent_to(under_test.handle(submitted("r")), "a")[0].import_tokens
    under_test.receive(TiersReported("a", (structs.replace(disk, on=False, reason="it loses"),)))
    assert not sent_to(under_test.handle(submitted("s")), "a")[0].import_tokens
    under_test.receive(TiersReported("a", (disk,)))
    assert sent_to(under_test.handle(submitted("t")), "a")[0].import_tokens
    (worker,) = under_test.machine.status(under_test.now_ns).workers
    assert worker.tiers == (disk,)


def test_what_was_measured_counts_before_the_datasheet():
    under_test = gateway(register("a"))
    measured = TierFigures(Tier.DISK, True, 3, 9, fetch_s_per_token=2.0, compute_s_per_token=1.0)
    under_test.receive(TiersReported("a", (measured,)))
    under_test.receive(holds("a", Tier.DISK, 3))
    assert not sent_to(under_test.handle(submitted("r")), "a")[0].import_tokens
    faster = structs.replace(measured, fetch_s_per_token=0.01)
    under_test.receive(TiersReported("a", (faster,)))
    assert sent_to(under_test.handle(submitted("s")), "a")[0].import_tokens
    prices = under_test.machine.costs.capacities["a"].cost
    # Noise makes no new price.
    under_test.receive(TiersReported("a", (structs.replace(measured, fetch_s_per_token=0.0101),)))
    assert under_test.machine.costs.capacities["a"].cost is prices


def test_what_a_session_leaves_is_pinned_where_it_ran_and_in_the_pool():
    under_test = pooled(register("a"))
    under_test.handle(submitted(session="s", pin_ns=5_000))
    under_test.receive(drew("a", "r"))
    effects = under_test.receive(drew("a", "r", reason=FinishReason.LENGTH))
    # Seventeen tokens of prompt and one more: the last one has no KV.
    pin = PinBlocks(tuple(chain((*PROMPT, 0))), 5_000)
    assert sent_to(effects, "a") == sent_to(effects, "pool-0") == [pin]
    under_test.handle(submitted("other"))
    assert not sent_to(under_test.receive(drew("a", "other", reason=FinishReason.STOP)), "a")


def test_an_audit_asks_the_pool_too():
    under_test = pooled(register("a"))
    effects = under_test.handle(AuditAsked(1))
    assert sent_to(effects, "pool-0") == sent_to(effects, "a") == [Audit()]
    quiet = Audited("a", 0, 0, 0, 0, 0, 0, 0, 0, "")
    assert not of_kind(under_test.receive(quiet), AuditEnded)
    (ended,) = of_kind(under_test.receive(structs.replace(quiet, worker="pool-0")), AuditEnded)
    assert [each.worker for each in ended.workers] == ["a", "pool-0"]
    under_test.handle(AuditAsked(2))
    under_test.receive(quiet)
    (ended,) = of_kind(under_test.handle(PeerGone("pool-0/1", "dead")), AuditEnded)
    assert not ended.problem


def test_recomputed_tokens_are_what_a_takeover_did_not_find():
    under_test = pooled(register("a"), register("b"))
    for worker in ("a", "b"):
        under_test.receive(TiersReported(worker, (ON,)))
    effects = under_test.handle(submitted())
    first = "a" if sent_to(effects, "a") else "b"
    other = "b" if first == "a" else "a"
    under_test.receive(drew(first, "r"))
    under_test.receive(holds("pool-0", Tier.REMOTE, 3))
    effects = under_test.handle(PeerGone(f"{first}/1", "killed"))
    (arrived,) = sent_to(effects, other, RequestsArrived)
    assert arrived.import_tokens == (12,)
    under_test.receive(ImportReported(other, ImportBlocks("r~1", 0, 12, (5, 6, 7))))
    under_test.receive(MoveEnded(other, 0, MoveReport(True, tokens=12)))
    under_test.receive(idle_load(other), drew(other, "r~1"))
    # Eighteen were known, and twelve of them came from the pool.
    assert under_test.machine.status(under_test.now_ns).recomputed_tokens == 6
