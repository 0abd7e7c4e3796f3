"""Channels between gateways and workers, over real sockets."""

import asyncio
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from array import array

import pytest
import uvloop
import zmq

from tandem.facts.request import Request
from tandem.live.channels.gateway_channel import MessageFromOperator
from tandem.live.channels.keys import make_keys
from tandem.live.channels.sockets import ChannelLimits, NodeKeys, Outbox, node_socket
from tandem.messages.cluster import (
    PROTOCOL,
    Audit,
    Deregister,
    PeerLost,
    RegisterAgain,
    RegistrationRefused,
)
from tandem.messages.codec import OPERATOR, TO_GATEWAY, TO_WORKER
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.node import GatewayConnected, GatewayGone, MessageFromGateway
from tandem.messages.operator import AskStatus, Done
from tandem.messages.router import LoadReported
from tandem.messages.worker import RequestsArrived
from tests.live.ends import (
    GATEWAY_PAIR,
    NODE_KEYS,
    PATIENCE_S,
    WORKER_PAIR,
    News,
    close_ends,
    connected_ends,
    gateway_end,
    node_end,
)

FAST = ChannelLimits(reconnect_s=0.01, reconnect_most_s=0.05)


def load(number: int) -> LoadReported:
    return LoadReported("w0", number, 0, 0, 0, 0)


def run(scenario) -> None:
    """Within its time, and without a failure in any callback."""
    failures: list[dict] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: failures.append(each))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario()
        finally:
            await close_ends()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
    assert not failures


def test_messages_arrive_in_order_both_ways():
    async def scenario():
        gateway, node, at_gateway, at_node = await connected_ends()
        for number in range(3000):
            node.send(load(number))
        said = await at_gateway.first(MessageFromWorker, 3000)
        assert [news.message.running_sequences for news in at_gateway.told] == list(range(3000))
        assert said.peer == "w0/a/1"
        for number in range(3000):
            gateway.send(said.peer, PeerLost("w", str(number)))
        await at_node.first(MessageFromGateway, 3000)
        assert [news.message.incarnation for news in at_node.of(MessageFromGateway)] == [
            str(number) for number in range(3000)
        ]
        await node.close(1.0)
        await gateway.close(1.0)

    run(scenario)


def test_last_words_arrive_before_the_end_is_told():
    async def scenario():
        gateway, node, at_gateway, _ = await connected_ends()
        for number in range(1000):
            node.send(load(number))
        node.send(Deregister("w0"))
        await node.close(5.0)
        gone = await at_gateway.first(PeerGone)
        assert gone == PeerGone("w0/a/1", "the connection broke")
        assert at_gateway.told[-2:] == [MessageFromWorker("w0/a/1", Deregister("w0")), gone]
        gateway.send("w0/a/1", Audit())
        await gateway.close(0.0)
        assert at_gateway.told[-1] == gone

    run(scenario)


@pytest.mark.parametrize("stranger", ["worker", "gateway"])
def test_a_wrong_key_gets_nothing(stranger, caplog):
    """Neither a worker without the cluster's key, nor a gateway that is not the one meant."""
    other_gateway, other_worker = make_keys()
    keys = {
        "worker": NodeKeys(other_worker, GATEWAY_PAIR.public),
        "gateway": NodeKeys(WORKER_PAIR, other_gateway.public),
    }[stranger]

    async def scenario():
        at_gateway, at_node, at_stranger = News(), News(), News()
        gateway, endpoint = gateway_end(at_gateway)
        wrong = node_end(endpoint, at_stranger, name="evil/x", keys=keys, limits=FAST)
        if stranger == "worker":
            assert "another cluster" in await at_stranger.first(str)
        good = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        wrong.send(Deregister("evil"))
        good.send(Deregister("w0"))
        await at_gateway.first(MessageFromWorker)
        assert at_gateway.told == [MessageFromWorker("w0/a/1", Deregister("w0"))]
        assert not at_stranger.of(GatewayConnected)
        told = {"worker": "refuses the key", "gateway": "does not prove to be the gateway"}
        # The stranger learns of it in a time of its own.
        while not any(told[stranger] in record.message for record in caplog.records):
            await asyncio.sleep(0.01)
        for channel in (wrong, good, gateway):
            await channel.close(0.0)

    run(scenario)


def test_an_unencrypted_client_gets_nothing():
    async def scenario():
        at_gateway, at_node = News(), News()
        _, endpoint = gateway_end(at_gateway)
        context = zmq.Context()
        plain = context.socket(zmq.DEALER)
        plain.linger = 0
        plain.routing_id = b"w9/a/1"
        plain.connect(endpoint)
        plain.send(TO_GATEWAY.encode(Deregister("w9")))
        good = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        good.send(Deregister("w0"))
        await at_gateway.first(MessageFromWorker)
        assert at_gateway.told == [MessageFromWorker("w0/a/1", Deregister("w0"))]
        assert not plain.poll(0)
        plain.close()
        context.term()
        await good.close(0.0)

    run(scenario)


def test_a_gateway_that_comes_late_or_again_is_found():
    async def scenario():
        at_gateway, at_node, again = News(), News(), News()
        gateway, endpoint = gateway_end(at_gateway)
        await gateway.close(0.0)
        node = node_end(endpoint, at_node, limits=FAST)
        gateway, _ = gateway_end(at_gateway, endpoint)
        await at_node.first(GatewayConnected)
        node.send(load(1))
        first = await at_gateway.first(MessageFromWorker)
        await gateway.close(0.0)
        await at_node.first(GatewayGone)
        node.send(load(2))  # nobody is there: it is not kept for whoever comes next
        gateway, _ = gateway_end(again, endpoint)
        await at_node.first(GatewayConnected, 2)
        node.send(load(3))
        second = await again.first(MessageFromWorker)
        assert second.message == load(3)
        assert second.peer != first.peer
        assert [type(news) for news in at_node.told] == [
            GatewayConnected,
            GatewayGone,
            GatewayConnected,
        ]

    run(scenario)


def test_a_worker_that_reads_nothing_is_gone_after_the_silence_and_not_before():
    """However much is sent to it; the transport takes what its pipes and the kernel hold."""
    limits = ChannelLimits(unread_s=0.3, outbox_messages=10, outbox_bytes=1 << 20, high_water=8)

    async def scenario():
        loop = asyncio.get_running_loop()
        at_gateway, at_node = News(), News()
        gateway, endpoint = gateway_end(at_gateway, limits=limits)
        context = zmq.Context()
        hung = node_socket(context, NODE_KEYS, limits, b"hung/a/1")
        hung.connect(endpoint)
        hung.send(TO_GATEWAY.encode(Deregister("hung")))
        await at_gateway.first(MessageFromWorker)
        bulk, began_s = RegistrationRefused("x" * (1 << 20)), loop.time()
        for _ in range(200):
            gateway.send("hung/a/1", bulk)
        assert not at_gateway.of(PeerGone)
        assert await at_gateway.first(PeerGone) == PeerGone("hung/a/1", "it does not read")
        assert loop.time() - began_s >= limits.unread_s
        # Others are served all the while, and the hung one may come back to be told so.
        good = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        good.send(load(1))
        await at_gateway.until(lambda: MessageFromWorker("w0/a/1", load(1)) in at_gateway.told)
        while hung.poll(100):
            hung.recv()
        hung.send(TO_GATEWAY.encode(load(7)))
        await at_gateway.until(lambda: MessageFromWorker("hung/a/1", load(7)) in at_gateway.told)
        gateway.send("hung/a/1", RegisterAgain())
        while not hung.poll(10):
            await asyncio.sleep(0)
        assert TO_WORKER.decode(hung.recv()) == RegisterAgain()
        hung.close(0)
        context.term()
        await good.close(0.0)

    run(scenario)


def test_a_gateway_that_was_itself_held_up_takes_nobody_for_hung():
    limits = ChannelLimits(unread_s=0.2, high_water=8)

    async def scenario():
        at_gateway, at_node = News(), News()
        gateway, endpoint = gateway_end(at_gateway, limits=limits)
        node = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        node.send(load(1))
        peer = (await at_gateway.first(MessageFromWorker)).peer
        for number in range(200):
            gateway.send(peer, PeerLost("x" * (1 << 18), str(number)))
        assert len(gateway._peers[peer])
        time.sleep(3 * limits.unread_s)  # neither end of this process gets a turn
        await at_node.first(MessageFromGateway, 200)
        assert not at_gateway.of(PeerGone)

    run(scenario)


def test_an_honest_burst_larger_than_the_outbox_arrives_whole_and_in_order():
    """What there is no room for waits as it is: only what is under way has become bytes."""
    limits = ChannelLimits(outbox_messages=10, outbox_bytes=1 << 20, high_water=8)
    burst = 160

    async def scenario():
        at_gateway, at_node = News(), News()
        gateway, endpoint = gateway_end(at_gateway, limits=limits)
        node = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        node.send(load(1))
        peer = (await at_gateway.first(MessageFromWorker)).peer
        prompt = array("I", bytes(4 << 17))
        for number in range(burst):
            gateway.send(peer, RequestsArrived((Request(str(number), prompt),)))
        assert len(gateway._peers[peer]) > limits.outbox_messages
        assert not any(isinstance(each, bytes) for each in gateway._peers[peer]._waiting)
        gateway.send(peer, Audit())
        await at_node.first(MessageFromGateway, burst + 1)
        *requests, last = [news.message for news in at_node.of(MessageFromGateway)]
        assert [each.requests[0].request_id for each in requests] == list(map(str, range(burst)))
        assert last == Audit()
        assert not at_gateway.of(PeerGone)
        assert not len(gateway._peers[peer])

    run(scenario)


def test_an_operator_that_reads_no_answers_costs_a_bound():
    limits = ChannelLimits(outbox_messages=20, outbox_bytes=1 << 20, high_water=8)

    async def scenario():
        at_gateway = News()
        gateway, endpoint = gateway_end(at_gateway, limits=limits)
        context = zmq.Context()
        hung = node_socket(context, NODE_KEYS, limits, b"operator/1")
        hung.connect(endpoint)
        hung.send(OPERATOR.encode(AskStatus(1)))
        await at_gateway.first(MessageFromOperator)
        for number in range(200):
            gateway.answer("operator/1", Done(number, "x" * (1 << 20)))
        assert "operator/1" not in gateway._peers
        hung.close(0)
        context.term()

    run(scenario)


def test_a_gateway_that_does_not_read_is_gone():
    limits = ChannelLimits(outbox_messages=100, outbox_bytes=1 << 20, high_water=8)

    async def scenario():
        at_gateway, at_node = News(), News()
        _, endpoint = gateway_end(at_gateway)
        node = node_end(endpoint, at_node, limits=limits)
        await at_node.first(GatewayConnected)
        bulk = Deregister("x" * (1 << 19))
        for _ in range(300):  # the loop gets no turn, so the gateway cannot read
            node.send(bulk)
        await at_node.first(GatewayGone)
        await at_node.first(GatewayConnected, 2)
        node.send(load(1))
        await at_gateway.until(lambda: MessageFromWorker("w0/a/2", load(1)) in at_gateway.told)

    run(scenario)


def test_a_peer_that_has_gone_swallows_no_news_of_another():
    async def scenario():
        gateway, node, at_gateway, _ = await connected_ends()
        node.send(load(1))
        await at_gateway.first(MessageFromWorker)
        # One that left without a trace, as far as the channel knows.
        gateway._peers["w1/a/1"] = Outbox(ChannelLimits())
        while gateway._pumps[0]._turn is not None:
            await asyncio.sleep(0)
        # The loop does not look while the next message comes, and whoever sends takes its news.
        node.send(load(2))
        deadline_s = time.monotonic() + PATIENCE_S
        while not gateway._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            assert time.monotonic() < deadline_s
        gateway.send("w1/a/1", Audit())
        await at_gateway.first(MessageFromWorker, 2)
        assert at_gateway.told[1:] == [
            PeerGone("w1/a/1", "the connection broke"),
            MessageFromWorker("w0/a/1", load(2)),
        ]

    run(scenario)


def test_who_comes_and_goes_without_end_has_nobody_tried_out_each_time(monkeypatch):
    monkeypatch.setattr("tandem.live.channels.gateway_channel.PROBES_S", (0.001, 0.002))
    broke = [struct.pack("=hi", zmq.Event.DISCONNECTED, 0), b""]

    async def scenario():
        gateway, node, at_gateway, _ = await connected_ends()
        node.send(load(1))
        peer = (await at_gateway.first(MessageFromWorker)).peer
        tried: list[str] = []
        sent = gateway._sent
        monkeypatch.setattr(
            gateway, "_sent", lambda to, data: (tried.append(to), sent(to, data))[1]
        )
        for _ in range(500):
            gateway._watch(broke)
        while gateway._probes.coming:
            await asyncio.sleep(0)
        # Also after the last one.
        assert tried == [peer] * 4
        await node.close(1.0)
        await gateway.close(1.0)

    run(scenario)


def test_a_process_that_connects_anew_has_lost_its_older_connection():
    """Even when nobody has noticed: a half-open connection looks alive for long."""

    async def scenario():
        at_gateway = News()
        _, endpoint = gateway_end(at_gateway)
        context = zmq.Context()
        sockets = []
        for number, name in enumerate((b"w0/a/1", b"w1/a/1", b"w0/a/2"), 1):
            sockets.append(node_socket(context, NODE_KEYS, ChannelLimits(), name))
            sockets[-1].connect(endpoint)
            sockets[-1].send(TO_GATEWAY.encode(load(number)))
            await at_gateway.first(MessageFromWorker, number)
        assert at_gateway.told == [
            MessageFromWorker("w0/a/1", load(1)),
            MessageFromWorker("w1/a/1", load(2)),
            PeerGone("w0/a/1", "it connected anew"),
            MessageFromWorker("w0/a/2", load(3)),
        ]
        for socket in sockets:
            socket.close(0)
        context.term()

    run(scenario)


def test_an_outbox_takes_one_message_of_any_size():
    outbox = Outbox(ChannelLimits(outbox_messages=2, outbox_bytes=10))
    assert outbox.add(bytes(100))
    assert not outbox.add(b"1")
    outbox.sent()
    assert outbox.add(b"1") and outbox.add(b"2")
    assert not outbox.add(b"3")
    outbox.sent()
    outbox.sent()
    assert outbox.add(bytes(10))


def test_a_message_becomes_bytes_once_when_its_turn_comes():
    outbox, encoded = Outbox(ChannelLimits(outbox_messages=2, outbox_bytes=10)), []

    def encode(data):
        encoded.append(data)
        return data

    assert outbox.add(b"0")
    for data in (b"1", b"2"):
        outbox.add_later(lambda data=data: encode(data))
    assert outbox.first == b"0" and not encoded
    outbox.sent()
    assert outbox.first == outbox.first == b"1" and encoded == [b"1"]
    outbox.sent()
    assert outbox.first == b"2" and encoded == [b"1", b"2"]


def test_malformed_messages_are_counted_and_told_once(caplog):
    async def scenario():
        at_gateway, at_node = News(), News()
        gateway, endpoint = gateway_end(at_gateway)
        context = zmq.Context()
        socket = node_socket(context, NODE_KEYS, ChannelLimits(), b"odd/a/1")
        socket.connect(endpoint)
        good = TO_GATEWAY.encode(load(5))
        for bad in (b"", b"\xff" * 30, good[:-1], good + b"x"):
            socket.send(bad)
        socket.send_multipart([good, good])
        operator = node_socket(context, NODE_KEYS, ChannelLimits(), b"operator/1")
        operator.connect(endpoint)
        operator.send(good)
        socket.send(good)
        assert (await at_gateway.first(MessageFromWorker)).message == load(5)
        while gateway.malformed.count < 6:
            await asyncio.sleep(0)
        assert len(at_gateway.told) == 1
        complaints = [record for record in caplog.records if "odd/a/1" in record.message]
        assert len(complaints) == 1
        # The other way round: whatever a gateway says, the worker goes on.
        node = node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)
        node.send(load(6))
        await at_gateway.first(MessageFromWorker, 2)
        for bad in (b"\xff" * 30, b"\1"):
            gateway._socket.send_multipart([b"w0/a/1", bad])
        gateway.send("w0/a/1", Audit())
        assert (await at_node.first(MessageFromGateway)).message == Audit()
        assert node.malformed.count == 2
        for each in (socket, operator):
            each.close(0)
        context.term()
        await node.close(0.0)
        await gateway.close(0.0)

    with caplog.at_level(logging.ERROR):
        run(scenario)


def test_a_worker_of_another_protocol_is_told_why_it_must_go():
    async def scenario():
        at_gateway = News()
        _, endpoint = gateway_end(at_gateway)
        context = zmq.Context()
        socket = node_socket(context, NODE_KEYS, ChannelLimits(), b"old/a/1")
        socket.connect(endpoint)
        socket.send(TO_GATEWAY.encode(load(1), protocol=PROTOCOL + 1))
        while not socket.poll(1):
            await asyncio.sleep(0)
        answer = socket.recv()
        assert answer[0] == PROTOCOL + 1
        farewell = TO_WORKER.decode(bytes((PROTOCOL,)) + answer[1:])
        assert isinstance(farewell, RegistrationRefused)
        assert "same version" in farewell.reason
        assert not at_gateway.told
        socket.close(0)
        context.term()

    run(scenario)


FLOODING = """
import sys, zmq
from tandem.live.channels.sockets import ChannelLimits, NodeKeys, node_socket
from tandem.messages.cluster import Deregister
from tandem.messages.codec import TO_GATEWAY
from tandem.live.channels.keys import KeyPair
keys = NodeKeys(KeyPair(sys.argv[2], sys.argv[3]), sys.argv[4])
socket = node_socket(zmq.Context(), keys, ChannelLimits(high_water=8), b"flood/a/1")
socket.connect(sys.argv[1])
sent = 0
while socket.poll(200, zmq.POLLOUT):
    socket.send(TO_GATEWAY.encode(Deregister("x" * (1 << 16))))
    sent += 1
print(sent, flush=True)
sys.stdin.read()
"""


def test_a_worker_killed_while_it_waited_to_be_read_does_no_harm():
    """libzmq's own heartbeats would abort the gateway here; what was sent is still read."""
    limits = ChannelLimits(high_water=8)

    async def scenario():
        at_gateway, at_node = News(), News()
        gateway, endpoint = gateway_end(at_gateway, limits=limits)
        assert gateway._socket.heartbeat_ivl == 0
        command = [sys.executable, "-c", FLOODING, endpoint, *WORKER_PAIR, GATEWAY_PAIR.public]
        flood = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        # The loop gets no turn, but the key guard must answer for the connection.
        while not at_gateway.told:
            await asyncio.sleep(0)
        assert flood.stdout is not None
        assert int(flood.stdout.readline()) > 16
        flood.kill()
        flood.communicate(timeout=PATIENCE_S)
        assert await at_gateway.first(PeerGone) == PeerGone("flood/a/1", "the connection broke")
        node_end(endpoint, at_node)
        await at_node.first(GatewayConnected)

    run(scenario)


KILLED = """
import asyncio, sys
from tests.live.ends import News, node_end
from tandem.messages.cluster import Deregister
from tandem.messages.node import GatewayConnected
from tandem.live.channels.sockets import NodeKeys
from tandem.live.channels.keys import KeyPair
async def main():
    news = News()
    keys = NodeKeys(KeyPair(sys.argv[2], sys.argv[3]), sys.argv[4])
    node = node_end(sys.argv[1], news, name="victim/a", keys=keys)
    await news.first(GatewayConnected)
    node.send(Deregister("victim"))
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_a_killed_worker_is_noticed_at_once():
    async def scenario():
        at_gateway = News()
        _, endpoint = gateway_end(at_gateway)
        arguments = [endpoint, *WORKER_PAIR, GATEWAY_PAIR.public]
        victim = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
        try:
            await at_gateway.first(MessageFromWorker)
            os.kill(victim.pid, signal.SIGKILL)
            assert await at_gateway.first(PeerGone) == PeerGone(
                "victim/a/1", "the connection broke"
            )
        finally:
            victim.kill()
            victim.wait(10)

    run(scenario)


def test_a_gateway_whose_name_nobody_knows_is_tried_again(caplog):
    async def scenario():
        caplog.set_level(logging.INFO, logger="tandem.live.channels")
        limits = ChannelLimits(reconnect_s=0.01, reconnect_most_s=0.05, unresolved_s=0.05)
        # Names that end so belong to nobody, ever.
        node_end("tcp://gateway.invalid:9000", News(), limits=limits)
        while "gateway tcp://gateway.invalid:9000 is not there yet" not in caplog.text:
            await asyncio.sleep(0.01)

    run(scenario)
