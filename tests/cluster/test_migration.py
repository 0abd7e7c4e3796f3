"""A request moves to another worker while it decodes: stage by stage, and what may go wrong."""

from dataclasses import replace

import pytest
from msgspec import structs

from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.migration import MOST_BEHIND_TOKENS
from tandem.cluster.router.request_state import Stage
from tandem.facts.fleet import Role, Tier
from tandem.facts.request import FinishReason
from tandem.messages.cluster import Drain, NotNeeded
from tandem.messages.node import Leave
from tandem.messages.router import (
    CancelTransfer,
    ImportReported,
    KvReported,
    MigrationsRequested,
    RequestRefused,
    RequestsLost,
    RequestWithdrawn,
    SendEvent,
    StartTransfer,
    TransferEnded,
    WorkerDrained,
    WorkerLost,
)
from tandem.messages.worker import (
    CopiesRequested,
    ImportBlocks,
    ImportDone,
    ImportsArrived,
    KvComputed,
    KvTransfersRequested,
    RequestsAborted,
    RequestsArrived,
    TransferPinsReleased,
)
from tests.cluster.cluster_parts import NodeUnderTest, of_kind, request, sent_to
from tests.cluster.test_router import drew, router, submit

COPY = "r~0.1"


class Moving:
    """A request of seven known tokens that moves from w0 to w1, led by hand."""

    def __init__(self) -> None:
        self.machine: RouterMachine = router(Role.BOTH, Role.BOTH)
        (started,) = submit(self.machine, "r")
        assert started.worker == "w0"
        self.receive(drew("w0", "r"), drew("w0", "r"))

    def receive(self, *events) -> list:
        effects = []
        for event in events:
            effects += self.machine.handle(event, 1)
            self.machine.audit()
        return effects

    @property
    def state(self):
        return self.machine.requests["r"]

    def ask(self) -> list:
        return self.receive(MigrationsRequested("w0", "w1", 1000))

    def report_kv(self, tokens: int, held: bool = False) -> list:
        return self.receive(KvReported("w0", KvComputed(("r",), (tokens,), ((0, 1),), (held,))))

    def reserve(self, tokens: int = 4) -> list:
        name = self.state.names.copy
        return self.receive(ImportReported("w1", ImportBlocks(name, 0, tokens, (5,))))

    def until_copying(self) -> StartTransfer:
        self.ask()
        self.report_kv(4)
        (transfer,) = self.reserve()
        return transfer

    def until_moving(self) -> None:
        transfer = self.until_copying()
        self.receive(TransferEnded(transfer.transfer_id, True))
        assert self.state.stage is Stage.MOVING


def test_a_request_decodes_on_until_its_kv_is_at_the_next_worker():
    moving = Moving()
    assert moving.ask() == [SendEvent("w0", CopiesRequested(("r",)))]
    (arrived,) = moving.report_kv(4)
    (known,) = arrived.event.requests
    assert (arrived.worker, arrived.event) == ("w1", ImportsArrived((known,), (4,)))
    assert (known.request_id, known.output_tokens) == (COPY, (7, 7))
    assert moving.reserve() == [StartTransfer(0, COPY, "w0", Tier.DEVICE, "w1", 0, 4)]
    # It draws more while it is read.
    assert moving.receive(drew("w0", "r")) == []
    handed = moving.receive(TransferEnded(0, True))
    assert handed == [SendEvent("w0", KvTransfersRequested(("r",)))]
    moving.receive(drew("w0", "r"))
    assert moving.report_kv(8, held=True) == [
        SendEvent("w1", ImportDone(COPY, 4, (7, 7))),
        SendEvent("w0", TransferPinsReleased(("r",))),
    ]
    assert moving.receive(drew("w1", COPY, FinishReason.LENGTH)) == []
    assert not moving.machine.requests
    assert not moving.machine.takeovers


def test_one_that_has_no_whole_block_yet_only_gets_a_place():
    moving = Moving()
    moving.machine = router(Role.BOTH, Role.BOTH)
    state_source = moving.machine.admission.fleet.workers["w0"]
    state_source.capacity = replace(state_source.capacity, block_size=64)
    submit(moving.machine, "r")
    moving.receive(drew("w0", "r"))
    (arrived,) = moving.ask()
    assert (arrived.worker, type(arrived.event)) == ("w1", ImportsArrived)
    assert moving.reserve(6) == [SendEvent("w0", KvTransfersRequested(("r",)))]


def stays(moving: Moving, effects: list) -> None:
    """The target gives it up, and it goes on at the source as if nothing had been."""
    target = [e.event for e in effects if isinstance(e, SendEvent) and e.worker == "w1"]
    source = [e.event for e in effects if isinstance(e, SendEvent) and e.worker == "w0"]
    assert target in ([], [RequestsAborted((COPY,))])
    assert source == [TransferPinsReleased(("r",))]
    assert moving.state.stage is Stage.DECODING
    moving.receive(drew("w0", "r"))
    assert list(moving.state.output) == [7, 7, 7]
    moving.receive(drew("w0", "r", FinishReason.LENGTH))
    assert not moving.machine.requests
    assert not moving.machine.takeovers


@pytest.mark.parametrize(
    "trouble",
    [
        WorkerLost("w1"),
        WorkerDrained("w1"),
        RequestRefused("w1", COPY, "too many wait", 1.0),
        RequestsLost("w1", (COPY,)),
        KvReported("w0", KvComputed(("r",), (0,), ((),), (False,))),
        TransferEnded(0, False),
    ],
    ids=[
        "target dies",
        "target drains",
        "target refuses",
        "target forgets",
        "source preempts",
        "transfer fails",
    ],
)
def test_whatever_goes_wrong_while_it_is_read_it_goes_on_where_it_is(trouble):
    moving = Moving()
    moving.until_copying()
    effects = moving.receive(trouble)
    ended = isinstance(trouble, TransferEnded)
    assert ended or CancelTransfer(0, "w1") in effects
    stays(moving, [effect for effect in effects if effect != CancelTransfer(0, "w1")])


def test_a_target_that_found_room_too_late_begins_anew():
    moving = Moving()
    transfer = moving.until_copying()
    late = structs.replace(drew("w0", "r"), repeats=MOST_BEHIND_TOKENS)
    moving.receive(late)
    moving.receive(TransferEnded(transfer.transfer_id, True))
    assert moving.state.stage is Stage.DECODING
    assert moving.ask() == [SendEvent("w0", CopiesRequested(("r",)))]
    # The second time it moves in any case: with all that could be read by then.
    (arrived,) = moving.report_kv(4)
    assert arrived.event.requests[0].request_id == "r~0.2"
    (transfer,) = moving.reserve()
    (handed,) = moving.receive(TransferEnded(transfer.transfer_id, False))
    assert handed == SendEvent("w0", KvTransfersRequested(("r",)))
    (done, _) = moving.report_kv(260, held=True)
    assert done == SendEvent("w1", ImportDone("r~0.2", 0, ()))


def test_what_comes_late_of_a_copy_is_not_taken_for_the_next():
    moving = Moving()
    moving.until_copying()
    moving.receive(RequestsLost("w1", (COPY,)))
    moving.ask()
    # Sent before the worker knew that its copy was given up.
    assert moving.receive(ImportReported("w1", ImportBlocks(COPY, 0, 4, (5,)))) == []
    assert moving.receive(RequestRefused("w1", COPY, "too many wait", 1.0)) == []
    assert moving.state.stage is Stage.COPYING
    assert moving.receive(TransferEnded(0, True)) == []


def test_an_answer_that_ends_while_it_is_read_is_wanted_by_nobody_else():
    moving = Moving()
    moving.until_copying()
    effects = moving.receive(drew("w0", "r", FinishReason.STOP))
    assert SendEvent("w1", RequestsAborted((COPY,))) in effects
    assert CancelTransfer(0, "w1") in effects
    assert not moving.machine.requests


def test_a_client_that_leaves_leaves_both():
    moving = Moving()
    moving.until_copying()
    effects = moving.receive(RequestWithdrawn("r"))
    assert SendEvent("w1", RequestsAborted((COPY,))) in effects
    assert SendEvent("w0", RequestsAborted(("r",))) in effects


@pytest.mark.parametrize(("stage", "dead"), [("copying", "w0"), ("moving", "w0"), ("moving", "w1")])
def test_a_death_that_leaves_nothing_whole_begins_it_again_with_the_tokens_so_far(stage, dead):
    moving = Moving()
    getattr(moving, f"until_{stage}")()
    effects = moving.receive(WorkerLost(dead))
    (again,) = [
        e for e in effects if isinstance(e, SendEvent) and isinstance(e.event, RequestsArrived)
    ]
    (taken_up,) = again.event.requests
    assert (taken_up.request_id, taken_up.output_tokens) == ("r~1", (7, 7))
    assert again.worker != dead
    moving.receive(drew(again.worker, "r~1", FinishReason.LENGTH))
    assert not moving.machine.requests


# What the worker reports


def decoding(tokens: int = 9) -> NodeUnderTest:
    node = NodeUnderTest("g", block_count=17)
    node.receive("g", RequestsArrived((request("r", tokens, max_tokens=40),)))
    while node.machine.work.machine.sequences.running[0].residency.confirmed < tokens:
        node.land()
    return node


def test_a_worker_reports_its_whole_blocks_and_decodes_on():
    node = decoding()
    (report,) = sent_to(node.export(node.receive("g", CopiesRequested(("r",)))), "g")
    assert (report.computed.tokens, report.computed.held) == ((8,), (False,))
    assert node.land()
    assert node.plans
    # Nothing new: it is reported all the same to whoever begins anew.
    node.receive("g", TransferPinsReleased(("r",)))
    (report,) = sent_to(node.receive("g", CopiesRequested(("r",))), "g", KvReported)
    assert report.computed.tokens == (8,)


def test_of_what_cannot_be_read_no_tokens_are_reported():
    node = NodeUnderTest("g")
    node.receive("g", RequestsArrived((request("r", 9),)))
    (report,) = sent_to(node.receive("g", CopiesRequested(("r",))), "g", KvReported)
    assert report.computed.tokens == (0,)
    # It is as much wanted as before.
    assert node.machine.work.leases.owner("r") == "g"
    assert sent_to(node.receive("g", CopiesRequested(("nobody",))), "g") == []


def test_a_copied_request_that_gives_way_is_reported_and_waits_for_its_turn():
    node = decoding()
    sent_to(node.export(node.receive("g", CopiesRequested(("r",)))), "g")
    # More urgent, and nearly as large as the whole pool.
    urgent = replace(request("u", 60, max_tokens=4), prompt_tokens=(9,) * 60, priority=-1)
    effects = node.receive("g", RequestsArrived((urgent,)))
    (lost,) = sent_to(effects + node.land(), "g", KvReported)
    assert (lost.computed.request_ids, lost.computed.tokens) == (("r",), (0,))
    assert node.machine.work.leases.owner("r") == "g"
    for _ in range(200):
        if not node.plans:
            break
        node.land()
    assert node.machine.work.idle


def test_of_one_that_gave_way_before_it_was_to_be_handed_over_nothing_is_awaited():
    node = decoding()
    urgent = replace(request("u", 60, max_tokens=4), prompt_tokens=(9,) * 60, priority=-1)
    node.receive("g", RequestsArrived((urgent,)))
    node.land()
    (lost,) = sent_to(node.receive("g", KvTransfersRequested(("r",))), "g", KvReported)
    assert (lost.computed.request_ids, lost.computed.tokens) == (("r",), (0,))
    assert node.machine.work.leases.owner("r") == "g"
    node.receive("g", RequestsAborted(("r", "u")))
    node.land_all()
    assert node.machine.work.idle
    moving = Moving()
    moving.ask()
    moving.report_kv(4)
    moving.reserve(4)
    moving.receive(TransferEnded(0, arrived=True))
    assert moving.state.stage is Stage.MOVING
    effects = moving.report_kv(0)
    assert SendEvent("w1", RequestsAborted((COPY,))) in effects
    assert moving.machine.requests["r"].names.attempt == 1


def test_a_worker_that_is_to_come_back_leaves_with_that_for_its_supervisor():
    node = NodeUnderTest("g")
    node.receive("g", Drain(leave=True, again=True))
    assert of_kind(node.receive("g", NotNeeded()), Leave) == [Leave(again=True)]
