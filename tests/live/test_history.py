"""What a gateway remembers of requests: an hour, within its memory, whatever became of them."""

from random import Random

import pytest

from tandem.facts.request import FinishReason
from tandem.live.gateway.history import ENTRY_BYTES, KEPT_NS, Asker, RequestHistories
from tandem.messages.router import Explain
from tandem.messages.worker import EmitTokens
from tandem.report.record import Ending
from tests.live.toy_cluster import request

SECOND = 1_000_000_000


def emission(name: str, reason: FinishReason | None = None) -> EmitTokens:
    return EmitTokens((name,), (7,), (reason,), (False,), (2,))


def histories_of(memory_bytes: int = 1 << 20) -> RequestHistories:
    return RequestHistories("g.1/", memory_bytes)


def arrived(histories: RequestHistories, name: str, at_ns: int, call: str = "") -> None:
    asker = Asker("acme", "gold", "talk", call)
    assert histories.request_arrived(request(f"g.1/{name}", max_tokens=9), asker, at_ns)


def answered(
    histories: RequestHistories, name: str, at_ns: int, text: str = "to w0", call: str = ""
) -> None:
    arrived(histories, name, at_ns, call)
    full = f"g.1/{name}"
    histories.explain(Explain(full, "routing", text, (("ttft_s", 0.5), ("why", "so"))), at_ns + 1)
    histories.delivered(emission(full), at_ns + SECOND)
    histories.delivered(emission(full, FinishReason.STOP), at_ns + 3 * SECOND)


def assert_counted(histories: RequestHistories) -> None:
    """What is held is what is counted, and every name leads to something."""
    events = [event for entry in histories._open.values() for event in entry.events]
    held = [each.held_bytes for each in histories._ended.values()]
    counted = sum(held) + sum(map(len, events)) + ENTRY_BYTES * len(histories._open)
    assert histories._bytes == counted
    known = histories._open.keys() | histories._ended.keys()
    assert all(ids and ids.keys() <= known for ids in histories._named.values())


def test_a_request_is_found_while_it_runs_and_afterwards():
    histories = histories_of()
    arrived(histories, "r", 10)
    histories.explain(Explain("g.1/r", "admission", "admitted"), 12)
    (running,) = histories.find("r", 20)
    assert (running.ending, running.end_ns, running.first_token_ns) == ("", -1, -1)
    assert [(each.after_ns, each.kind) for each in running.events] == [(2, "admission")]
    histories.delivered(emission("g.1/r", FinishReason.STOP), 30)
    answered(histories, "r", 10)
    (ended,) = histories.find("g.1/r", 4 * SECOND)
    assert (ended.ending, ended.reason) == ("finished", "stop")
    assert (ended.tenant, ended.service_class, ended.session) == ("acme", "gold", "talk")
    assert (ended.emitted_tokens, ended.max_tokens) == (2, 9)
    assert (ended.cached_tokens, ended.prompt_tokens) == (2, 3)
    assert (ended.first_token_ns, ended.end_ns) == (SECOND, 3 * SECOND)
    (event,) = ended.events
    assert (event.after_ns, event.text) == (1, "to w0")
    assert event.figures == (("ttft_s", 0.5), ("why", "so"))
    assert_counted(histories)


def test_an_answer_has_all_of_its_choices():
    histories = histories_of()
    for choice in (0, 1, 2):
        answered(histories, f"chatcmpl-a-{choice}", choice)
    answered(histories, "chatcmpl-ab-0", 5)
    found = histories.find("chatcmpl-a", 10 * SECOND)
    assert [each.request_id for each in found] == [f"g.1/chatcmpl-a-{i}" for i in (0, 1, 2)]
    assert histories.find("chatcmpl", 10 * SECOND) == ()


@pytest.mark.parametrize("call", ["req-7", "trace/abc/1"])
def test_a_call_is_found_by_what_its_answer_says(call):
    """Who was refused has no answer with an id, only the header."""
    histories = histories_of()
    answered(histories, "chatcmpl-a-0", 0, call=call)
    arrived(histories, "chatcmpl-a-1", 1, call)
    assert len(histories.find(call, 4 * SECOND)) == 2
    # The first choice goes, and the other is found all the same.
    histories._forget("g.1/chatcmpl-a-0")
    (left,) = histories.find(call, 4 * SECOND)
    assert left.request_id == "g.1/chatcmpl-a-1"
    assert_counted(histories)


def test_no_client_hides_the_answer_of_another_by_a_name():
    histories = histories_of()
    answered(histories, "chatcmpl-a-0", 0)
    answered(histories, "chatcmpl-b-0", 1, call="chatcmpl-a")
    answered(histories, "chatcmpl-c-0", 2, call="chatcmpl-a-0")
    assert len(histories.find("chatcmpl-a", 4 * SECOND)) == 2
    (exact,) = histories.find("chatcmpl-a-0", 4 * SECOND)
    assert exact.request_id == "g.1/chatcmpl-a-0"


@pytest.mark.parametrize("ending", [Ending.REJECTED, Ending.FAILED])
def test_the_first_ending_counts(ending):
    histories = histories_of()
    arrived(histories, "r", 0)
    assert not histories.request_arrived(request("g.1/r"), Asker(), 1), "it runs already"
    histories.request_ended("g.1/r", ending, "because", 5)
    histories.request_ended("g.1/r", Ending.FAILED, "again", 6)
    (found,) = histories.find("r", 7)
    assert (found.ending, found.reason, found.end_ns) == (ending, "because", 5)


def test_an_hour_is_kept_and_no_more():
    histories = histories_of()
    answered(histories, "old", 0)
    assert histories.find("old", KEPT_NS)
    assert not histories.find("old", KEPT_NS + 4 * SECOND)
    answered(histories, "new", KEPT_NS + 4 * SECOND)
    assert list(histories._ended) == ["g.1/new"]


def test_the_oldest_make_room():
    chance, most = Random(0), 100_000
    histories = histories_of(most)
    for index in range(500):
        # Figures of many candidates, which hardly compress.
        answered(histories, f"r{index}", index, text=str(chance.random()) * 20, call=f"c{index}")
        assert histories._bytes <= most
        assert_counted(histories)
    kept = [index for index in range(500) if histories.find(f"r{index}", 600)]
    assert kept == list(range(500 - len(kept), 500))
    assert 10 < len(kept) < 300
    assert histories.find("c0", 600) == ()


def test_decisions_about_open_requests_are_bounded_too():
    histories = histories_of(50_000)
    for index in range(20):
        arrived(histories, f"r{index}", 0)
    for index in range(1000):
        name, text = f"g.1/r{index % 20}", f"{index} " * 100
        histories.explain(Explain(name, "routing", text), index)
        assert_counted(histories)
    assert histories._bytes <= 50_000
    for index in range(20):
        histories.request_ended(f"g.1/r{index}", Ending.FAILED, "", 2000)
    assert_counted(histories)


def test_the_same_id_again_replaces_what_was_kept():
    histories = histories_of()
    answered(histories, "r", 0)
    answered(histories, "r", 10)
    (found,) = histories.find("r", 4 * SECOND)
    assert found.arrival_ns == 10
    assert_counted(histories)


def test_a_request_taken_up_without_end_keeps_its_last_decisions():
    histories = histories_of()
    arrived(histories, "r", 0)
    for index in range(1000):
        histories.explain(Explain("g.1/r", "routing", str(index)), index)
    (found,) = histories.find("r", 1000)
    assert [each.text for each in found.events] == [str(index) for index in range(936, 1000)]


def test_without_memory_nothing_is_kept():
    histories = histories_of(0)
    assert not histories.request_arrived(request("g.1/r"), Asker("acme"), 0)
    assert not histories._open
    assert histories.find("r", 0) == ()
