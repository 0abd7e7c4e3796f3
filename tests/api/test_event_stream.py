"""A stream whose reader leaves: in mid-stream that is no error, before the first event it is."""

import asyncio

import pytest

from tandem.api.streaming import ClientGone, EventStream


async def run_stream(leave_after_events: int) -> tuple[list[str], bool]:
    sent: list[str] = []
    left = asyncio.Event()
    closed = False

    async def events():
        nonlocal closed
        try:
            for number in range(3):
                if number == leave_after_events:
                    left.set()
                    await asyncio.Event().wait()
                yield f"data: {number}\n\n".encode()
        finally:
            closed = True

    async def receive():
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message["type"])

    await EventStream(events())({}, receive, send)
    return sent, closed


def test_a_reader_who_leaves_in_mid_stream_ends_it_quietly():
    sent, closed = asyncio.run(run_stream(leave_after_events=2))
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]
    assert closed


def test_a_reader_who_leaves_before_the_first_event_is_told_of():
    with pytest.raises(ClientGone):
        asyncio.run(run_stream(leave_after_events=0))
