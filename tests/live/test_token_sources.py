"""Where each token of a stream is from, told to whoever wants to know and to nobody else."""

import json

import pytest

from tandem.facts.errors import Overloaded
from tandem.facts.request import TokenSource
from tandem.live.mailbox import Mailboxes
from tandem.messages.worker import EmitTokens
from tests.live.test_page import bearer, observed_cluster, split

CLIENT = "clients-key"
BODY = {"prompt": [1, 2, 3], "max_tokens": 6, "ignore_eos": True, "stream": True}


def emission(*request_ids: str) -> EmitTokens:
    count = len(request_ids)
    nothing = (None,) * count
    return EmitTokens(request_ids, (7,) * count, nothing, (False,) * count, (0,) * count)


async def test_tokens_of_one_step_but_the_last_were_guessed():
    mailboxes = Mailboxes()
    wants, other = mailboxes.open("a", wants_sources=True), mailboxes.open("b")
    mailboxes.deliver(emission("b", "a", "a", "a", "b"), "w0")
    mailboxes.deliver(emission("a"), "w1")
    output = await wants.next_output()
    guessed, drawn = TokenSource("w0", True), TokenSource("w0", False)
    assert output.sources == (guessed, guessed, drawn, TokenSource("w1", False))
    assert (await other.next_output()).sources == ()
    assert mailboxes.waiting_values == 0


async def test_sources_that_wait_are_counted():
    mailboxes = Mailboxes(most_waiting_values=10)
    wants = mailboxes.open("a", wants_sources=True)
    mailboxes.deliver(emission(*["a"] * 6), "w0")
    with pytest.raises(Overloaded):
        await wants.next_output()


def sources_in(events: str) -> list[list]:
    chunks = [json.loads(line[6:]) for line in events.split("\n\n") if line.startswith("data: {")]
    return [
        source
        for chunk in chunks
        for choice in chunk["choices"]
        for source in choice.get("token_sources", [])
    ]


async def test_a_stream_says_that_prefill_and_decode_drew_it(tmp_path):
    async with observed_cluster(tmp_path, *split()) as (_, client):
        wanted = BODY | {"return_token_sources": True}
        answer = await client.post("/v1/completions", json=wanted, headers=bearer(CLIENT))
        assert answer.status_code == 200, answer.text
        assert sources_in(answer.text) == [["p", False]] + [["d", False]] * 5
        answer = await client.post("/v1/completions", json=BODY, headers=bearer(CLIENT))
        assert "token_sources" not in answer.text
        assert answer.text.count("data: {") > 1
