"""What is read from a journal: what became of each request, the workload, and the workers."""

import msgspec

from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, KvGeometry
from tandem.facts.slo import Slo
from tandem.messages.cluster import PROTOCOL, Deregister, Register
from tandem.messages.codec import TO_GATEWAY
from tandem.messages.gateway import PeerGone
from tandem.observe.journal.history import History, Outcome, pools_of, trace_rows
from tandem.observe.journal.records import (
    Hashed,
    PeerMessage,
    Submitted,
    TokensDrawn,
    Turn,
    Withdrawn,
)
from tests.observe.test_journal_files import HEAD

S = 1_000_000_000
A, B, C = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16


def register(worker: str, pool: str, role: Role = Role.BOTH, blocks: int = 100) -> Register:
    export = KvExport("model", "main", KvGeometry(1, 1, 1, 16, "float32"), blocks, ())
    return Register(PROTOCOL, "0", worker, "a", pool, role, True, HEAD.root, export, 8, 4096)


def said(message) -> PeerMessage:
    return PeerMessage(f"{message.worker}/a", TO_GATEWAY.encode(message))


def submitted(name: int, tokens: int = 40, session: str = "", most: int = 50) -> Submitted:
    return Submitted(name, name, tokens, most, 0, 20.4, "tenant", "gold", session, Slo(), None, 0)


def drew(worker: str, *names, ends: bool = False, repeats: int = 1, cached: int = 0) -> TokensDrawn:
    reasons = ("stop",) * len(names) if ends else ()
    return TokensDrawn(f"{worker}/a", worker, names, repeats, reasons, (cached,) * len(names))


def history(*turns) -> History:
    """Of (instant in seconds, events, decisions, hashes)."""
    made = []
    for at_s, events, *rest in turns:
        decisions, hashed = [*rest, (), ()][:2]
        made.append(Turn(round(at_s * S), tuple(events), tuple(hashed), tuple(decisions)))
    return History(HEAD, made)


def test_each_request_ends_as_it_did():
    past = history(
        (1, [submitted(0), submitted(1), submitted(2), submitted(3), submitted(4)]),
        (1, [], ["Reject 2 reason='full' retry_after_s=2.0"]),
        (2, [drew("p", 0, 1, 4, cached=32)]),
        (3, [drew("d", 0, 1, repeats=2)]),
        (4, [drew("d", 0, ends=True), Withdrawn(1), Withdrawn("?")]),
        (5, [], ["FailRequest 3 reason='it died'", "FailRequest ? reason='late'"]),
        # What comes after the end is nobody's.
        (6, [drew("d", 0, 1)]),
    ).requests
    outcomes = [past[name].outcome for name in range(5)]
    assert outcomes == [
        Outcome.FINISHED,
        Outcome.WITHDRAWN,
        Outcome.REJECTED,
        Outcome.FAILED,
        Outcome.OPEN,
    ]
    first = past[0]
    assert (first.tokens, first.cached_tokens) == (4, 32)
    assert (first.first_token_ns, first.last_token_ns, first.end_ns) == (2 * S, 4 * S, 4 * S)
    assert first.gaps_ns == [S // 2, S // 2, S]
    assert (first.first_worker, first.worker) == ("p", "d")
    assert past[1].tokens == 3


def test_what_an_earlier_attempt_still_says_does_not_count():
    past = history(
        (1, [submitted(0)]),
        (2, [drew("p", 0)]),
        (3, [drew("d", "0~1")]),
        (4, [drew("p", 0)]),
        (5, [drew("d", "0~1.2", ends=True)]),
    ).requests[0]
    assert (past.tokens, past.attempts, past.outcome) == (3, 1, Outcome.FINISHED)


def test_the_workload_can_be_played_elsewhere():
    rows = trace_rows(
        history(
            (0, [said(register("w", "p"))]),
            (2, [submitted(0), submitted(1)], [], [Hashed(0, 0, A + B), Hashed(1, 0, None)]),
            (3, [submitted(2)], [], [Hashed(2, 0, A + C)]),
            (4, [drew("w", 0, 1, 2)], [], [Hashed(0, 2, C)]),
            (5, [drew("w", 0, 1, 2, ends=True)]),
            (6, [submitted(3, most=10)], ["Reject 3 reason='full' retry_after_s=1.0"]),
        )
    )
    assert [row.arrival_s for row in rows] == [0, 0, 1, 4]
    assert [row.block_ids for row in rows] == [(0, 1), (0, 1), (0, 2), ()]
    assert [row.output_tokens for row in rows] == [2, 2, 2, 10]
    assert {row.block_tokens for row in rows} == {16}
    assert {(row.tenant, row.service_class) for row in rows} == {("tenant", "gold")}


def test_turns_of_a_session_wait_as_they_did():
    rows = trace_rows(
        history(
            (1, [submitted(0, session="s")]),
            (2, [drew("w", 0, ends=True)]),
            (5, [submitted(1, session="s")]),
            # This one did not wait.
            (6, [submitted(2, session="s")]),
            (7, [drew("w", 1, 2, ends=True)]),
            (8, [submitted(3, session="t")]),
        )
    )
    assert [(row.session, row.think_s) for row in rows] == [("s", 0), ("s", 3), ("", 0), ("t", 0)]


def test_workers_that_were_there_before_stand_in_the_head():
    head = msgspec.structs.replace(
        HEAD, members=(said(register("w0", "p")), said(register("w1", "p")))
    )
    turns = [
        Turn(10 * S, (submitted(5),), (), ()),
        Turn(12 * S, (PeerGone("w1/a", "it broke", True), drew("w0", 4, 5)), (), ()),
        Turn(14 * S, (drew("w0", 5, ends=True),), (), ()),
    ]
    past = History(head, turns)
    assert {name: worker.up_ns // S for name, worker in past.workers.items()} == {"w0": 4, "w1": 2}
    assert [pool.count for pool in pools_of(past)] == [2]
    assert [row.output_tokens for row in trace_rows(past)] == [2]


def test_workers_are_those_that_were_there():
    past = history(
        (0, [said(register("p-0", "p", Role.PREFILL)), said(register("d-0", "d", Role.DECODE))]),
        (0, [said(register("d-1", "d", Role.DECODE, blocks=60))]),
        (10, [submitted(0)]),
        (12, [PeerGone("d-1/a", "it broke", True)]),
        (14, [said(register("d-1", "d", Role.DECODE, blocks=70))]),
        (15, [drew("d-0", 0), said(Deregister("p-0"))]),
        (20, [drew("d-0", 0, ends=True)]),
    )
    pools = {pool.name: pool for pool in pools_of(past)}
    assert (pools["p"].role, pools["p"].count, pools["p"].block_count) == (Role.PREFILL, 1, 100)
    assert (pools["d"].role, pools["d"].count, pools["d"].block_count) == (Role.DECODE, 2, 70)
    assert {name: worker.up_ns // S for name, worker in past.workers.items()} == {
        "p-0": 5,
        "d-0": 10,
        "d-1": 8,
    }
    assert past.seconds == 10
