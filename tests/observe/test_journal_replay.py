"""A journal gives the decisions again, whatever happened while it was recorded; and nothing that a
client wrote stands in it."""

from array import array
from collections import Counter
from dataclasses import replace
from typing import get_args

import msgspec
import pytest

from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import TierFigures
from tandem.facts.request import Request
from tandem.messages.cluster import Drain, TiersReported
from tandem.messages.gateway import (
    DrainAsked,
    GatewayEvent,
    MessageFromWorker,
    PeerGone,
    TimePassed,
)
from tandem.messages.router import RequestSubmitted, RequestWithdrawn
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import (
    EventRecord,
    Lost,
    Turn,
    decode_record,
    encode,
)
from tandem.observe.journal.replay import ReplayedEvents, compare
from tandem.policy.routing.policies import make_routing
from tests.observe.recorded_cluster import Recorded
from tests.seeds import seeds
from tests.twin.chance_draws import World
from tests.twin.chance_run import ChanceRun, play

CHUNKS, SEEDS = seeds(2, 10), 40


def recorded(seed: int) -> Recorded:
    return play(seed, World(), Recorded).cluster


# Clusters with tiers and under changing configurations are replayed in tests/twin.
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_same_machine_decides_the_same(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        cluster = recorded(seed)
        seen.update(cluster.seen)
        seen["decisions"] += cluster.replay_all()
    rare = ("flips", "fenced", "gateway lost", "taken up again", "copies")
    assert all(seen[what] for what in rare), seen
    assert seen["decisions"] > 100 * SEEDS


def test_how_a_request_came_and_ended_is_recorded():
    recorder = Recorder(4, TenantNames(), SessionNames(b"key"))
    request = Request("r", tuple(range(9)))
    events = (
        RequestSubmitted(request, 10.0, arrived_ns=5),
        RequestWithdrawn("r", satisfied=True),
    )
    turn = decode_record(recorder.turn(9, events, ()))
    replayed = ReplayedEvents(lambda _: None)
    came, ended = (replayed.event(each) for each in turn.events)
    assert (came.arrived_ns, ended) == (5, RequestWithdrawn("0", satisfied=True))


def test_another_policy_is_found_out_and_explained():
    differences = []
    for seed in range(20):
        for recording in recorded(seed).recordings:
            done = recording.replay(routing=make_routing("random", 12345))
            if done.difference is not None:
                differences.append(done.difference)
    assert differences
    assert all(each.recorded != each.replayed for each in differences)
    assert any(each.explained for each in differences)


def test_nothing_is_compared_after_a_gap():
    recording = next(each for each in recorded(3).recordings if len(each.turns) > 20)
    turns = list(recording.turns)
    recording.turns = [*turns[:10], encode(Lost(4)), *turns[14:]]
    done = recording.replay()
    assert done.difference is None
    assert (done.turns, done.missing_turns) == (10, 4)
    assert done.missing_ns is not None


def test_a_decision_that_was_changed_is_found():
    recording = next(each for each in recorded(3).recordings if len(each.turns) > 20)
    turn = decode_record(recording.turns[12])
    assert isinstance(turn, Turn)
    wrong = msgspec.structs.replace(turn, decisions=(*turn.decisions, "w0/1: ImportDone 7"))
    recording.turns[12] = encode(wrong)
    found = recording.replay().difference
    assert found is not None
    assert (found.turn, found.recorded, found.replayed) == (12, "w0/1: ImportDone 7", None)


class MarkedRun(ChanceRun):
    """Whose requests have tokens and names that are found wherever they stand."""

    def request(self, request_id):
        request = super().request(f"{request_id}-Zanzibar")
        prompt = array("I", [MARK + token for token in request.prompt_tokens])
        return replace(request, prompt_tokens=prompt, cache_salt="salt-of-Zanzibar")


MARK = 0xDEAD_BE00


@pytest.mark.parametrize("seed", [5, 6])
def test_no_token_and_no_name_of_a_client_is_in_it(seed):
    # A ledger knows small tokens only.
    run = MarkedRun(seed, World(checks_kv=False), Recorded)
    cluster = run.play().cluster
    prompts = {
        token
        for client in cluster.clients.by_id.values()
        for token in (*client.request.prompt_tokens, *client.output)
        if token >= MARK
    }
    assert len(prompts) > 2
    written = b"".join(turn for each in cluster.recordings for turn in each.turns)
    assert len(written) > 10_000
    assert b"Zanzibar" not in written
    for token in prompts:
        for order in ("little", "big"):
            assert token.to_bytes(4, order) not in written


def test_no_tenant_whose_blocks_are_counted_is_in_it():
    tenants = TenantNames()
    recorder = Recorder(4, tenants, SessionNames(b"key"))
    figures = TierFigures(Tier.HOST, True, 9, 10, tenant_blocks=(("Zanzibar", 7),))
    written = encode(
        recorder.turn(1, [MessageFromWorker("w/1", TiersReported("w", (figures,)))], ())
    )
    assert b"Zanzibar" not in written
    assert tenants.label("Zanzibar").encode() in written


def test_a_hash_that_was_not_recorded_is_a_difference():
    for seed in range(20):
        for recording in recorded(seed).recordings:
            records = [
                msgspec.structs.replace(each, hashed=()) if isinstance(each, Turn) else each
                for each in recording.records()
            ]
            if not any(each.hashed for each in recording.records() if isinstance(each, Turn)):
                continue
            recording.turns = [encode(each) for each in records]
            found = recording.replay().difference
            assert found is not None
            assert "no block hashes" in str(found.replayed)
            return
    raise AssertionError("no router ever asked for a hash")


def test_every_event_of_a_gateway_has_a_record():
    """Most are recorded as they are; of three something is left out."""
    others = {MessageFromWorker, RequestSubmitted, RequestWithdrawn}
    assert set(get_args(EventRecord)) >= set(get_args(GatewayEvent)) - others
    asked = DrainAsked(7, "w", Drain(Role.DECODE, again=True))
    turn = Turn(3, (asked, PeerGone("w", "it broke"), TimePassed()), (), ())
    assert decode_record(encode(turn)) == turn


def test_an_empty_journal_differs_in_nothing():
    recording = recorded(3).recordings[0]
    recording.turns = []
    done = recording.replay()
    assert (done.turns, done.seconds, done.difference) == (0, 0.0, None)
    assert compare([], None, None, None).decisions == 0
