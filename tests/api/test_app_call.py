"""Calls of an application from within its process."""

import asyncio

import pytest

from tandem.api.kserve.app_call import AppCaller, AppRequest, BrokenAnswer, app_call

CALLER = AppCaller(("127.0.0.1", 4711), [(b"x-request-id", b"mine")])
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"\xe9")]}
PART = {"type": "http.response.body", "body": b"part", "more_body": True}
LAST = {"type": "http.response.body", "body": b"last"}


async def answer_of(app, request: AppRequest) -> bytes:
    async with app_call(app, request, CALLER) as answer:
        assert (answer.status, answer.headers) == (200, {"a": "é"})
        return await answer.body()


def test_the_application_has_what_was_sent():
    seen = []

    async def app(scope, receive, send) -> None:
        seen.extend((scope["method"], scope["path"], dict(scope["headers"]), await receive()))
        for message in (HEAD, *[PART] * 9, LAST):
            await send(message)

    request = AppRequest("POST", "/é", [(b"b", b"c")], b"body")
    assert asyncio.run(answer_of(app, request)) == b"part" * 9 + b"last"
    headers = {b"x-request-id": b"mine", b"b": b"c", b"content-length": b"4"}
    body = {"type": "http.request", "body": b"body", "more_body": False}
    assert seen == ["POST", "/é", headers, body]
    # Nobody keeps it while a long answer is made.
    assert request.body == b""


def test_who_leaves_ends_an_answer_that_waits_for_its_client():
    ended = []

    async def app(scope, receive, send) -> None:
        try:
            await send(HEAD)
            while True:
                await send(PART)
        finally:
            ended.append(True)

    async def leave() -> None:
        async with app_call(app, AppRequest("GET", "/"), CALLER) as answer:
            assert await anext(answer.parts()) == b"part"

    asyncio.run(asyncio.wait_for(leave(), 20))
    assert ended == [True]


@pytest.mark.parametrize("turns", [0, 20], ids=["leaves early", "leaves late"])
def test_after_an_answer_that_nobody_reads_the_application_tidies_up(turns):
    steps = []

    async def app(scope, receive, send) -> None:
        for message in (HEAD, *[PART] * 3, LAST):
            await send(message)
        for step in range(9):
            await asyncio.sleep(0)
            steps.append(step)

    async def look() -> int:
        async with app_call(app, AppRequest("GET", "/"), CALLER) as answer:
            for _ in range(turns):
                await asyncio.sleep(0)
            return answer.status

    assert asyncio.run(asyncio.wait_for(look(), 20)) == 200
    assert steps == list(range(9))


@pytest.mark.parametrize("messages", [(), (HEAD, PART)])
def test_a_fault_is_logged_and_breaks_the_answer(caplog, messages):
    async def app(scope, receive, send) -> None:
        for message in messages:
            await send(message)
        raise RuntimeError("a fault")

    with pytest.raises(BrokenAnswer):
        asyncio.run(asyncio.wait_for(answer_of(app, AppRequest("GET", "/here")), 20))
    assert "GET /here failed" in caplog.text
