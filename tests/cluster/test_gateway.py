"""The gateway machine: membership, tokens, KV transfers and status, rule by rule."""

from array import array
from dataclasses import replace

import pytest
from msgspec import structs

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.blocks import BlockChanges, CacheRoot, extend_chain
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import KvGeometry, MoveKv, MoveReport, TierFigures
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.messages.cluster import (
    Deregister,
    LeasesRenewed,
    ListBlocks,
    MoveEnded,
    PeerJoined,
    PeerLost,
    RegisterAgain,
    Registered,
    RegistrationRefused,
    StopMove,
    TiersReported,
    ToWorker,
)
from tandem.messages.gateway import Deliver, Fence, MessageFromWorker, PeerGone
from tandem.messages.router import (
    BlocksReported,
    ImportReported,
    KvReported,
    LoadReported,
    Reject,
    RequestsLost,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import (
    ImportBlocks,
    ImportDone,
    ImportsArrived,
    KvComputed,
    RequestsAborted,
    RequestsArrived,
    TransferPinsReleased,
)
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.policies import AlwaysRemote
from tests.cluster.cluster_parts import (
    MS,
    ROOT,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)

P, D = register("p", Role.PREFILL), register("d", Role.DECODE)
QUEUE = RequestQueueConfig()


def computed(tokens: int, blocks: int, *, held: bool = False) -> KvReported:
    """The prefill worker has KV of request "r" in blocks 10, 11 and so on."""
    places = tuple(range(10, 10 + blocks))
    versions = tuple(range(1, 1 + blocks))
    return KvReported("p", KvComputed(("r",), (tokens,), (places,), (held,), (versions,)))


def reserved(first: int, end: int, *blocks: int) -> ImportReported:
    return ImportReported("d", ImportBlocks("r", first, end, blocks))


def arrived(transfer_id: int, *, whole: bool = True) -> MoveEnded:
    return MoveEnded("d", transfer_id, MoveReport(whole, "shm", 100, 2, 0.5))


def moving() -> GatewayUnderTest:
    """The first block of request "r" is read from one worker by the other."""
    gateway = GatewayUnderTest(P, D)
    gateway.submit("r", 11)
    gateway.receive(computed(4, 1))
    gateway.receive(reserved(0, 11, 20, 21, 22))
    return gateway


# Who belongs to the cluster


def test_whoever_joins_is_registered():
    gateway = GatewayUnderTest()
    assert sent_to(gateway.receive(P), "p") == [gateway.machine.config.terms]
    effects = gateway.receive(D)
    assert [type(one) for one in sent_to(effects, "d")] == [Registered]
    assert sent_to(effects, "p") == []
    assert [member.name for member in gateway.machine.members] == ["d", "p"]
    assert set(gateway.machine.costs.capacities) == {"p", "d"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": 99}, "protocol 99"),
        ({"export": replace(D.export, model="other")}, "serves other at revision"),
        ({"export": replace(D.export, revision="other")}, "serves model at other"),
        ({"export": replace(D.export, geometry=KvGeometry(3, 2, 8, 4, "f"))}, "3 layers against 2"),
        ({"export": replace(D.export, geometry=KvGeometry(2, 1, 8, 4, "f"))}, "1 KV heads"),
        ({"export": replace(D.export, geometry=KvGeometry(2, 2, 4, 4, "f"))}, "4 values a head"),
        ({"export": replace(D.export, geometry=KvGeometry(2, 2, 8, 6, "f"))}, "neither divides"),
        ({"export": replace(D.export, geometry=KvGeometry(2, 2, 8, 0, "f"))}, "blocks of 0 tokens"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_with_a_reason(changes, words):
    gateway = GatewayUnderTest(P)
    (answer,) = sent_to(gateway.receive(structs.replace(D, **changes)), "d")
    assert isinstance(answer, RegistrationRefused)
    assert words in answer.reason
    assert [member.name for member in gateway.machine.members] == ["p"]


def test_block_sizes_may_differ_where_one_divides_the_other():
    gateway = GatewayUnderTest(P, register("d", Role.DECODE, block_size=8))
    assert len(list(gateway.machine.members)) == 2


def test_a_name_belongs_to_the_newest_start():
    gateway = GatewayUnderTest(register("w"), register("other"))
    gateway.submit("r0")
    newer = register("w", incarnation="2")
    effects = gateway.receive(newer)
    assert Fence("w/1", "another process has taken its name") in effects
    (answer,) = sent_to(gateway.receive(register("w")), "w")
    assert isinstance(answer, RegistrationRefused)
    assert gateway.machine.members.of_peer("w/2") is not None


def test_unknown_processes_are_asked_to_register_once_a_second():
    gateway = GatewayUnderTest()
    assert sent_to(gateway.receive(idle_load("w")), "w") == [RegisterAgain()]
    assert gateway.receive(idle_load("w")) == []
    gateway.now_ns += 1_000 * MS
    assert sent_to(gateway.receive(idle_load("w")), "w") == [RegisterAgain()]
    # Another is asked all the same.
    assert sent_to(gateway.receive(idle_load("v")), "v") == [RegisterAgain()]


def test_messages_in_the_name_of_another_worker_are_ignored():
    gateway = GatewayUnderTest(register("w"), register("v"))
    gateway.handle(MessageFromWorker("v/1", Deregister("w")))
    assert gateway.machine.members.of_name("w") is not None


def test_choices_of_one_call_go_to_a_worker_in_one_message():
    """So that their prompt travels once, and is looked at once."""
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    one, another = array("I", range(100, 120)), array("I", range(200, 220))
    submitted = [
        RequestSubmitted(Request(f"r{number}", prompt, SamplingParameters(max_tokens=3)), 3)
        for number, prompt in enumerate([one] * 8 + [another] * 8)
    ]
    effects = gateway.machine.handle_together(submitted, gateway.now_ns)
    seen = []
    for name in ("w0", "w1"):
        messages = sent_to(effects, name, RequestsArrived)
        prompts = [{id(each.prompt_tokens) for each in message.requests} for message in messages]
        assert all(len(each) == 1 for each in prompts)
        assert len(set.union(*prompts)) == len(prompts) <= 2
        names = [int(each.request_id[1:]) for message in messages for each in message.requests]
        assert names == sorted(names)
        seen += names
        # Events are counted by message, not by request.
        assert gateway.machine.router.admission.fleet.workers[name].events_sent == len(messages)
    assert sorted(seen) == list(range(16))
    gateway.machine.audit()


def test_the_silent_are_fenced_and_their_requests_go_on_elsewhere():
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    first = gateway.submit("r")
    (place,) = [name for name in ("w0", "w1") if sent_to(first, name)]
    other = "w1" if place == "w0" else "w0"
    gateway.pass_time(500 * MS)
    gateway.receive(idle_load(other))
    effects = gateway.pass_time(600 * MS)
    assert [effect.peer for effect in of_kind(effects, Fence)] == [f"{place}/1"]
    (again,) = sent_to(effects, other, RequestsArrived)
    assert again.requests[0].request_id == "r~1"
    status = gateway.machine.status(gateway.now_ns)
    assert status.takeovers == 1
    assert status.lost[0][0] == place
    assert "silent" in status.lost[0][1]


def test_a_gateway_that_slept_takes_nobody_for_dead():
    gateway = GatewayUnderTest(register("w"))
    gateway.now_ns += 60_000 * MS
    assert not of_kind(gateway.handle(), Fence)
    assert of_kind(gateway.pass_time(1_100 * MS), Fence)


def test_a_broken_connection_is_a_death_without_a_fence():
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    effects = gateway.handle(PeerGone("w0/1", "its connection broke"))
    assert sent_to(effects, "w1") == []
    assert not of_kind(effects, Fence)
    assert gateway.machine.status(9).lost == (("w0", "its connection broke"),)
    assert gateway.handle(PeerGone("w0/1", "again")) == []


def test_a_worker_that_deregisters_did_not_die():
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    assert sent_to(gateway.receive(Deregister("w0")), "w1") == []
    assert gateway.machine.status(9).lost == ()


def test_a_worker_that_registers_anew_has_lost_its_requests_only():
    gateway = GatewayUnderTest(register("w0"), register("w1"))
    gateway.submit("r0")
    gateway.submit("r1")
    effects = gateway.receive(register("w0"))
    # The one that it had begins again, somewhere; the other worker gets no death reported.
    arrivals = [
        one.request_id
        for name in ("w0", "w1")
        for message in sent_to(effects, name, RequestsArrived)
        for one in message.requests
    ]
    assert len(arrivals) == 1
    assert arrivals[0].endswith("~1")
    assert not sent_to(effects, "w1", PeerLost)
    assert next(iter(sent_to(effects, "w0"))) == gateway.machine.config.terms


def test_leases_are_renewed_for_requests_in_every_stage_and_show_that_the_gateway_lives():
    gateway = GatewayUnderTest(P, D)
    gateway.submit("r")
    effects = gateway.pass_time(250 * MS)
    assert sent_to(effects, "p")[-1] == LeasesRenewed(("r",))
    assert sent_to(effects, "d")[-1] == LeasesRenewed(("r",))
    gateway.handle(RequestWithdrawn("r"))
    assert sent_to(gateway.pass_time(250 * MS), "p") == [LeasesRenewed(())]


# Tokens


def test_tokens_reach_clients_under_the_names_they_know_and_no_others():
    gateway = GatewayUnderTest(register("w0"))
    gateway.submit("r")
    gateway.submit("s")
    report = drew("w0", "r", "s")
    (delivered,) = gateway.receive(report)
    assert delivered.emission is report.emission
    # The attempt that was given up counts no more, the new one has the old name.
    effects = gateway.receive(RequestsLost("w0", ("r",)))
    (again,) = sent_to(effects, "w0", RequestsArrived)
    assert again.requests[0].request_id == "r~1"
    (delivered,) = of_kind(gateway.receive(drew("w0", "r", "s", "r~1")), Deliver)
    assert delivered.emission.request_ids == ("s", "r")
    assert delivered.emission.tokens == (1, 2)
    assert gateway.receive(drew("w0", "r", "unknown")) == []
    gateway.receive(drew("w0", "s", reason=FinishReason.STOP))
    status = gateway.machine.status(9)
    assert (status.finished_requests, status.running_requests) == (1, 1)
    assert status.workers[0].output_tokens == 5
    assert status.workers[0].prompts == 3


def test_what_comes_with_the_clients_withdrawal_is_not_delivered():
    gateway = GatewayUnderTest(register("w0"))
    gateway.submit("r")
    effects = gateway.handle(RequestWithdrawn("r"), MessageFromWorker("w0/1", drew("w0", "r")))
    assert not of_kind(effects, Deliver)


def test_a_recomputed_first_token_is_delivered_once_by_the_decode_worker():
    gateway = GatewayUnderTest(P, D, first_token=FirstToken.RECOMPUTED)
    gateway.submit("r")
    assert not of_kind(gateway.receive(drew("p", "r")), Deliver)
    gateway.receive(computed(9, 3, held=True))
    effects = gateway.receive(reserved(0, 9, 20, 21, 22))
    (order,) = sent_to(effects, "d", MoveKv)
    effects = gateway.receive(arrived(order.transfer_id))
    assert sent_to(effects, "d") == [ImportDone("r", 9, ())]
    (delivered,) = of_kind(gateway.receive(drew("d", "r")), Deliver)
    assert delivered.emission.request_ids == ("r",)


def test_a_first_token_that_ends_the_answer_is_taken_from_whoever_drew_it():
    gateway = GatewayUnderTest(P, D, first_token=FirstToken.RECOMPUTED)
    gateway.submit("r")
    assert of_kind(gateway.receive(drew("p", "r", reason=FinishReason.STOP)), Deliver)
    assert not gateway.machine.router.requests


# KV


def test_kv_is_read_from_the_reported_blocks_into_the_reserved_ones():
    gateway = GatewayUnderTest(P, D)
    gateway.submit("r", 11)
    effects = gateway.receive(computed(4, 1))
    assert sent_to(effects, "d", ImportsArrived)
    effects = gateway.receive(reserved(0, 11, 20, 21, 22))
    assert sent_to(effects, "d") == [
        PeerJoined("p", "1", P.export),
        MoveKv(0, "r", "p", "1", 0, 4, (10,), (1,), (20,)),
    ]
    gateway.receive(drew("p", "r"))
    effects = gateway.receive(computed(11, 3, held=True))
    assert sent_to(effects, "d") == [MoveKv(1, "r", "p", "1", 4, 11, (11, 12), (2, 3), (21, 22))]
    gateway.receive(arrived(1))
    effects = gateway.receive(arrived(0))
    assert sent_to(effects, "d") == [ImportDone("r", 11, (0,))]
    assert sent_to(effects, "p") == [TransferPinsReleased(("r",))]
    by_name = {each.worker: each for each in gateway.machine.status(9).workers}
    assert (by_name["d"].transfers, by_name["d"].moved_bytes, by_name["d"].spans) == (2, 200, 4)
    assert (by_name["d"].seconds, by_name["d"].connectors) == (1.0, ("shm",))
    assert (by_name["p"].sent_bytes, by_name["p"].transfers) == (200, 0)


def test_block_sizes_of_source_and_target_may_differ():
    target = register("d", Role.DECODE, block_size=8)
    gateway = GatewayUnderTest(P, target)
    gateway.submit("r", 13)
    gateway.receive(computed(4, 1))
    # The target has the first block of eight in its cache.
    effects = gateway.receive(reserved(8, 13, 20))
    assert not sent_to(effects, "d", MoveKv)
    gateway.receive(drew("p", "r"))
    effects = gateway.receive(computed(12, 3))
    assert sent_to(effects, "d", MoveKv) == [MoveKv(0, "r", "p", "1", 8, 12, (12,), (3,), (20,))]
    effects = gateway.receive(computed(13, 4, held=True))
    assert sent_to(effects, "d") == [MoveKv(1, "r", "p", "1", 12, 13, (13,), (4,), (20,))]


def test_large_source_blocks_are_read_in_part():
    source = register("p", Role.PREFILL, block_size=8)
    gateway = GatewayUnderTest(source, D)
    gateway.submit("r", 13)
    gateway.receive(computed(8, 1))
    effects = gateway.receive(reserved(4, 13, 20, 21, 22))
    assert sent_to(effects, "d", MoveKv) == [MoveKv(0, "r", "p", "1", 4, 8, (10,), (1,), (20,))]


def test_a_lost_transfer_is_computed_and_counted():
    gateway = GatewayUnderTest(P, D)
    gateway.submit("r", 11)
    gateway.receive(drew("p", "r"))
    gateway.receive(computed(11, 3, held=True))
    (order,) = sent_to(gateway.receive(reserved(0, 11, 20, 21, 22)), "d", MoveKv)
    effects = gateway.receive(arrived(order.transfer_id, whole=False))
    assert sent_to(effects, "d") == [ImportDone("r", 0)]
    assert gateway.machine.status(9).workers[0].failed_transfers == 1


def moved(gateway: GatewayUnderTest, request_id: str, *, whole: bool = True) -> list[ToWorker]:
    """What the decode worker gets until it reads the KV of a request, which ends then."""
    gateway.submit(request_id, 11)
    gateway.receive(drew("p", request_id))
    blocks = ImportBlocks(request_id, 0, 11, (20, 21, 22))
    held = KvComputed((request_id,), (11,), ((10, 11, 12),), (True,), ((1, 2, 3),))
    gateway.receive(KvReported("p", held))
    messages = sent_to(gateway.receive(ImportReported("d", blocks)), "d")
    (order,) = of_kind(messages, MoveKv)
    gateway.receive(arrived(order.transfer_id, whole=whole))
    gateway.receive(drew("d", request_id, reason=FinishReason.STOP))
    return messages


def test_workers_meet_when_one_first_reads_from_the_other():
    gateway = GatewayUnderTest(P, D)
    introduction = PeerJoined("p", "1", P.export)
    assert moved(gateway, "a")[0] == introduction
    assert introduction not in moved(gateway, "b", whole=False)
    # It may have forgotten it: another gateway may take the source for dead.
    assert moved(gateway, "c")[0] == introduction
    gateway.receive(register("e", Role.PREFILL))
    effects = gateway.receive(Deregister("p"))
    assert sent_to(effects, "d") == [PeerLost("p", "1")]
    assert sent_to(effects, "e") == []
    gateway.receive(Deregister("e"))
    # Back again, it is met again.
    gateway.receive(P)
    assert moved(gateway, "d")[0] == introduction


def test_kv_that_is_not_where_it_was_said_to_be_is_computed():
    few = KvReported("p", KvComputed(("r",), (11,), ((10, 11),), (True,), ((1, 1),)))
    unchecked = KvReported("p", KvComputed(("r",), (11,), ((10, 11, 12),), (True,)))
    for report in (few, unchecked):
        gateway = GatewayUnderTest(P, D)
        gateway.submit("r", 11)
        gateway.receive(drew("p", "r"))
        gateway.receive(report)
        effects = gateway.receive(reserved(0, 11, 20, 21, 22))
        assert sent_to(effects, "d") == [ImportDone("r", 0)]


def test_a_withdrawn_requests_moves_are_stopped_and_its_books_closed():
    gateway = moving()
    effects = gateway.handle(RequestWithdrawn("r"))
    assert sent_to(effects, "d")[0] == StopMove(0)
    gateway.machine.audit()
    assert gateway.receive(arrived(0)) == []
    # What is announced and reserved for it from now on is nobody's.
    assert sent_to(gateway.receive(computed(11, 3, held=True)), "p") == [
        TransferPinsReleased(("r",))
    ]
    assert gateway.receive(reserved(0, 11, 20, 21, 22)) == []


def test_the_death_of_either_end_stops_the_move_and_starts_the_request_anew():
    for dead, left in (("p", "d"), ("d", "p")):
        gateway = moving()
        effects = gateway.handle(PeerGone(f"{dead}/1", "died"))
        assert (StopMove(0) in sent_to(effects, left)) == (left == "d")
        assert RequestsAborted(("r",)) in sent_to(effects, left)
        gateway.machine.audit()
        assert gateway.machine.router.requests["r"].names.attempt == 1


def test_pulled_kv_waits_until_all_of_it_is_held():
    dispatching = AlwaysRemote(transfer=Transfer.PULL)
    gateway = GatewayUnderTest(P, D, dispatching=dispatching)
    gateway.submit("r", 11)
    assert gateway.receive(computed(8, 2)) == []
    gateway.receive(drew("p", "r"))
    effects = gateway.receive(computed(11, 3, held=True))
    assert sent_to(effects, "d", ImportsArrived)


def test_only_caches_that_name_blocks_alike_are_indexed():
    foreign = register("d", Role.BOTH, root=CacheRoot("model", "revision", b"other precision"))
    coarse = register("c", Role.BOTH, block_size=8)
    gateway = GatewayUnderTest(register("w"), foreign, coarse)
    for name in ("w", "d", "c"):
        changes = BlockChanges(0, (), (name.encode(),), (b"parent",))
        assert gateway.receive(BlocksReported(name, Tier.DEVICE, changes)) == []
    assert gateway.machine.router.admission.index.resident_blocks == 1
    ahead = BlocksReported("w", Tier.DEVICE, BlockChanges(5, (), (b"x",), (b"parent",)))
    assert sent_to(gateway.receive(ahead), "w") == [ListBlocks(Tier.DEVICE)]


def test_a_cluster_has_one_identity_only_while_all_workers_compute_the_same_numbers():
    assert GatewayUnderTest().machine.members.identity is None
    gateway = GatewayUnderTest(register("w"), register("v"))
    identity = gateway.machine.members.identity
    assert identity
    foreign = register("d", root=CacheRoot("model", "other arithmetic", b"layout"))
    gateway.receive(foreign)
    assert gateway.machine.members.identity is None
    gateway.handle(PeerGone("d/1", "gone"))
    assert gateway.machine.members.identity == identity


def test_a_prompt_is_counted_once_where_several_of_its_tokens_come_at_once():
    gateway = GatewayUnderTest(register("w"))
    gateway.submit("r")
    gateway.receive(drew("w", "r"), drew("w", "r"))
    counters = gateway.machine.members.of_name("w").counters
    assert (counters.prompts, counters.output_tokens) == (1, 2)


def test_the_status_counts_what_waits_and_runs():
    gateway = GatewayUnderTest(register("w"), queue=replace(QUEUE, max_requests=1))
    gateway.submit("r")
    gateway.submit("s")
    status = gateway.machine.status(gateway.now_ns + 2_000_000_000)
    assert (status.gateway, status.waiting_requests, status.running_requests) == ("g", 1, 1)
    assert status.workers[0].last_seen_s > 1
    assert status.workers[0].total_blocks == 100


def test_without_workers_a_request_is_rejected_with_a_reason():
    (rejected,) = GatewayUnderTest().submit("r")
    assert isinstance(rejected, Reject)
    assert rejected.reason


@pytest.mark.parametrize("waiting", [0, 1])
def test_what_a_device_may_forget_while_a_request_waits_can_come_from_below(waiting):
    gateway = GatewayUnderTest()
    gateway.receive(register("w"), LoadReported("w", 0, waiting, 8 * waiting, 0, 100))
    gateway.receive(TiersReported("w", (TierFigures(Tier.HOST, True, 0, 100),)))
    digests: list[bytes] = []
    extend_chain(digests, ROOT.hash(""), tuple(range(9)), 4)
    held = BlockChanges(0, (), tuple(digests), (ROOT.hash(""), *digests[:-1]))
    gateway.receive(BlocksReported("w", Tier.DEVICE, held))
    (arrived,) = sent_to(gateway.submit("r"), "w", RequestsArrived)
    assert arrived.import_tokens == ((8,) if waiting else ())
