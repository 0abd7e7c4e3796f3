"""The node machine of a worker process, rule by rule."""

import pytest
from msgspec import structs

from tandem.cluster.worker.load import load_of
from tandem.facts.adapter import AdapterMemory
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import MoveKv, MoveReport
from tandem.messages.cluster import (
    Audit,
    Deregister,
    Drain,
    LeasesRenewed,
    ListBlocks,
    MoveEnded,
    NotNeeded,
    PeerJoined,
    PeerLost,
    Register,
    RegisterAgain,
    RegistrationRefused,
    RoleStateReported,
    StopMove,
    Undrain,
)
from tandem.messages.gateway import TimePassed
from tandem.messages.node import (
    AdapterMemoryChanged,
    BlocksExported,
    ConnectPeer,
    EndMove,
    ExportBlocks,
    ForgetPeer,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    MoveFinished,
    SendToGateway,
    StartMove,
)
from tandem.messages.router import (
    BlocksListed,
    BlocksReported,
    ImportReported,
    KvReported,
    LoadReported,
    RequestRefused,
    RequestsLost,
    TokensReported,
)
from tandem.messages.worker import (
    ImportDone,
    ImportsArrived,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    TransferPinsReleased,
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

DONE = MoveReport(arrived=True, connector="shm", moved_bytes=10, spans=1, seconds=0.1)
LOST = MoveReport(arrived=False, problem="lost")
PEER = register("p")


def arrivals(*names: str) -> RequestsArrived:
    return RequestsArrived(tuple(request(name) for name in names))


def importing(node: NodeUnderTest, gateway: str = "g", tokens: int = 9) -> tuple[int, ...]:
    """Request "r" of this gateway waits for KV. Gives its blocks."""
    node.receive(gateway, PeerJoined("p", "1", PEER.export))
    effects = node.receive(gateway, ImportsArrived((request("r", tokens),), (tokens,)))
    (ready,) = sent_to(effects, gateway, ImportReported)
    return ready.wanted.blocks


def order(transfer_id: int, first: int, end: int, blocks: tuple[int, ...], **changes) -> MoveKv:
    fields = {"request_id": "r", "source": "p", "incarnation": "1"} | changes
    return MoveKv(
        transfer_id=transfer_id,
        first_token=first,
        end_token=end,
        source_blocks=(1, 2, 3),
        source_versions=(1, 1, 1),
        target_blocks=blocks,
        **fields,
    )


# Gateways come and go


def test_a_worker_registers_and_then_lists_what_it_has():
    node = NodeUnderTest()
    (presented,) = sent_to(node.handle(GatewayConnected("g")), "g")
    assert presented == node.machine.registration
    messages = sent_to(node.receive("g", TERMS), "g")
    assert [type(one) for one in messages] == [BlocksListed, LoadReported]
    assert messages[0] == BlocksListed("w", Tier.DEVICE, (), 0)


def test_registration_is_repeated_while_the_gateway_is_silent():
    node = NodeUnderTest()
    node.handle(GatewayConnected("g"))
    assert sent_to(node.pass_time(6_000 * MS), "g", Register)


def test_a_gateway_that_joins_later_gets_a_listing_and_the_same_numbers():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    reports = []
    while node.plans:
        reports += sent_to(node.land(), "g", BlocksReported)
    assert [report.changes.sequence_number for report in reports] == list(range(len(reports)))
    node.handle(GatewayConnected("h"))
    (listing,) = sent_to(node.receive("h", TERMS), "h", BlocksListed)
    stored = {digest for report in reports for digest in report.changes.stored}
    assert set(listing.hashes) == stored
    assert listing.next_sequence_number == len(reports)
    effects = node.receive("h", RequestsArrived((request("s", 14),)))
    effects += node.land()
    later = [sent_to(effects, gateway, BlocksReported) for gateway in ("g", "h")]
    assert later[0] == later[1] != []
    assert later[0][0].changes.sequence_number == len(reports)


def test_load_is_reported_every_interval():
    node = NodeUnderTest("g", "h")
    for gateway in ("g", "h"):
        assert len(sent_to(node.pass_time(450 * MS), gateway, LoadReported)) in (4, 5)


def test_room_is_reported_as_soon_as_a_request_ends():
    node = NodeUnderTest("g", "h")
    node.keep_alive(50 * MS, "g", "h")
    node.receive("g", arrivals("r"))
    reports = [
        sent_to(node.receive("g", RequestsAborted(("r",))), each, LoadReported) for each in "gh"
    ]
    (load,) = reports[0]
    assert load.running_sequences == load.waiting_requests == 0
    # However many end, a gateway gets no more than twenty within an interval.
    effects = []
    for number in range(50):
        node.receive("g", arrivals(str(number)))
        effects += node.receive("g", RequestsAborted((str(number),)))
        effects += node.keep_alive(MS, "g", "h")
    assert len(sent_to(effects, "g", LoadReported)) == pytest.approx(10, abs=1)


def test_reports_that_are_sent_when_asked_for_are_not_sent_unasked():
    node = NodeUnderTest("g", reports_when_asked=True)
    node.receive("g", arrivals("r"))
    assert not sent_to(node.keep_alive(450 * MS, "g"), "g", LoadReported)
    load = load_of("w", node.machine.work.machine)
    (asked,) = sent_to(node.machine.report(load, node.now_ns), "g")
    assert asked == structs.replace(load, received_events=1) == node.machine.report_to("g", load, 0)
    assert node.machine.report_to("nobody", load, 0) is None
    # Whoever drains it waits for them, and whoever has it take up a dead one's request.
    assert sent_to(node.receive("g", arrivals("s~1")), "g", LoadReported)
    node.receive("g", Drain())
    assert len(sent_to(node.keep_alive(450 * MS, "g"), "g", LoadReported)) in (4, 5)


def test_steps_taken_at_one_go_are_one_report():
    steps = 6
    one_by_one, at_once = (NodeUnderTest("g", block_size=32, block_count=4) for _ in range(2))
    for node in (one_by_one, at_once):
        node.receive("g", RequestsArrived((request("r", 9, 20),)))
        while len(sent_to(node.land(), "g", TokensReported)) == 0:
            pass
        node.land()
    before = len(one_by_one.machine.work.machine.unfinished["r"].tokens)
    reports = [sent_to(one_by_one.land(), "g", TokensReported)[0] for _ in range(steps)]
    effects = at_once.machine.fast_forward(steps, reports[0].emission, at_once.now_ns)
    (report,) = sent_to(effects, "g")
    assert report == structs.replace(reports[-1], repeats=steps)
    assert {each.repeats for each in reports} == {1}
    for node in (one_by_one, at_once):
        assert len(node.machine.work.machine.unfinished["r"].tokens) == before + steps
        node.machine.audit()


def test_who_takes_up_a_request_that_died_elsewhere_reports_at_once():
    node = NodeUnderTest("g", "h")
    assert not sent_to(node.receive("g", arrivals("r")), "g", LoadReported)
    effects = node.receive("g", arrivals("s~1"))
    (report,) = sent_to(effects, "g", LoadReported)
    assert (report.received_events, report.waiting_requests) == (2, 1)
    assert not sent_to(effects, "h", LoadReported)


def test_each_gateway_receives_reports_of_its_own_requests_only():
    node = NodeUnderTest("g", "h")
    node.handle(
        MessageFromGateway("g", RequestsArrived((request("r", 3),))),
        MessageFromGateway("h", RequestsArrived((request("s", 3),))),
    )
    # Both were planned into one step.
    (plan,) = node.plans
    assert len(plan.slots) == 2
    effects = node.land()
    for gateway, name in (("g", "r"), ("h", "s")):
        (report,) = sent_to(effects, gateway, TokensReported)
        assert report.emission.request_ids == (name,)
        assert len(report.emission.tokens) == 1


def test_what_everybody_in_a_step_belongs_to_is_passed_on_as_it_is():
    node = NodeUnderTest("g", "h")
    node.receive("g", RequestsArrived((request("r", 3), request("s", 3))))
    (report,) = sent_to(node.land(), "g", TokensReported)
    assert report.emission.request_ids == ("r", "s")


def test_a_refusal_goes_to_whoever_asked_and_costs_no_lease():
    node = NodeUnderTest("g", "h", max_waiting=1, max_sequences=1)
    node.receive("g", arrivals("running"))
    node.receive("g", arrivals("waiting"))
    effects = node.receive("h", arrivals("late"))
    (refused,) = sent_to(effects, "h", RequestRefused)
    assert (refused.request_id, refused.retry_after_s) == ("late", 1.0)
    effects = node.receive("h", RequestsArrived((request("long", 64),)))
    assert sent_to(effects, "h", RequestRefused)[0].retry_after_s == 0.0
    assert len(node.machine.work.leases) == 2


def test_a_gateway_cannot_change_requests_of_another():
    node = NodeUnderTest("g", "h")
    node.receive("g", arrivals("r"))
    node.receive("h", RequestsAborted(("r",)), TransferPinsReleased(("r",)))
    assert not node.machine.work.idle


@pytest.mark.parametrize("event", [GatewayGone("g"), MessageFromGateway("g", RegisterAgain())])
def test_all_that_a_gateway_asked_for_goes_with_it(event):
    node = NodeUnderTest("g", "h")
    node.receive("g", arrivals("r", "s"))
    node.receive("h", arrivals("t"))
    effects = node.handle(event)
    assert node.machine.work.leases.request_ids == {"t"}
    registers = sent_to(effects, "g", Register)
    assert len(registers) == isinstance(event, MessageFromGateway)
    # What it sends before it has registered the worker is void.
    node.receive("g", arrivals("u"))
    assert node.machine.work.leases.request_ids == {"t"}


def test_a_second_registration_voids_what_came_between():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    node.receive("g", TERMS)
    assert not len(node.machine.work.leases)
    assert node.machine.work.machine.unfinished == {}


def test_a_silent_gateways_requests_are_given_up_and_it_registers_again():
    node = NodeUnderTest("g", "h")
    node.receive("g", arrivals("r"))
    effects = node.keep_alive(1_100 * MS, "h")
    assert not len(node.machine.work.leases)
    assert sent_to(effects, "g", Register)
    assert not sent_to(effects, "h", Register)


def test_a_worker_that_slept_takes_no_gateway_for_dead():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    node.now_ns += 2_000 * MS
    node.handle(TimePassed())
    assert node.machine.work.leases.request_ids == {"r"}


def test_requests_that_nobody_renews_are_given_up_and_their_gateway_gets_them_back():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    node.keep_alive(1_500 * MS, "g")
    node.receive("g", arrivals("s"), LeasesRenewed(("s",)))
    assert not sent_to(node.keep_alive(1_400 * MS, "g"), "g", RequestsLost)
    effects = node.keep_alive(200 * MS, "g")
    assert sent_to(effects, "g", RequestsLost) == [RequestsLost("w", ("r",))]
    node.receive("g", LeasesRenewed(("s", "r")))
    assert not sent_to(node.keep_alive(1_500 * MS, "g"), "g", RequestsLost)
    assert node.machine.work.leases.request_ids == {"s"}


def test_a_pin_that_nobody_renews_is_released():
    node = NodeUnderTest("g")
    node.receive("g", PrefillsArrived((request("r", 6),), (0,)))
    node.export(node.land())
    assert node.machine.work.machine.sequences.pinned
    node.keep_alive(3_100 * MS, "g")
    assert node.machine.work.idle


def test_a_refused_registration_ends_the_process_with_the_reason():
    node = NodeUnderTest()
    node.handle(GatewayConnected("g"))
    assert node.receive("g", RegistrationRefused("too old")) == [Leave("too old")]
    assert node.handle(GatewayConnected("g")) == []
    assert node.machine.next_wakeup() is None


# Peers


def test_a_peer_is_connected_once_and_forgotten_when_no_gateway_reports_it():
    node = NodeUnderTest("g", "h")
    joined = PeerJoined("p", "1", PEER.export)
    assert node.receive("g", joined) == [ConnectPeer("p", "1", PEER.export)]
    assert node.receive("h", joined) == []
    assert node.handle(GatewayGone("g")) == []
    assert node.handle(GatewayGone("h")) == [ForgetPeer("p", "1")]


def test_a_peer_that_one_gateway_knows_dead_is_forgotten():
    node = NodeUnderTest("g", "h")
    for gateway in ("g", "h"):
        node.receive(gateway, PeerJoined("p", "1", PEER.export))
    assert node.receive("g", PeerLost("p", "1")) == [ForgetPeer("p", "1")]
    assert node.receive("h", PeerLost("p", "1")) == []


# KV comes in


def test_ordered_moves_run_and_their_ends_are_reported():
    node = NodeUnderTest("g")
    blocks = importing(node)
    (start,) = node.receive("g", order(7, 0, 8, blocks[:2]))
    assert start == StartMove(0, order(7, 0, 8, blocks[:2]))
    effects = node.handle(MoveFinished(0, DONE))
    assert sent_to(effects, "g") == [MoveEnded("w", 7, DONE)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda blocks: order(1, 0, 8, blocks[1:]), "not reserved"),
        (lambda blocks: order(1, 0, 9, blocks[:2]), "not reserved"),
        (lambda blocks: order(1, 0, 13, blocks), "not to be imported"),
        (lambda blocks: order(1, 4, 4, ()), "not to be imported"),
        (lambda blocks: order(1, 0, 8, blocks[:2], request_id="s"), "no request of g"),
        (lambda blocks: order(1, 0, 8, blocks[:2], source="x"), "no peer"),
        (lambda blocks: order(1, 0, 8, blocks[:2], incarnation="2"), "no peer"),
    ],
)
def test_orders_that_make_no_sense_are_not_carried_out(wrong, words):
    node = NodeUnderTest("g")
    blocks = importing(node)
    (ended,) = sent_to(node.receive("g", wrong(blocks)), "g")
    assert not ended.report.arrived
    assert words in ended.report.problem


def test_a_gateway_cannot_order_kv_for_a_request_of_another_nor_twice():
    node = NodeUnderTest("g", "h")
    blocks = importing(node)
    node.receive("h", PeerJoined("p", "1", PEER.export))
    (ended,) = sent_to(node.receive("h", order(1, 0, 8, blocks[:2])), "h")
    assert "no request of h" in ended.report.problem
    node.receive("g", order(1, 0, 8, blocks[:2]))
    (ended,) = sent_to(node.receive("g", order(1, 0, 8, blocks[:2])), "g")
    assert "under way already" in ended.report.problem


def test_an_import_ends_only_when_nobody_writes_to_its_blocks():
    node = NodeUnderTest("g")
    blocks = importing(node)
    node.receive("g", order(1, 0, 8, blocks[:2]), order(2, 8, 9, blocks[2:]))
    node.handle(MoveFinished(0, DONE))
    # The second is late, and the gateway has given it up.
    effects = node.receive("g", StopMove(2), ImportDone("r", 8))
    assert effects == [EndMove(1)]
    assert not node.plans
    effects = node.handle(MoveFinished(1, LOST))
    assert of_kind(effects, RunStep)
    assert not node.machine.work.machine.sequences.importing


@pytest.mark.parametrize(
    "gone", [GatewayGone("g"), MessageFromGateway("g", RequestsAborted(("r",)))]
)
def test_blocks_stay_reserved_while_a_move_writes_to_them(gone):
    node = NodeUnderTest("g")
    blocks = importing(node)
    node.receive("g", order(1, 0, 9, blocks))
    effects = node.handle(gone)
    assert of_kind(effects, EndMove) == [EndMove(0)]
    pool = node.machine.work.machine.sequences.pool
    assert pool.free_blocks == pool.block_count - len(blocks)
    assert not len(node.machine.work.leases)
    effects = node.handle(MoveFinished(0, DONE))
    assert pool.free_blocks == pool.block_count
    assert node.machine.work.idle
    # Its end is not reported to who has forgotten it.
    assert bool(sent_to(effects, "g", MoveEnded)) == isinstance(gone, MessageFromGateway)


def test_a_move_is_stopped_once():
    node = NodeUnderTest("g")
    blocks = importing(node)
    node.receive("g", order(1, 0, 9, blocks))
    assert node.receive("g", StopMove(1), StopMove(1), StopMove(5)) == [EndMove(0)]
    assert of_kind(node.receive("g", RequestsAborted(("r",))), EndMove) == []


def test_no_more_kv_is_believed_than_has_come():
    node = NodeUnderTest("g")
    blocks = importing(node)
    node.receive("g", order(1, 0, 4, blocks[:1]), order(2, 4, 8, blocks[1:2]))
    node.handle(MoveFinished(1, DONE))
    node.handle(MoveFinished(0, LOST))
    node.receive("g", ImportDone("r", 9, (5,)))
    (plan,) = node.plans
    # The second part is of no use without the first: everything is computed.
    assert plan.starts.tolist() == [0]


def test_an_import_that_is_nobodys_is_ignored():
    node = NodeUnderTest("g")
    assert node.receive("g", ImportDone("r", 9), StopMove(3)) == []


# KV goes out


def prefilling(node: NodeUnderTest, prompt_tokens: int = 22) -> list:
    node.receive("g", PrefillsArrived((request("r", prompt_tokens),), (0,)))
    return node.land()


def test_whole_blocks_are_reported_once_their_metadata_is_written():
    node = NodeUnderTest("g")
    effects = prefilling(node)
    (export,) = of_kind(effects, ExportBlocks)
    assert len(export.blocks) == 2
    assert not sent_to(effects, "g", KvReported)
    (report,) = sent_to(node.handle(BlocksExported(export.export_id)), "g")
    assert report.computed.tokens == (8,)
    assert report.computed.blocks == (export.blocks,)
    assert report.computed.versions == (export.versions,)
    assert report.computed.held == (False,)


def test_a_part_of_a_block_is_reported_only_when_the_request_is_held():
    node = NodeUnderTest("g")
    node.receive("g", PrefillsArrived((request("s", 2), request("r", 13)), (0, 0)))
    # The first step computes 2 and 6 tokens, the second the rest.
    (report,) = sent_to(node.export(node.land()), "g")
    rows = dict(zip(report.computed.request_ids, report.computed.tokens, strict=True))
    assert rows == {"s": 2, "r": 4}
    (report,) = sent_to(node.export(node.land()), "g")
    assert (report.computed.tokens, report.computed.held) == ((13,), (True,))
    assert len(report.computed.blocks[0]) == 4


def test_reports_keep_their_order_however_exports_end():
    node = NodeUnderTest("g")
    (first,) = of_kind(prefilling(node), ExportBlocks)
    (second,) = of_kind(node.land(), ExportBlocks)
    assert node.handle(BlocksExported(second.export_id)) == []
    (report,) = sent_to(node.handle(BlocksExported(first.export_id)), "g")
    assert report.computed.tokens == (8, 16)


def test_blocks_whose_metadata_is_written_are_not_written_again():
    node = NodeUnderTest("g")
    exports = of_kind(prefilling(node), ExportBlocks)
    while node.plans:
        exports += of_kind(node.land(), ExportBlocks)
    for export in exports:
        node.handle(BlocksExported(export.export_id))
    node.receive("g", TransferPinsReleased(("r",)))
    # Its prompt is cached: a second request with it reports the same blocks.
    node.receive("g", PrefillsArrived((request("again", 22),), (0,)))
    (export,) = of_kind(node.land(), ExportBlocks)
    (report,) = sent_to(node.handle(BlocksExported(export.export_id)), "g")
    assert len(export.blocks) == 1
    assert len(report.computed.blocks[0]) == 6


def test_nothing_is_reported_of_a_request_that_is_gone():
    node = NodeUnderTest("g")
    (export,) = of_kind(prefilling(node, 6), ExportBlocks)
    node.receive("g", RequestsAborted(("r",)), TransferPinsReleased(("r",)))
    assert node.handle(BlocksExported(export.export_id)) == []
    assert node.machine.work.idle


def test_versions_tell_a_block_from_what_it_held_before():
    node = NodeUnderTest("g", block_count=16)
    seen = {}
    for number in range(6):
        sampled = request(f"r{number}", 20 + number)
        node.receive("g", PrefillsArrived((sampled,), (0,)))
        while node.plans:
            for export in of_kind(node.land(), ExportBlocks):
                for block, version in zip(export.blocks, export.versions, strict=True):
                    assert seen.get(block, 0) < version
                    seen[block] = version
                node.handle(BlocksExported(export.export_id))
        node.receive("g", TransferPinsReleased((f"r{number}",)))
    assert max(seen.values()) > 1


# RoleState


def test_a_plain_drain_stays_until_it_is_called_off():
    node = NodeUnderTest("g", "h")
    effects = node.receive("g", Drain())
    for gateway in ("g", "h"):
        assert sent_to(effects, gateway) == [RoleStateReported("w", Role.BOTH, accepting=False)]
    node.receive("g", NotNeeded())
    assert node.receive("h", NotNeeded()) == []
    effects = node.receive("g", Undrain())
    assert sent_to(effects, "h") == [RoleStateReported("w", Role.BOTH, accepting=True)]


def test_a_flip_waits_for_every_gateway_and_every_request():
    node = NodeUnderTest("g", "h")
    node.receive("g", arrivals("r"))
    node.receive("h", Drain(then_role=Role.DECODE))
    node.receive("h", NotNeeded())
    # What was under way when it began to drain is still served.
    node.receive("g", arrivals("s"))
    while node.plans:
        assert not sent_to(node.land(), "g", RoleStateReported)
    effects = node.receive("g", NotNeeded())
    for gateway in ("g", "h"):
        assert sent_to(effects, gateway) == [RoleStateReported("w", Role.DECODE, accepting=True)]
    (presented,) = sent_to(node.handle(GatewayConnected("k")), "k")
    assert presented.role is Role.DECODE


def test_leaving_deregisters_everywhere():
    node = NodeUnderTest("g", "h")
    node.receive("g", Drain(leave=True))
    node.receive("g", NotNeeded())
    effects = node.receive("h", NotNeeded())
    assert effects == [
        SendToGateway("g", Deregister("w")),
        SendToGateway("h", Deregister("w")),
        Leave(),
    ]


def test_a_process_that_is_to_end_does_so_at_once_when_nobody_knows_it():
    node = NodeUnderTest()
    node.handle(GatewayConnected("g"))
    assert node.handle(LeaveRequested()) == [Leave()]


def test_nobody_calls_off_the_end_of_a_process():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    assert sent_to(node.handle(LeaveRequested()), "g") == [
        RoleStateReported("w", Role.BOTH, accepting=False)
    ]
    assert sent_to(node.receive("g", Undrain()), "g") == [
        RoleStateReported("w", Role.BOTH, accepting=False)
    ]
    node.receive("g", Drain(then_role=Role.DECODE), RequestsAborted(("r",)))
    node.land_all()
    assert of_kind(node.receive("g", NotNeeded()), Leave) == [Leave()]


def test_when_the_last_gateway_goes_a_leaving_worker_goes_too():
    node = NodeUnderTest("g", "h")
    node.receive("g", arrivals("r"))
    node.handle(LeaveRequested())
    assert not of_kind(node.handle(GatewayGone("h")), Leave)
    assert of_kind(node.handle(GatewayGone("g")), Leave)


def test_a_change_of_role_state_during_registration_is_reported():
    node = NodeUnderTest("g")
    node.handle(GatewayConnected("h"))
    node.receive("g", Drain())
    messages = sent_to(node.receive("h", TERMS), "h")
    assert messages[-1] == RoleStateReported("w", Role.BOTH, accepting=False)


# Operators


def test_an_audit_counts_what_is_held_and_names_what_is_broken():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    (audited,) = sent_to(node.receive("g", Audit()), "g")
    assert (audited.running, audited.leases, audited.owned_blocks) == (1, 1, 2)
    assert audited.problem == ""
    node.machine.work.leases.end("r")
    (audited,) = sent_to(node.machine.handle(MessageFromGateway("g", Audit()), node.now_ns), "g")
    assert "an invariant does not hold at Work.audit" in audited.problem


def test_blocks_are_listed_on_demand():
    node = NodeUnderTest("g")
    node.receive("g", arrivals("r"))
    (changes,) = [report.changes for report in sent_to(node.land(), "g", BlocksReported)]
    assert isinstance(changes, BlockChanges)
    (listing,) = sent_to(node.receive("g", ListBlocks(Tier.DEVICE)), "g")
    assert listing.hashes == changes.stored
    assert node.receive("g", ListBlocks(Tier.HOST)) == []


def test_what_comes_from_a_broken_channel_is_void():
    node = NodeUnderTest("g")
    node.handle(GatewayGone("g"))
    assert node.receive("g", arrivals("r")) == []
    assert node.machine.work.idle


def test_adapters_are_reported_when_they_change_and_to_whoever_comes():
    node = NodeUnderTest("g")

    def told(effects: list, gateway: str) -> list[AdapterMemory]:
        loads = sent_to(effects, gateway, LoadReported)
        return [each.adapters.memory for each in loads if each.adapters is not None]

    def reported() -> list[AdapterMemory]:
        return told(node.keep_alive(3000 * MS, "g"), "g")

    # Whoever serves none says nothing of them.
    assert reported() == []
    memory = AdapterMemory(2, 50, 90, loads=4, evictions=2)
    for known in (structs.replace(memory, evictions=1), memory):
        node.handle(AdapterMemoryChanged(known))
        assert reported() == [known]
    assert reported() == []
    node.handle(GatewayConnected("h"))
    assert told(node.receive("h", TERMS), "h") == [memory]
