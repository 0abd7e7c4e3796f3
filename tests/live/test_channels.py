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
import zmq

from tandem.facts.request import Request
from tandem.live.channels.gateway_channel import MessageFromOperator
from tandem.live.channels.keys import make_pair
from tandem.live.channels.sockets import ChannelLimits, NodeKeys, Outbox
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
    PATIENCE_S,
    WORKER_PAIR,
    News,
    connected_end,
    connected_ends,
    gateway_end,
    node_end,
    raw_node,
)

FAST = ChannelLimits(reconnect_s=0.01, reconnect_most_s=0.05)


def load(number: int) -> LoadReported:
    return LoadReported("w0", number, 0, 0, 0, 0)


async def test_messages_arrive_in_order_both_ways():
    gateway, node, at_gateway, at_node = await connected_ends()
    for number in range(3000):
        node.send(load(number))
    last = await at_gateway.first(MessageFromWorker, 3000)
    assert [news.message.running_sequences for news in at_gateway.received] == list(range(3000))
    assert last.peer == "w0/a/1"
    for number in range(3000):
        gateway.send(last.peer, PeerLost("w", str(number)))
    await at_node.first(MessageFromGateway, 3000)
    assert [news.message.incarnation for news in at_node.of(MessageFromGateway)] == [
        str(number) for number in range(3000)
    ]


async def test_what_was_sent_last_arrives_before_the_end():
    gateway, node, at_gateway, _ = await connected_ends()
    for number in range(1000):
        node.send(load(number))
    node.send(Deregister("w0"))
    await node.close(5.0)
    gone = await at_gateway.first(PeerGone)
    assert gone == PeerGone("w0/a/1", "the connection broke")
    assert at_gateway.received[-2:] == [MessageFromWorker("w0/a/1", Deregister("w0")), gone]
    gateway.send("w0/a/1", Audit())
    await gateway.close(0.0)
    assert at_gateway.received[-1] == gone


@pytest.mark.parametrize("stranger", ["worker", "gateway"])
async def test_a_wrong_key_gets_nothing(stranger, caplog):
    """Neither a worker without the cluster's key, nor a gateway that is not the one meant."""
    other_gateway, other_worker = make_pair(), make_pair()
    keys = {
        "worker": NodeKeys(other_worker, GATEWAY_PAIR.public),
        "gateway": NodeKeys(WORKER_PAIR, other_gateway.public),
    }[stranger]

    at_gateway, at_stranger = News(), News()
    _, endpoint = gateway_end(at_gateway)
    wrong = node_end(endpoint, at_stranger, name="evil/x", keys=keys, limits=FAST)
    if stranger == "worker":
        assert "another cluster" in await at_stranger.first(str)
    good, _ = await connected_end(endpoint)
    wrong.send(Deregister("evil"))
    good.send(Deregister("w0"))
    await at_gateway.first(MessageFromWorker)
    assert at_gateway.received == [MessageFromWorker("w0/a/1", Deregister("w0"))]
    assert not at_stranger.of(GatewayConnected)
    complaint = {"worker": "refuses the key", "gateway": "does not prove to be the gateway"}
    # The stranger learns of it in a time of its own.
    while not any(complaint[stranger] in record.message for record in caplog.records):
        await asyncio.sleep(0.01)


async def test_an_unencrypted_client_gets_nothing():
    at_gateway = News()
    _, endpoint = gateway_end(at_gateway)
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain.routing_id = b"w9/a/1"
    plain.connect(endpoint)
    plain.send(TO_GATEWAY.encode(Deregister("w9")))
    good, _ = await connected_end(endpoint)
    good.send(Deregister("w0"))
    await at_gateway.first(MessageFromWorker)
    assert at_gateway.received == [MessageFromWorker("w0/a/1", Deregister("w0"))]
    assert not plain.poll(0)
    plain.close()
    context.term()


async def test_a_gateway_that_comes_late_or_again_is_found():
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
    assert [type(news) for news in at_node.received] == [
        GatewayConnected,
        GatewayGone,
        GatewayConnected,
    ]


async def test_a_worker_that_reads_nothing_is_gone_after_the_silence_and_not_before():
    """However much is sent to it; the transport takes what its pipes and the kernel hold."""
    limits = ChannelLimits(unread_s=0.3, outbox_messages=10, outbox_bytes=1 << 20, high_water=8)

    loop, at_gateway = asyncio.get_running_loop(), News()
    gateway, endpoint = gateway_end(at_gateway, limits=limits)
    hung = raw_node(endpoint, "hung/a/1", limits)
    hung.send(TO_GATEWAY.encode(Deregister("hung")))
    await at_gateway.first(MessageFromWorker)
    bulk, began_s = RegistrationRefused("x" * (1 << 20)), loop.time()
    for _ in range(200):
        gateway.send("hung/a/1", bulk)
    assert not at_gateway.of(PeerGone)
    assert await at_gateway.first(PeerGone) == PeerGone("hung/a/1", "it does not read")
    assert loop.time() - began_s >= limits.unread_s
    # Others are served all the while, and the hung one may come back.
    good, _ = await connected_end(endpoint)
    good.send(load(1))
    await at_gateway.until(lambda: MessageFromWorker("w0/a/1", load(1)) in at_gateway.received)
    while hung.poll(100):
        hung.recv()
    hung.send(TO_GATEWAY.encode(load(7)))
    await at_gateway.until(lambda: MessageFromWorker("hung/a/1", load(7)) in at_gateway.received)
    gateway.send("hung/a/1", RegisterAgain())
    while not hung.poll(10):
        await asyncio.sleep(0)
    assert TO_WORKER.decode(hung.recv()) == RegisterAgain()


async def test_a_gateway_that_was_itself_held_up_takes_nobody_for_hung():
    limits = ChannelLimits(unread_s=0.2, high_water=8)

    gateway, node, at_gateway, at_node = await connected_ends(limits)
    node.send(load(1))
    peer = (await at_gateway.first(MessageFromWorker)).peer
    for number in range(200):
        gateway.send(peer, PeerLost("x" * (1 << 18), str(number)))
    assert len(gateway._peers[peer])
    time.sleep(3 * limits.unread_s)  # neither end of this process gets a turn
    await at_node.first(MessageFromGateway, 200)
    assert not at_gateway.of(PeerGone)


async def test_an_honest_burst_larger_than_the_outbox_arrives_whole_and_in_order():
    """What there is no room for waits as it is: only what is under way has become bytes."""
    limits = ChannelLimits(outbox_messages=10, outbox_bytes=1 << 20, high_water=8)
    burst = 160

    gateway, node, at_gateway, at_node = await connected_ends(limits)
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


async def test_an_operator_that_reads_no_answers_costs_a_bound():
    limits = ChannelLimits(outbox_messages=20, outbox_bytes=1 << 20, high_water=8)

    at_gateway = News()
    gateway, endpoint = gateway_end(at_gateway, limits=limits)
    hung = raw_node(endpoint, "operator/1", limits)
    hung.send(OPERATOR.encode(AskStatus(1)))
    await at_gateway.first(MessageFromOperator)
    for number in range(200):
        gateway.answer("operator/1", Done(number, "x" * (1 << 20)))
    assert "operator/1" not in gateway._peers


async def test_a_gateway_that_does_not_read_is_gone():
    limits = ChannelLimits(outbox_messages=100, outbox_bytes=1 << 20, high_water=8)

    _, node, at_gateway, at_node = await connected_ends(node_limits=limits)
    bulk = Deregister("x" * (1 << 19))
    for _ in range(300):  # the loop gets no turn, so the gateway cannot read
        node.send(bulk)
    await at_node.first(GatewayGone)
    await at_node.first(GatewayConnected, 2)
    node.send(load(1))
    await at_gateway.until(lambda: MessageFromWorker("w0/a/2", load(1)) in at_gateway.received)


async def test_sending_swallows_no_news():
    gateway, node, at_gateway, _ = await connected_ends()
    node.send(load(1))
    await at_gateway.first(MessageFromWorker)
    while gateway._pumps[0]._turn is not None:
        await asyncio.sleep(0)
    # The loop does not look while the next message comes, and whoever sends takes its news.
    node.send(load(2))
    deadline_s = time.monotonic() + PATIENCE_S
    while not gateway._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        assert time.monotonic() < deadline_s
    gateway.send("w0/a/1", Audit())
    assert await at_gateway.first(MessageFromWorker, 2) == MessageFromWorker("w0/a/1", load(2))


async def test_what_a_peer_sent_before_it_went_is_read_before_its_loss():
    """Also where sending to it fails first: a worker that deregisters has left and is not lost."""
    at_gateway = News()
    gateway, endpoint = gateway_end(at_gateway)
    worker = raw_node(endpoint, "w0/a/1")
    worker.send(TO_GATEWAY.encode(load(1)))
    await at_gateway.first(MessageFromWorker)
    worker.send(TO_GATEWAY.encode(Deregister("w0")))
    worker.close(int(PATIENCE_S * 1000))
    worker.context.term()
    # The event loop stands still meanwhile, so that nothing is read before sending fails.
    deadline_s = time.monotonic() + PATIENCE_S
    while gateway._sent("w0/a/1", b""):
        assert time.monotonic() < deadline_s
    gone = await at_gateway.first(PeerGone)
    assert gone == PeerGone("w0/a/1", "the connection broke")
    assert at_gateway.received[-2:] == [MessageFromWorker("w0/a/1", Deregister("w0")), gone]


async def test_who_comes_and_goes_without_end_has_nobody_tried_out_each_time(monkeypatch):
    monkeypatch.setattr("tandem.live.channels.gateway_channel.PROBES_S", (0.001, 0.002))
    broke = [struct.pack("=hi", zmq.Event.DISCONNECTED, 0), b""]

    gateway, node, at_gateway, _ = await connected_ends()
    node.send(load(1))
    peer = (await at_gateway.first(MessageFromWorker)).peer
    tried: list[str] = []
    sent = gateway._sent
    monkeypatch.setattr(gateway, "_sent", lambda to, data: (tried.append(to), sent(to, data))[1])
    for _ in range(500):
        gateway._watch(broke)
    while gateway._probes.coming:
        await asyncio.sleep(0)
    # Also after the last one.
    assert tried == [peer] * 4


async def test_a_process_that_connects_anew_has_lost_its_older_connection():
    """Even when nobody has noticed: a half-open connection looks alive for long."""

    at_gateway = News()
    _, endpoint = gateway_end(at_gateway)
    for number, name in enumerate(("w0/a/1", "w1/a/1", "w0/a/2"), 1):
        raw_node(endpoint, name).send(TO_GATEWAY.encode(load(number)))
        await at_gateway.first(MessageFromWorker, number)
    assert at_gateway.received == [
        MessageFromWorker("w0/a/1", load(1)),
        MessageFromWorker("w1/a/1", load(2)),
        PeerGone("w0/a/1", "it connected anew"),
        MessageFromWorker("w0/a/2", load(3)),
    ]


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


async def test_malformed_messages_are_counted_and_logged_once(caplog):
    caplog.set_level(logging.ERROR)
    at_gateway = News()
    gateway, endpoint = gateway_end(at_gateway)
    good = TO_GATEWAY.encode(load(5))
    odd = raw_node(endpoint, "odd/a/1")
    for bad in (b"", b"\xff" * 30, good[:-1], good + b"x"):
        odd.send(bad)
    odd.send_multipart([good, good])
    raw_node(endpoint, "operator/1").send(good)
    odd.send(good)
    assert (await at_gateway.first(MessageFromWorker)).message == load(5)
    while gateway.malformed.count < 6:
        await asyncio.sleep(0)
    assert len(at_gateway.received) == 1
    complaints = [record for record in caplog.records if "odd/a/1" in record.message]
    assert len(complaints) == 1
    # The other way round: whatever a gateway sends, the worker goes on.
    node, at_node = await connected_end(endpoint)
    node.send(load(6))
    await at_gateway.first(MessageFromWorker, 2)
    for bad in (b"\xff" * 30, b"\1"):
        gateway._socket.send_multipart([b"w0/a/1", bad])
    gateway.send("w0/a/1", Audit())
    assert (await at_node.first(MessageFromGateway)).message == Audit()
    assert node.malformed.count == 2


async def test_a_worker_of_another_protocol_is_told_why_it_must_go():
    at_gateway = News()
    _, endpoint = gateway_end(at_gateway)
    socket = raw_node(endpoint, "old/a/1")
    socket.send(TO_GATEWAY.encode(load(1), protocol=PROTOCOL + 1))
    while not socket.poll(1):
        await asyncio.sleep(0)
    answer = socket.recv()
    assert answer[0] == PROTOCOL + 1
    farewell = TO_WORKER.decode(bytes((PROTOCOL,)) + answer[1:])
    assert isinstance(farewell, RegistrationRefused)
    assert "same version" in farewell.reason
    assert not at_gateway.received


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


async def test_a_worker_killed_while_it_waited_to_be_read_does_no_harm():
    """libzmq's own heartbeats would abort the gateway here; what was sent is still read."""
    limits = ChannelLimits(high_water=8)

    at_gateway = News()
    gateway, endpoint = gateway_end(at_gateway, limits=limits)
    assert gateway._socket.heartbeat_ivl == 0
    command = [sys.executable, "-c", FLOODING, endpoint, *WORKER_PAIR, GATEWAY_PAIR.public]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    # The loop gets no turn, but the key guard must answer for the connection.
    while not at_gateway.received:
        await asyncio.sleep(0)
    assert flood.stdout is not None
    assert int(flood.stdout.readline()) > 16
    flood.kill()
    flood.communicate(timeout=PATIENCE_S)
    assert await at_gateway.first(PeerGone) == PeerGone("flood/a/1", "the connection broke")
    await connected_end(endpoint)


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


async def test_a_killed_worker_is_noticed_at_once():
    at_gateway = News()
    _, endpoint = gateway_end(at_gateway)
    arguments = [endpoint, *WORKER_PAIR, GATEWAY_PAIR.public]
    victim = subprocess.Popen([sys.executable, "-c", KILLED, *arguments])
    try:
        await at_gateway.first(MessageFromWorker)
        os.kill(victim.pid, signal.SIGKILL)
        assert await at_gateway.first(PeerGone) == PeerGone("victim/a/1", "the connection broke")
    finally:
        victim.kill()
        victim.wait(10)


async def test_a_gateway_whose_name_nobody_knows_is_tried_again(caplog):
    caplog.set_level(logging.INFO, logger="tandem.live.channels")
    limits = ChannelLimits(reconnect_s=0.01, reconnect_most_s=0.05, unresolved_s=0.05)
    # Names that end so belong to nobody, ever.
    node_end("tcp://gateway.invalid:9000", News(), limits=limits)
    while "gateway tcp://gateway.invalid:9000 is not there yet" not in caplog.text:
        await asyncio.sleep(0.01)
