"""A socket with much to read lets others of the loop have their turns; no news of it are lost."""

import asyncio

import zmq

from tandem.live.channels.sockets import TURN_BYTES, SocketPump
from tests.live.ends import PATIENCE_S

MESSAGES = 12


async def test_large_messages_are_read_a_few_at_a_time():
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    receiver.bind("inproc://pump")
    sender.connect("inproc://pump")
    for _ in range(MESSAGES):
        sender.send(bytes(TURN_BYTES))
    turn, read_in = 0, []
    pump = SocketPump(receiver, lambda _: read_in.append(turn))
    while len(read_in) < MESSAGES:
        await asyncio.sleep(0)
        turn += 1
    pump.close()
    context.destroy(0)
    # Two at each look, of which a turn of the loop may bring two.
    assert max(read_in.count(turn) for turn in read_in) <= 4


async def test_room_that_comes_while_it_reads_is_written_to():
    """`zmq` tells of room once, and to whoever calls the socket next: here that is a read."""
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.sndhwm = receiver.rcvhwm = 2
    sender.bind("inproc://room")
    receiver.connect("inproc://room")
    waiting = [b"last"]
    while sender.poll(0, zmq.POLLOUT):
        sender.send(b"before", zmq.NOBLOCK)

    def write() -> bool:
        while waiting:
            sender.send(waiting.pop(), zmq.NOBLOCK)
        return False

    def room_comes_while_it_reads(_: zmq.Socket) -> list[bytes]:
        while receiver.poll(0):
            receiver.recv()
        assert sender.poll(0, zmq.POLLOUT)
        raise zmq.Again

    pump = SocketPump(sender, lambda _: None, write, receive=room_comes_while_it_reads)
    async with asyncio.timeout(PATIENCE_S):
        while waiting:
            await asyncio.sleep(0)
    pump.close()
    context.destroy(0)
