"""A socket with much to read lets others of the loop have their turns."""

import asyncio

import zmq

from tandem.live.channels.sockets import TURN_BYTES, SocketPump

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
