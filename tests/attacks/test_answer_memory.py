"""A client asks for answers of any size, or does not read them: what is kept for it is bounded."""

import asyncio
import json
import math
import random
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import structs

from tandem.api.app import build_app
from tandem.api.choice import ChoiceReader, Presentation
from tandem.api.config import ApiConfig
from tandem.api.errors import Refused
from tandem.api.logprobs import TokenJson, chat_items, token_text
from tandem.api.responses import TokenLogprob, TopLogprob
from tandem.api.whole_response import (
    CHUNK_BYTES,
    JsonText,
    ResponseBudget,
    Transcript,
    WholeResponse,
)
from tandem.facts.errors import InvalidRequest, Overloaded
from tandem.facts.request import FinishReason, TokenLogprobs, TokenOutput
from tandem.live.mailbox import MOST_TAKEN_VALUES, Mailboxes
from tandem.messages.worker import EmitTokens
from tandem.text.model import TextModel
from tests.api.server import serving
from tests.attacks.clients import Answer, Connection, call
from tests.attacks.front_door import LongWinded
from tests.attacks.heavy_calls import CHAT, COMPLETE, USER

MIB = 1 << 20
LOGPROBS = TokenLogprobs(-0.5, 1, tuple((i, -1.5) for i in range(20)))


@pytest.fixture(scope="module")
def door(text: TextModel) -> Iterator[tuple[int, LongWinded]]:
    generator = LongWinded(text, tokens_per_output=8)
    with serving(build_app(generator, text, ApiConfig(answer_bytes=4 * MIB))) as port:
        yield port, generator


def chat(port: int, **fields: object) -> Answer:
    return call(port, CHAT, json.dumps({"messages": [USER], **fields}).encode())


def complete(port: int, **fields: object) -> Answer:
    return call(port, COMPLETE, json.dumps(fields).encode())


def test_an_answer_that_cannot_be_kept_is_refused_before_it_is_made(door):
    port, generator = door
    before = len(generator.requests)
    for wish in (
        {"n": 64, "max_tokens": 4000, "logprobs": True, "top_logprobs": 20},
        {"n": 64, "max_completion_tokens": 4000, "logprobs": True, "top_logprobs": 0},
    ):
        answer = chat(port, **wish)
        assert answer.refusal == (400, "invalid_value")
        assert answer.error["param"] == "max_tokens"
        assert all(word in answer.error["message"] for word in ("n ", "top_logprobs", "stream"))
    assert complete(port, prompt=["x"] * 64, max_tokens=4000, logprobs=20).status == 400
    assert len(generator.requests) == before


def test_an_answer_that_grows_too_large_ends(door):
    port, generator = door
    # How long it will be is known to nobody: the client names no limit.
    assert chat(port, n=4, min_tokens=1, logprobs=True, top_logprobs=20).status == 400
    assert not generator.running
    # As a stream it is allowed.
    answer = chat(port, max_tokens=512, min_tokens=1, logprobs=True, stream=True)
    assert answer.status == 200 and answer.body.endswith(b"[DONE]\n\n")


def test_repeated_prompts_are_kept_once(door):
    port, _ = door
    ids = [2000 + i % 500 for i in range(4000)]
    answer = complete(port, prompt=ids, n=64, max_tokens=8, return_token_ids=True, echo=True)
    assert answer.status == 200
    choices = json.loads(answer.body)["choices"]
    assert len(choices) == 64 and all(choice["prompt_token_ids"] == ids for choice in choices)


async def test_what_was_kept_is_let_go():
    budget = ResponseBudget(8 * MIB)
    with budget.holding_response() as held:
        held.grow(3 * MIB)
        assert budget.held_bytes == 3 * MIB
    assert budget.held_bytes == 0
    with pytest.raises(InvalidRequest, match="top_logprobs"), budget.holding_response() as held:
        held.grow(5 * MIB)
    assert budget.held_bytes == 0


async def test_who_is_refused_makes_room_before_it_has_ended():
    """Else all of several calls that keep as much as each other would be refused."""
    budget = ResponseBudget(8 * MIB)
    with (
        budget.holding_response() as one,
        budget.holding_response() as two,
        budget.holding_response() as three,
    ):
        for held, count in ((one, 3), (two, 3), (three, 2)):
            held.grow(count * MIB)
        with pytest.raises(Refused):
            one.grow(MIB)
        two.grow(MIB)
        assert budget.held_bytes == 6 * MIB


async def test_answers_that_nobody_waits_for_give_way_first():
    """Together they are one account, however little each of them keeps."""
    budget = ResponseBudget(8 * MIB)

    async def answer_of_a_batch():
        with budget.holding_response(background=True) as held:
            held.grow(MIB * 3 // 2)
            await asyncio.Event().wait()

    batch = [asyncio.create_task(answer_of_a_batch()) for _ in range(3)]
    await asyncio.sleep(0)
    with budget.holding_response() as call:
        call.grow(3 * MIB)
        call.grow(MIB)
        await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
    assert [each.done() for each in batch] == [False, False, True]
    assert isinstance(batch[-1].exception(), Refused)
    for each in batch[:2]:
        each.cancel()
    await asyncio.wait(batch)


def test_text_is_counted_however_large_its_parts_are():
    text = JsonText()
    assert text.append("x" * (CHUNK_BYTES + 1)) == CHUNK_BYTES + 1
    assert sum(text.append("y") for _ in range(1000)) > 800


def test_a_tool_call_that_never_closes_is_counted(text):
    presentation = Presentation(tool_format=text.tool_format)
    reader = ChoiceReader(0, text, presentation)
    transcript = Transcript(0, logprobs_lists=(), keeps_tokens=False)
    said = '<tool_call>{"name": "' + "word " * 16384
    spoken = text.tokenizer.encode(said, add_special_tokens=False)
    kept_bytes = sum(
        transcript.add_delta(reader.delta_of(TokenOutput((token,)))) for token in spoken
    )
    # As texts of one token each.
    assert kept_bytes > 40 * len(spoken)
    # In the end it is text after all, which is kept as JSON.
    kept_bytes += transcript.add_delta(
        reader.delta_of(TokenOutput((), finish_reason=FinishReason.LENGTH))
    )
    assert len(said) < kept_bytes < len(said) + 64


def slow_json(shown, token_bytes) -> bytes:
    """What `chat_items` writes, made of the types that the schema shows."""

    def of(kind, token: int, logprob: float, **more):
        text, spelling = token_text(token, token_bytes), token_bytes.bytes_of(token)
        return kind(token=text, logprob=max(logprob, -9999.0), bytes=list(spelling), **more)

    content = [
        of(
            TokenLogprob,
            token,
            chosen.logprob,
            top_logprobs=[of(TopLogprob, *t) for t in chosen.top],
        )
        for token, chosen in shown
    ]
    return msgspec.json.encode(content)


def test_no_token_is_taken_for_the_number_beside_it():
    class Odd:
        def bytes_of(self, token: int) -> bytes:
            return b"x:0.0,y"

    shown = [(1, TokenLogprobs(-0.5, 1, ((2, -1.5),)))]
    slow = slow_json(shown, Odd())
    assert b"[%b]" % chat_items(shown, TokenJson(Odd()))[0] == slow


async def test_who_keeps_most_gives_way():
    budget = ResponseBudget(8 * MIB)
    ends: list[str] = []

    async def keep(name: str, count: int) -> None:
        try:
            with budget.holding_response() as held:
                held.grow(count)
                assert budget.held_bytes <= budget.most_bytes
                await asyncio.Event().wait()
        except Refused as refused:
            assert refused.refusal.status == 503
            ends.append(name)
            return

    tasks = [
        asyncio.create_task(keep(name, size * MIB))
        for name, size in (("small", 1), ("large", 4), ("middle", 3), ("new", 2))
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (ends, budget.held_bytes) == (["large"], 6 * MIB)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ends == ["large"]
    assert budget.held_bytes == 0


async def test_an_answer_counts_until_its_client_has_it():
    """The client reads a piece and then no more; others need the room."""
    budget, sent, sending = ResponseBudget(8 * MIB), [], asyncio.Event()

    async def make(held) -> list[bytes]:
        held.grow(4 * MIB)
        return [bytes(CHUNK_BYTES)] * 64

    async def send(message) -> None:
        sent.append(len(message.get("body", b"")))
        if len(sent) == 3:
            sending.set()
            await asyncio.Event().wait()

    response = WholeResponse(budget, make)
    answering = asyncio.create_task(response({}, Connection().receive, send))
    await sending.wait()
    assert budget.held_bytes == 4 * MIB
    with budget.holding_response() as one, budget.holding_response() as other:
        one.grow(3 * MIB)
        other.grow(3 * MIB)
        # Nothing is left to say: the server closes the connection of an answer cut short.
        await answering
        assert budget.held_bytes == 6 * MIB
    assert budget.held_bytes == 0
    assert sent == [0, CHUNK_BYTES, CHUNK_BYTES]


def test_the_quick_form_of_log_probabilities_is_the_slow_one(text):
    draw, tokens = random.Random(0), TokenJson(text.token_bytes)
    odd = (0.0, -0.0, -math.inf, math.nan, -1e-12, -1e-300, -9999.5)

    def some() -> tuple[int, float]:
        value = draw.choice((*odd, -30 * draw.random(), -1e-7 * draw.random()))
        return draw.randrange(text.tokenizer.vocabulary_tokens), value

    for count in range(200):
        shown = []
        for _ in range(1 + count % 3):
            token, value = some()
            top = tuple(some() for _ in range(count % 21))
            shown.append((token, TokenLogprobs(value, 1, top)))
        assert b"[%b]" % chat_items(shown, tokens)[0] == slow_json(shown, text.token_bytes)


def emission(*ids: str, end: FinishReason | None = None) -> EmitTokens:
    count = len(ids)
    return EmitTokens(
        ids, (7,) * count, (end,) * count, (False,) * count, (0,) * count, (LOGPROBS,) * count
    )


async def test_a_reader_who_falls_behind_is_given_up_not_kept():
    mailboxes = Mailboxes(most_waiting_values=10_000)
    slow, quick = mailboxes.open("slow"), mailboxes.open("quick")
    for _ in range(1000):
        mailboxes.deliver(emission("slow", "quick"))
        assert mailboxes.waiting_values <= 10_000
        await quick.next_output()
    with pytest.raises(Overloaded, match="too slowly"):
        await slow.next_output()
    # The worker still works for it, and has to be told.
    assert not mailboxes.close("slow")
    mailboxes.deliver(emission("quick", end=FinishReason.LENGTH))
    assert mailboxes.close("quick")
    assert mailboxes.waiting_values == 0


async def test_a_backlog_is_read_in_small_parts():
    mailboxes = Mailboxes()
    mailbox = mailboxes.open("late")
    for _ in range(999):
        mailboxes.deliver(emission("late"))
    mailboxes.deliver(emission("late", end=FinishReason.LENGTH))
    outputs = [await mailbox.next_output()]
    while outputs[-1].finish_reason is None:
        outputs.append(await mailbox.next_output())
    assert sum(len(each.tokens) for each in outputs) == 1000
    assert all(len(each.tokens) == len(each.logprobs) for each in outputs)
    assert max(22 * len(each.tokens) for each in outputs) <= MOST_TAKEN_VALUES
    assert mailboxes.waiting_values == 0


async def test_scores_of_a_prompt_count_until_they_are_read_and_are_read_once():
    mailboxes = Mailboxes()
    mailbox = mailboxes.open("late")
    scores = (LOGPROBS,) * 100
    mailboxes.deliver(structs.replace(emission("late"), prompt_logprobs=(scores,)))
    assert mailboxes.waiting_values > 100 * (1 + len(LOGPROBS.top))
    for _ in range(99):
        mailboxes.deliver(emission("late"))
    outputs = [await mailbox.next_output()]
    while sum(len(each.tokens) for each in outputs) < 100:
        outputs.append(await mailbox.next_output())
    assert [each.prompt_logprobs for each in outputs] == [scores] + [None] * (len(outputs) - 1)
    assert len(outputs) > 1
    assert mailboxes.waiting_values == 0
