"""The client against a real socket: streams in any crumbs, errors in one clear line, aborts."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tandem.bench.client import Client, Endpoint, RequestFailed, ServerRefused, ServerUnreachable
from tandem.bench.responses import error_text
from tandem.facts.errors import InvalidConfiguration
from tests.bench.scripted_server import Script, ScriptedServer
from tests.waiting import until

BODY = {"model": "scripted", "prompt": [1, 2, 3], "max_tokens": 4}
PATH = "/v1/completions"


def with_client(
    server: ScriptedServer, act: Callable[[Client], Awaitable[Any]], **endpoint: Any
) -> Any:
    async def run() -> Any:
        async with Client(Endpoint(server.url, **endpoint)) as client:
            return await act(client)

    return asyncio.run(run())


async def streamed_text(client: Client) -> str:
    pieces = [chunk async for chunk in client.stream(PATH, BODY)]
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 4
    return "".join(choice.shown_text for piece in pieces for choice in piece.choices)


@pytest.mark.parametrize("crumbs", [None, 1, 3, 50])
def test_stream_in_any_crumbs(crumbs: int | None) -> None:
    with ScriptedServer(Script(crumbs=crumbs)) as server:
        assert with_client(server, streamed_text) == "w0 w1 w2 w3"
        assert server.bodies[0]["stream_options"] == {"include_usage": True}


def test_models_and_tokens() -> None:
    async def act(client: Client) -> None:
        model = await client.choose_model(None)
        assert (model.id, model.vocabulary, model.context) == ("scripted", 5000, 4096)
        assert len(await client.token_ids(model.id, "a b c")) == 3
        with pytest.raises(RequestFailed, match="serves scripted, not 'other'"):
            await client.choose_model("other")

    with ScriptedServer() as server:
        with_client(server, act)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_url_with_or_without_v1(suffix: str) -> None:
    assert Endpoint("http://h:1" + suffix).root_url == "http://h:1"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://"])
def test_bad_urls_are_named(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--url"):
        Endpoint(url)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerUnreachable, match="tandem serve"):
            with_client(ScriptedServer(url=url), lambda client: client.models())


def test_refusal_carries_status_and_reason() -> None:
    with (
        ScriptedServer(Script(refuse=lambda _: 429)) as server,
        pytest.raises(ServerRefused, match="HTTP 429: queue full") as caught,
    ):
        with_client(server, streamed_text)
    assert caught.value.status == 429
    assert (caught.value.problem, caught.value.retry_after_s) == ("queue full", None)


def test_api_key() -> None:
    with ScriptedServer(Script(api_key="secret")) as server:
        assert with_client(server, streamed_text, api_key="secret").startswith("w0")
        with pytest.raises(ServerRefused, match="wrong API key"):
            with_client(server, streamed_text)
    assert "secret" not in repr(Endpoint("http://h", "secret"))


def test_broken_stream_and_timeout() -> None:
    with (
        ScriptedServer(Script(break_stream=True)) as server,
        pytest.raises(RequestFailed, match=r"closed|ended|payload"),
    ):
        with_client(server, streamed_text)
    with (
        ScriptedServer(Script(first_token_s=5.0)) as server,
        pytest.raises(RequestFailed, match=r"no answer within 0\.1 s"),
    ):
        with_client(server, streamed_text, timeout_s=0.1)


def test_closing_a_stream_ends_it_at_the_server() -> None:
    async def act(client: Client) -> None:
        async with contextlib.aclosing(client.stream(PATH, {**BODY, "max_tokens": 500})) as stream:
            async for _ in stream:
                break

    with ScriptedServer(Script(token_gap_s=0.01)) as server:
        with_client(server, act)
        until(lambda: server.aborted == 1)


def test_error_bodies_of_all_shapes() -> None:
    assert error_text({"error": {"message": "too\nlong"}}) == "too long"
    assert error_text({"detail": [{"msg": "x"}]}) == "[{'msg': 'x'}]"
    assert error_text("plain") == "plain"
