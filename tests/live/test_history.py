"""What a gateway remembers of requests: an hour, within its memory, whatever became of them."""

from random import Random

import pytest

from tandem.facts.request import FinishReason
from tandem.live.gateway.history import KEPT_NS, RequestHistories
from tandem.messages.router import Explain, RequestSubmitted
from tandem.messages.worker import EmitTokens
from tests.live.toy_cluster import request

SECOND = 1_000_000_000


def emission(name: str, reason: FinishReason | None = None) -> EmitTokens:
    return EmitTokens((name,), (7,), (reason,), (False,), (2,))


def answered(histories: RequestHistories, name: str, at_ns: int, text: str = "") -> None:
    histories.request_submitted(RequestSubmitted(request(name), 8.0, tenant="acme"), at_ns)
    histories.explain(Explain(name, "routing", text or "to w0", (("ttft_s", 0.5),)), at_ns + 1)
    histories.delivered(emission(name), at_ns + SECOND)
    histories.delivered(emission(name, FinishReason.STOP), at_ns + 3 * SECOND)


def test_a_request_is_found_while_it_runs_and_afterwards():
    histories = RequestHistories(1 << 20)
    histories.request_submitted(RequestSubmitted(request("g.1/r"), 8.0), 10)
    (running,) = histories.find("r", 20)
    assert (running.ending, running.end_ns, running.first_token_ns) == ("", -1, -1)
    answered(histories, "g.1/r", 10)
    (ended,) = histories.find("g.1/r", 4 * SECOND)
    assert (ended.ending, ended.reason, ended.tenant) == ("finished", "stop", "acme")
    assert (ended.emitted_tokens, ended.cached_tokens, ended.prompt_tokens) == (2, 2, 3)
    assert (ended.first_token_ns, ended.end_ns) == (SECOND, 3 * SECOND)
    assert [(each.after_ns, each.text) for each in ended.events] == [(1, "to w0")]


def test_an_answer_has_all_of_its_choices():
    histories = RequestHistories(1 << 20)
    for choice in (0, 1, 2):
        answered(histories, f"g.1/chatcmpl-a-{choice}", choice)
    answered(histories, "g.1/chatcmpl-ab-0", 5)
    found = histories.find("chatcmpl-a", 10 * SECOND)
    assert [each.request_id for each in found] == [f"g.1/chatcmpl-a-{i}" for i in (0, 1, 2)]
    assert histories.find("chatcmpl", 10 * SECOND) == ()


def test_a_call_is_found_by_what_its_answer_says():
    """Who was refused has no answer with an id, only the header."""
    histories = RequestHistories(1 << 20)
    for choice in (0, 1):
        histories.request_called(f"g.1/chatcmpl-a-{choice}", "req-7")
        answered(histories, f"g.1/chatcmpl-a-{choice}", choice)
    assert len(histories.find("req-7", 4 * SECOND)) == 2
    # A client may give all of its calls one name: the last one has it.
    histories.request_called("g.1/chatcmpl-b-0", "req-7")
    histories.request_submitted(RequestSubmitted(request("g.1/chatcmpl-b-0"), 8.0), 5)
    (found,) = histories.find("req-7", 6)
    assert found.request_id == "g.1/chatcmpl-b-0"


def test_nothing_is_left_of_calls_that_are_forgotten():
    histories = RequestHistories(20_000)
    for index in range(200):
        histories.request_called(f"g.1/chatcmpl-{index}-0", f"req-{index}")
        if index % 3:
            answered(histories, f"g.1/chatcmpl-{index}-0", index)
        else:
            # Withdrawn before it was submitted.
            histories.request_ended(f"g.1/chatcmpl-{index}-0", "withdrawn", "", index)
    kept = {own_id.rpartition("-")[0] for own_id in histories._ended}
    assert set(histories._answer_of.values()) == kept
    assert not histories._call_of
    assert 5 < len(kept) < 50


@pytest.mark.parametrize("ending", ["rejected", "failed", "withdrawn"])
def test_a_request_without_an_answer_says_why(ending):
    histories = RequestHistories(1 << 20)
    histories.request_submitted(RequestSubmitted(request("r"), 8.0), 0)
    histories.request_ended("r", ending, "because", 5)
    histories.request_ended("r", "failed", "again", 6)
    (found,) = histories.find("r", 7)
    assert (found.ending, found.reason, found.end_ns) == (ending, "because", 5)


def test_an_hour_is_kept_and_no_more():
    histories = RequestHistories(1 << 20)
    answered(histories, "old", 0)
    assert histories.find("old", KEPT_NS)
    assert not histories.find("old", KEPT_NS + 4 * SECOND)
    answered(histories, "new", KEPT_NS + 4 * SECOND)
    assert list(histories._ended) == ["new"]


def test_the_oldest_make_room():
    chance, most = Random(0), 100_000
    histories = RequestHistories(most)
    for index in range(500):
        # Figures of many candidates, which hardly compress.
        answered(histories, f"r{index}", index, text=str(chance.random()) * 20)
        held = sum(each.held_bytes for each in histories._ended.values())
        assert held == histories._bytes <= most
    kept = [index for index in range(500) if histories.find(f"r{index}", 600)]
    assert kept == list(range(500 - len(kept), 500))
    assert 10 < len(kept) < 300


def test_the_same_id_again_replaces_what_was_kept():
    histories = RequestHistories(1 << 20)
    answered(histories, "r", 0)
    answered(histories, "r", 10)
    (found,) = histories.find("r", 4 * SECOND)
    assert found.arrival_ns == 10
    assert histories._bytes == histories._ended["r"].held_bytes


def test_a_request_taken_up_without_end_keeps_its_last_decisions():
    histories = RequestHistories(1 << 20)
    histories.request_submitted(RequestSubmitted(request("r"), 8.0), 0)
    for index in range(1000):
        histories.explain(Explain("r", "routing", str(index)), index)
    (found,) = histories.find("r", 1000)
    assert [each.text for each in found.events] == [str(index) for index in range(936, 1000)]


def test_without_memory_nothing_is_kept():
    histories = RequestHistories(0)
    answered(histories, "r", 0)
    assert histories.find("r", 0) == ()
    assert not histories._open
