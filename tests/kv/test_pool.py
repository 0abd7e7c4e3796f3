"""The shared pool over real sockets: what is written is read by others, whole or not at all."""

import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.kv import BlockFormat, BlockName, placement
from tandem.kv.connectors.tcp.protocol import BadFrame, Credentials
from tandem.kv.connectors.tcp.stream import (
    PeerAddress,
    Stream,
    StreamEnded,
    TcpLimits,
    prove_to_server,
)
from tandem.kv.tiers.block_records import TAG_BYTES
from tandem.kv.tiers.pool import protocol as frames
from tandem.kv.tiers.pool.protocol import Verb, Verdict
from tests.kv.ending import closing
from tests.kv.pool_coordinator import PATIENT, SECRET, TAGS, client_of, entropy, served
from tests.kv.tier_blocks import FORMAT, contents, digests, name, names, rows, whole

END_S = 20.0
IMPATIENT = TcpLimits(connect_s=0.2, silence_s=0.2, idle_s=END_S)


@pytest.fixture(scope="module")
def node():
    with served() as node:
        yield node


def test_what_one_wrote_another_reads(node):
    chain = names(40, chain=1, tenant="acme")
    with client_of(node) as writer, client_of(node) as reader:
        assert writer.put_blocks(chain, contents(chain)).digests == digests(chain)
        into = rows(40)
        found = reader.get_blocks(chain, into)
        assert (found.blocks, found.corrupt, found.missing, found.problem) == (40, (), (), "")
        assert whole(chain, into)


def test_many_frames_are_one_call():
    large = BlockFormat(FORMAT.root, 64 << 10)
    batch = frames.batch_blocks(large.block_bytes + TAG_BYTES)
    chain = names(3 * batch + 7, chain=2)
    written = np.random.default_rng(1).integers(0, 256, (len(chain), 64 << 10), dtype=np.uint8)
    with served(block_format=large) as node, client_of(node, block_format=large) as client:
        assert client.put_blocks(chain, list(written)).digests == digests(chain)
        into = np.zeros_like(written)
        assert client.get_blocks(chain, list(into)).blocks == len(chain)
        assert (into == written).all()
        assert node.coordinator.most_together == batch
        # A gap in the middle of the second of four frames.
        hole = batch + 5
        node.coordinator.store.forget_blocks([chain[hole].digest])
        found = client.get_blocks(chain, list(into))
        assert (found.blocks, found.missing) == (hole, (chain[hole].digest,))
        # The connection is as good as before.
        assert client.get_blocks(chain[:5], list(into)).blocks == 5


def test_nothing_is_sent_twice(node):
    chain = names(20, chain=3)
    with client_of(node) as client:
        client.put_blocks(chain[:12], contents(chain[:12]))
        before = node.coordinator.keeps
        kept = client.put_blocks(chain, contents(chain))
        assert set(kept.digests) == set(digests(chain))
        assert node.coordinator.keeps == before + 8


def test_more_names_than_one_offer_holds(node):
    tiny = [name(number, chain=4) for number in range(frames.OFFER_NAMES + 100)]
    with client_of(node) as client:
        assert len(client.put_blocks(tiny, contents(tiny)).digests) == len(tiny)
        into = rows(len(tiny))
        assert client.get_blocks(tiny, into).blocks == len(tiny)
        assert whole(tiny, into)


def test_the_secret_and_the_start_are_proved(node):
    chain = names(2, chain=5)
    with client_of(node, secret=b"another secret of some length") as client:
        kept = client.put_blocks(chain, contents(chain))
        assert kept.digests == ()
        assert "does not answer as it should" in kept.problem
    with client_of() as client:
        client.connect_pool_node(node.name, "another start", node.address)
        assert "does not answer as it should" in client.get_blocks(chain, rows(2)).problem


def test_blocks_of_another_format_are_neither_taken_nor_given(node):
    chain = names(2, chain=6)
    other = BlockFormat(bytes(16), FORMAT.block_bytes)
    with client_of(node, block_format=other) as client:
        kept = client.put_blocks(chain, contents(chain))
        assert kept.digests == ()
        assert "another model, layout or precision" in kept.problem


def test_chains_are_shared_out_and_found_when_the_first_choice_is_gone():
    with ExitStack() as stack:
        nodes = [stack.enter_context(served(f"pool-{n}")) for n in range(3)]
        client = stack.enter_context(client_of(*nodes, limits=IMPATIENT))
        chains = [names(4, chain=n) for n in range(30)]
        together = [block for chain in chains for block in chain]
        assert set(client.put_blocks(together, contents(together)).digests) == set(
            digests(together)
        )
        for chain in chains:
            order = placement(chain[0].first, [node.name for node in nodes])
            holders = [n.name for n in nodes if chain[0].digest in n.coordinator.held]
            assert holders == order[:1]
            copied = client.put_blocks_to(order[1], chain, contents(chain))
            assert copied.digests == digests(chain)
        nodes[0].server.stop_serving(END_S)
        into = rows(len(together))
        found = client.get_blocks(together, into)
        assert found.blocks == len(together)
        assert whole(together, into)
        # New ones go where somebody answers.
        more = names(4, chain=99)
        for _ in range(2):
            kept = client.put_blocks(more, contents(more))
        assert kept.digests == digests(more)


def test_the_rest_of_a_chain_is_read_from_the_next():
    with served("pool-0") as one, served("pool-1") as other, client_of(one, other) as client:
        chain = names(10)
        order = placement(chain[0].first, ["pool-0", "pool-1"])
        client.put_blocks_to(order[0], chain[:6], contents(chain[:6]))
        client.put_blocks_to(order[1], chain, contents(chain))
        into = rows(10)
        assert client.get_blocks(chain, into).blocks == 10
        assert whole(chain, into)


def test_one_that_is_silent_costs_its_time_once():
    now_ns = [0]
    chain = names(3)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        client_of(limits=IMPATIENT, retry_s=5.0, now_ns=lambda: now_ns[0]) as client,
    ):
        client.connect_pool_node("pool-0", "start", f"127.0.0.1:{silent.getsockname()[1]}")
        began_s = time.monotonic()
        assert "silent for 0.2 s" in client.get_blocks(chain, rows(3)).problem
        assert time.monotonic() - began_s < 5.0
        # Alone it is left: nobody even connects.
        found = client.get_blocks(chain, rows(3))
        assert (found.blocks, found.problem) == (0, "")
        assert client.put_blocks(chain, contents(chain)).problem
        silent.settimeout(0.0)
        silent.accept()
        with pytest.raises(BlockingIOError):
            silent.accept()
        now_ns[0] = 5_000_000_000
        assert "silent" in client.get_blocks(chain, rows(3)).problem


def test_one_that_is_gone_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent, client_of() as client:
        client.connect_pool_node("pool-0", "start", f"127.0.0.1:{silent.getsockname()[1]}")
        found = []
        asking = threading.Thread(target=lambda: found.append(client.get_blocks(names(1), rows(1))))
        asking.start()
        connection, _ = silent.accept()
        client.disconnect_pool_node("pool-0", "another start")
        assert list(client._nodes) == ["pool-0"]
        client.disconnect_pool_node("pool-0", "start")
        asking.join(END_S)
        connection.close()
        assert "it is gone" in found[0].problem
        assert not client._nodes


def test_addresses_that_are_none_are_not_tried():
    with client_of() as client:
        for address in ("", "127.0.0.1", "a.name:80", "0.0.0.0:80", "127.0.0.1:x"):
            client.connect_pool_node("pool-0", "start", address)
        assert not client._nodes
        assert client.put_blocks(names(1), contents(names(1))).problem


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_a_node_that_joins_moves_only_what_it_gets(count):
    firsts = [name(0, chain).digest for chain in range(4000)]
    nodes = [f"pool-{n}" for n in range(count)]
    before = [placement(first, nodes)[0] for first in firsts]
    after = [placement(first, [*nodes, "another"])[0] for first in firsts]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"another"}
    assert len(moved) == pytest.approx(len(firsts) / (count + 1), rel=0.2)
    for part in Counter(after).values():
        assert part == pytest.approx(len(firsts) / (count + 1), rel=0.2)


@settings(max_examples=30)
@given(st.binary(min_size=16, max_size=16), st.sets(st.integers(0, 99).map(str), min_size=1))
def test_placement_depends_on_nothing_but_the_names(first, nodes):
    order = placement(first, nodes)
    assert sorted(order) == sorted(nodes)
    assert placement(first, sorted(nodes, reverse=True)) == order
    # Whoever leaves, the others keep their order.
    assert placement(first, [n for n in nodes if n != order[0]]) == order[1:]


# What may come over the port.


def way_to(node) -> PeerAddress:
    host, port = node.address.split(":")
    credentials = Credentials(SECRET, frames.incarnation_proof(node.incarnation))
    return PeerAddress(node.name, (host, int(port)), credentials, entropy, PATIENT)


def proven(node) -> Stream:
    """A connection over which the proofs have been exchanged."""
    way = way_to(node)
    stream = Stream(socket.create_connection(way.address, END_S))
    prove_to_server(stream, way)
    return stream


def send(stream: Stream, *pieces: bytes) -> None:
    stream.send_bytes([memoryview(piece) for piece in pieces], END_S)


def receive(stream: Stream, count: int) -> bytes:
    data = bytearray(count)
    stream.receive_bytes([memoryview(data)], END_S)
    return bytes(data)


def offer(stream: Stream, chain: list[BlockName]) -> tuple[Verdict, ...]:
    send(stream, frames.request(Verb.OFFER, TAGS.stored, chain))
    assert frames.parse_reply(receive(stream, frames.REPLY_BYTES), len(chain)) == len(chain)
    return frames.parse_verdicts(receive(stream, len(chain)))


def data(chain: list[BlockName]) -> bytes:
    rows = contents(chain)
    tagged = zip(rows, TAGS.of(chain, rows), strict=True)
    head = frames.data_frame(TAGS.stored, len(chain))
    return head + b"".join(row.tobytes() + tag for row, tag in tagged)


@pytest.mark.parametrize("sent_bytes", [0, 20, 80, 100, 3_000, 6_050])
def test_a_client_that_dies_in_the_middle_leaves_nothing(node, sent_bytes):
    chain = names(2, chain=1000 + sent_bytes)
    whole_frame = data(chain)
    assert sent_bytes < len(whole_frame)
    with closing(proven(node)) as stream:
        assert offer(stream, chain) == (Verdict.WANTED,) * 2
        assert node.coordinator.coming >= set(digests(chain))
        send(stream, whole_frame[:sent_bytes])
    node.coordinator.until(lambda: not node.coordinator.coming & set(digests(chain)))
    assert not node.coordinator.held & set(digests(chain))
    with client_of(node) as client:
        assert client.put_blocks(chain, contents(chain)).digests == digests(chain)


def test_a_corrupt_block_is_refused_and_the_others_are_kept(node):
    chain = names(3, chain=7)
    frame = bytearray(data(chain))
    frame[-TAGS.stored.block_bytes - 1] ^= 1
    with closing(proven(node)) as stream:
        offer(stream, chain)
        send(stream, bytes(frame))
        receive(stream, frames.REPLY_BYTES)
        verdicts = frames.parse_verdicts(receive(stream, 3))
        assert verdicts == (Verdict.HELD, Verdict.CORRUPT, Verdict.HELD)
        assert not node.coordinator.coming
        # It may be offered again.
        assert offer(stream, chain) == (Verdict.HELD, Verdict.WANTED, Verdict.HELD)


def test_two_do_not_send_the_same(node):
    chain = names(2, chain=8)
    with closing(proven(node)) as one, closing(proven(node)) as other:
        assert offer(one, chain) == (Verdict.WANTED,) * 2
        assert offer(other, chain) == (Verdict.UNWANTED,) * 2
        # Whoever offers anew sends nothing of what it offered before.
        offer(one, names(1, chain=9))
        assert offer(other, chain) == (Verdict.WANTED,) * 2


def test_who_promises_and_falls_silent_keeps_nobody_from_bringing_it():
    chain = names(2, chain=10)
    with (
        served(limits=IMPATIENT) as node,
        closing(proven(node)) as stream,
        closing(proven(node)) as other,
    ):
        assert offer(stream, chain) == (Verdict.WANTED,) * 2
        node.coordinator.until(lambda: not node.coordinator.coming)
        assert offer(other, chain) == (Verdict.WANTED,) * 2


def test_blocks_that_nobody_asked_for_end_the_connection(node):
    chain = names(2, chain=10)
    with closing(proven(node)) as stream:
        send(stream, data(chain))
        with pytest.raises(StreamEnded):
            receive(stream, 1)
    assert not node.coordinator.held & set(digests(chain))


def test_bytes_that_change_on_the_way_never_come_out(node):
    """Whatever byte of an answer is corrupt."""
    chain = names(3, chain=11)
    with client_of(node) as client:
        client.put_blocks(chain, contents(chain))
    for at in [*range(0, 40, 3), 60, 3_000, 5_000, 9_000]:
        with (
            closing(Forgery(way_to(node).address, at)) as forged,
            client_of(limits=IMPATIENT) as client,
        ):
            client.connect_pool_node(node.name, node.incarnation, forged.address)
            into = rows(3)
            found = client.get_blocks(chain, into)
            # Some bytes only fill up.
            assert (found.blocks == 3) == (at in (9,))
            assert whole(chain[: found.blocks], into[: found.blocks])


def test_one_that_sends_a_little_now_and_then_costs_a_bounded_time(node):
    chain = names(3, chain=12)
    with client_of(node) as client:
        client.put_blocks(chain, contents(chain))
    with (
        closing(Crumbs(way_to(node).address, 0)) as slow,
        client_of(call_s=0.3) as client,
    ):
        client.connect_pool_node(node.name, node.incarnation, slow.address)
        began_s = time.monotonic()
        found = client.get_blocks(chain, rows(3))
        assert "it took too long" in found.problem
        assert time.monotonic() - began_s < 5.0
        # From then on it is left alone.
        assert client.get_blocks(chain, rows(3)).problem == ""


class Forgery:
    """Carries bytes to and fro, and changes byte `at` of what the server sends after the proofs."""

    def __init__(self, address: tuple[str, int], at: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._to = address
        self._at = at + 40 + 32
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.close()
        self._thread.join(END_S)

    def _carry(self) -> None:
        client, _ = self._listening.accept()
        with client, socket.create_connection(self._to) as server:
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while piece := _received(client):
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)
            back.join(END_S)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        passed = 0
        while piece := bytearray(_received(server)):
            if passed <= self._at < passed + len(piece):
                piece[self._at - passed] ^= 0x10
            passed += len(piece)
            try:
                client.sendall(piece)
            except OSError:
                return


class Crumbs(Forgery):
    """All that the server sends comes in the end, a byte at a time."""

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        for proof_bytes in (40, 32):
            client.sendall(server.recv(proof_bytes, socket.MSG_WAITALL))
        while piece := _received(server):
            for byte in piece:
                time.sleep(0.002)
                try:
                    client.sendall(bytes([byte]))
                except OSError:
                    return


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=300))
def test_any_request_gets_an_answer_or_an_end(node, garbage):
    with closing(proven(node)) as stream:
        stream.send_bytes([memoryview(garbage)], END_S)
        stream.shut_stream()
    chain = names(1, chain=12)
    with closing(proven(node)) as stream:
        assert len(offer(stream, chain)) == 1


NAME = st.builds(
    BlockName,
    *[st.binary(min_size=16, max_size=16)] * 3,
    st.text(st.characters(codec="utf-8"), max_size=60),
)


@given(st.lists(NAME, min_size=1, max_size=40, unique_by=lambda each: each.digest))
def test_names_survive_the_way(chain):
    sent = frames.request(Verb.GET, FORMAT, chain)
    head = frames.parse_head(sent[: frames.HEAD_BYTES])
    assert head.count == len(chain)
    assert frames.parse_names(head, sent[frames.HEAD_BYTES :]) == tuple(chain)


@given(st.lists(NAME, min_size=1, max_size=5, unique_by=lambda each: each.digest), st.data())
def test_names_that_were_corrupted_are_other_names_or_refused(chain, chance):
    sent = bytearray(frames.request(Verb.OFFER, FORMAT, chain))
    for _ in range(chance.draw(st.integers(1, 4))):
        at = chance.draw(st.integers(0, len(sent) - 1))
        sent[at] = chance.draw(st.integers(0, 255))
    try:
        head = frames.parse_head(bytes(sent[: frames.HEAD_BYTES]))
        found = frames.parse_names(head, bytes(sent[frames.HEAD_BYTES :]))
    except BadFrame:
        return
    assert len(found) == head.count <= frames.OFFER_NAMES
    assert all(frames.nameable(each) for each in found)


@given(st.binary(min_size=frames.HEAD_BYTES, max_size=frames.HEAD_BYTES))
def test_a_head_is_bounded_or_refused(garbage):
    for head_bytes in (garbage, frames.MAGIC + garbage[8:], frames.MAGIC + b"\1" + garbage[9:]):
        try:
            head = frames.parse_head(head_bytes)
        except BadFrame:
            continue
        assert 0 < head.count <= frames.OFFER_NAMES
        most_bytes = frames.OFFER_NAMES * 50 + frames.TENANTS * (2 + frames.TENANT_BYTES)
        assert head.names_bytes <= most_bytes
