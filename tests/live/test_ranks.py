"""Ranks as real processes: what they receive and send, and that none outlives its worker."""

import signal
import subprocess
import sys
from array import array
from queue import SimpleQueue

import numpy as np
import pytest

from tandem.facts.adapter import Adapter
from tandem.facts.kv import MoveKv, MoveReport
from tandem.facts.request import TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import Placement, StepPlan, StepResult
from tandem.live.ranks.ranks import RankLost, Ranks, start_follower
from tandem.live.ranks.transfers import NullTransfer, RankedTransferEngine, RankTally
from tandem.messages.checks import BadMessage
from tandem.messages.node import BlocksExported, MoveFinished
from tandem.messages.ranks import TO_FOLLOWER, TO_LEADER, RankReady
from tests.live.gateway_side import Alive

COMMAND = (sys.executable, "-m", "tests.live.rank_script")
WAIT_S = 30.0


def a_plan(step_id: int = 7) -> StepPlan:
    sampling = SamplingParameters(temperature=0.5, seed=(1 << 64) - 1, logit_bias=((3, 1.5),))
    adapter = Adapter("a" * 32, "/adapters/a", 1 << 30)
    table = np.array([[0, 0, 5], [1, 2, 6]], np.int32)
    return StepPlan(
        step_id,
        (
            Placement(0, "a", array("I", [1, 2, (1 << 32) - 1]), 2, sampling, adapter),
            Placement(1, "b", array("I", [3]), 1, sampling),
        ),
        slots=np.array([0, 1], np.int32),
        starts=np.array([0, 8], np.int32),
        counts=np.array([3, 1], np.int32),
        samples=np.array([True, False]),
        table_slots=table[:, 0],
        table_indices=table[:, 1],
        table_blocks=table[:, 2],
        scored_counts=np.array([1, 0], np.int32),
    )


def an_order(transfer_id: int = 1) -> MoveKv:
    return MoveKv(transfer_id, "r", "w", "1", 0, 16, (3,), (1,), (4,))


class Group:
    """Two followers, and what they sent to their leader."""

    def __init__(self, silence_s: float = 20.0, setup: bytes = b"") -> None:
        self.followers = {rank: start_follower(COMMAND, 5.0) for rank in (1, 2)}
        self.ranks = Ranks(self.followers, silence_s)
        self.received: SimpleQueue = SimpleQueue()
        self.failed: SimpleQueue = SimpleQueue()
        self.ranks.listen(lambda rank, message: self.received.put((rank, message)), self.failed.put)
        for follower in self.followers.values():
            follower.begin(setup)

    def ready(self) -> None:
        assert {self.received.get(timeout=WAIT_S) for _ in (1, 2)} == {
            (1, RankReady(())),
            (2, RankReady(())),
        }


@pytest.fixture(scope="module")
def group():
    group = Group()
    group.ready()
    yield group
    group.ranks.close(WAIT_S)
    assert [f.process.returncode for f in group.followers.values()] == [0, 0]


def test_a_plan_travels_whole():
    plan = a_plan()
    back = TO_FOLLOWER.decode(TO_FOLLOWER.encode(plan))
    assert isinstance(back, StepPlan)
    assert (back.step_id, back.placements) == (plan.step_id, plan.placements)
    arrays = set(StepPlan.__struct_fields__) - {"step_id", "placements"}
    assert "scored_counts" in arrays
    for name in arrays:
        sent, got = getattr(plan, name), getattr(back, name)
        assert got.dtype == sent.dtype
        assert got.flags.writeable
        assert got.tolist() == sent.tolist()


def test_a_result_travels_whole():
    score = TokenLogprobs(-0.5, 2, ((4, -0.1),))
    result = StepResult(3, (4, 5), (None, score), prompt_logprobs=(score, score))
    assert TO_LEADER.decode(TO_LEADER.encode(result)) == result


def test_half_a_plan_is_refused():
    data = TO_FOLLOWER.encode(a_plan())
    for length in (0, 1, 2, len(data) // 2, len(data) - 1):
        with pytest.raises(BadMessage):
            TO_FOLLOWER.decode(data[:length])


def test_every_rank_gets_a_plan_and_chosen_ones_the_rest(group):
    group.ranks.send_to_ranks(a_plan(8))
    answers = {group.received.get(timeout=WAIT_S) for _ in (1, 2)}
    assert answers == {(1, StepResult(8, (0, 1))), (2, StepResult(8, (0, 1)))}
    group.ranks.send_to_ranks(a_plan(9), ranks={2})
    assert group.received.get(timeout=WAIT_S) == (2, StepResult(9, (0, 1)))


class OwnTransferEngine:
    """The leader's own share, which is quick."""

    def __init__(self, tally: RankTally) -> None:
        self.tally = tally

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        self.tally.rank_ended(MoveFinished(move_id, MoveReport(True, "tcp", 1, 1, 0.75)))

    def export_blocks(self, export_id: int, blocks, versions) -> None:
        self.tally.rank_ended(BlocksExported(export_id))


def test_a_move_is_over_when_it_is_on_all_ranks(group):
    ended: list = []
    tally = RankTally(3, ended.append)
    transfers = RankedTransferEngine(OwnTransferEngine(tally), group.ranks)

    def receive_one() -> None:
        tally.rank_ended(group.received.get(timeout=WAIT_S)[1])

    transfers.start_transfer(5, an_order())
    receive_one()
    assert not ended
    receive_one()
    assert ended.pop() == MoveFinished(5, MoveReport(True, "shm+tcp", 21, 5, 0.75))
    transfers.start_transfer(6, an_order(transfer_id=-1))
    receive_one()
    receive_one()
    assert not ended.pop().report.arrived
    transfers.export_blocks(2, (1,), (1,))
    receive_one()
    assert not ended
    receive_one()
    assert ended == [BlocksExported(2)]


def test_a_move_that_fails_on_one_rank_has_not_arrived():
    ended: list = []
    tally = RankTally(2, ended.append)
    tally.rank_ended(MoveFinished(1, MoveReport(False, "tcp", problem="the peer is gone")))
    tally.rank_ended(MoveFinished(1, MoveReport(True, "tcp", 8, 1, 0.1)))
    assert ended == [MoveFinished(1, MoveReport(False, "tcp", 8, 1, 0.1, "the peer is gone"))]


def test_where_nothing_moves_every_move_ends_at_once_and_says_why():
    ended: list = []
    transfers = NullTransfer("it lies on a GPU", ended.append)
    transfers.start_transfer(3, an_order())
    problem = "it lies on a GPU: nothing of w can be read"
    assert ended.pop() == MoveFinished(3, MoveReport(arrived=False, problem=problem))
    transfers.export_blocks(4, (1, 2), (1, 1))
    assert ended == [BlocksExported(4)]
    assert transfers.endpoints() == ()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_hangs_ends_the_worker(end):
    group = Group(silence_s=1.0)
    group.ready()
    group.ranks.watch()
    group.followers[2].process.send_signal(end)
    assert "rank 2" in str(group.failed.get(timeout=WAIT_S))
    group.ranks.close(0.0)
    assert all(f.process.returncode is not None for f in group.followers.values())


def test_a_rank_that_cannot_start_says_why():
    group = Group(setup=b"fail")
    assert "no memory" in str(group.failed.get(timeout=WAIT_S))
    group.ranks.close(WAIT_S)


def test_what_nobody_takes_is_not_waited_for_long():
    follower = start_follower(COMMAND, patience_s=0.2)
    follower.process.send_signal(signal.SIGSTOP)
    with pytest.raises(RankLost, match="takes no messages"):
        for _ in range(1000):
            follower.begin(bytes(1 << 16))
    Ranks({1: follower}, 1.0).close(0.0)


LEADER = """
import os, sys, time
from tandem.live.ranks.ranks import start_follower
follower = start_follower((sys.executable, "-m", "tests.live.rank_script"), 5.0)
follower.begin(b"")
follower.link.receive()
print(follower.process.pid, flush=True)
time.sleep(60)
"""


def test_no_rank_outlives_its_leader():
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE)
    assert leader.stdout is not None
    rank = Alive(int(leader.stdout.readline()))
    leader.kill()
    rank.wait_for_end()
    leader.wait()
    leader.stdout.close()


PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
child.wait()
"""
CHILD = """
import os, sys, threading
from tandem.live.processes.lifecycle import end_with_parent
parent = int(sys.argv[1])
assert end_with_parent(parent)
print(os.getpid(), flush=True)
threading.Event().wait()
"""
SLOW_CHILD = """
import os, select, sys, threading
from tandem.live.processes.lifecycle import end_with_parent
parent = int(sys.argv[1])
with os.fdopen(os.pidfd_open(parent)) as watched:
    print(os.getpid(), flush=True)
    select.select([watched], [], [])
end_with_parent(parent)
threading.Event().wait()
"""


@pytest.mark.parametrize("child", [CHILD, SLOW_CHILD], ids=["started", "still starting"])
def test_the_kernel_ends_whoever_wants_to_end_with_its_parent(child):
    command = [sys.executable, "-c", PARENT, child]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    alive = Alive(int(parent.stdout.readline()))
    parent.kill()
    alive.wait_for_end()
    parent.wait()
    parent.stdout.close()


HANGING = """
import threading
from tandem.live.processes.lifecycle import end_within
end_within(0.1, 7)
threading.Event().wait()
"""


def test_a_process_that_hangs_at_its_end_is_ended():
    hanging = subprocess.run([sys.executable, "-c", HANGING], timeout=WAIT_S, capture_output=True)
    assert hanging.returncode == 7
    assert b"did not end by itself" in hanging.stderr
