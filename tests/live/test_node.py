"""The shell of a worker process, in this process: who ends it, and how."""

import asyncio
import threading

import pytest

from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.facts.errors import EngineFailed
from tandem.facts.request import Request
from tandem.live.driver import Inbox
from tandem.live.engine_thread import EngineThread
from tandem.live.node import Node
from tandem.live.processes.worker_group import failing
from tandem.live.ranks.transfers import NullTransfer
from tandem.messages.cluster import (
    Deregister,
    NotNeeded,
    Register,
    Registered,
    RoleStateReported,
    ToGateway,
)
from tandem.messages.node import GatewayConnected, LeaveRequested, MessageFromGateway
from tandem.messages.router import TokensReported
from tandem.messages.worker import RequestsArrived
from tests.cluster.ledger_engine import answer
from tests.live.toy_cluster import (
    CONTEXT_TOKENS,
    GatedLedger,
    registration,
    request,
    worker_machine,
)

GATEWAY = "tcp://gateway"
TERMS = Registered("g", 10_000_000, 60_000_000_000, 60_000_000_000)


class Gateway:
    """A channel whose other end registers the worker, asks one thing, and lets it go."""

    def __init__(self, inbox: Inbox, request: Request | None = None) -> None:
        self.inbox = inbox
        self.request = request
        self.received: list[ToGateway] = []

    def open(self) -> None:
        self.inbox.enqueue(GatewayConnected(GATEWAY))

    def send(self, message: ToGateway) -> None:
        self.received.append(message)
        if isinstance(message, Register):
            self.inbox.enqueue(MessageFromGateway(GATEWAY, TERMS))
            if self.request:
                self.inbox.enqueue(MessageFromGateway(GATEWAY, RequestsArrived((self.request,))))
        if isinstance(message, TokensReported) and message.emission.finish_reasons[-1]:
            self.inbox.enqueue(LeaveRequested())
        if isinstance(message, RoleStateReported) and not message.accepting:
            self.inbox.enqueue(MessageFromGateway(GATEWAY, NotNeeded()))

    async def close(self, linger_s: float) -> None:
        """Nothing is open."""


async def serve(engine: GatedLedger, inbox: Inbox, channels: dict[str, Gateway]) -> str:
    transfers = NullTransfer("no memory", lambda _: None)
    machine = NodeMachine(NodeConfig(registration("w")), worker_machine())
    node = Node(machine, inbox, transfers)
    steps = EngineThread(engine, node.take_result, failing(inbox))
    try:
        async with asyncio.timeout(30):
            return (await node.run(steps, channels)).reason
    finally:
        steps.stop(5.0)


def open_engine() -> GatedLedger:
    engine = GatedLedger()
    engine.gate.set()
    return engine


def test_it_serves_then_deregisters_and_leaves():
    inbox = Inbox()
    asked = request("a", max_tokens=9, seed=4)
    gateway = Gateway(inbox, asked)
    assert asyncio.run(serve(open_engine(), inbox, {GATEWAY: gateway})) == ""
    reports = [m for m in gateway.received if isinstance(m, TokensReported)]
    tokens = [token for report in reports for token in report.emission.tokens]
    assert tokens == answer(asked.prompt_tokens, asked.sampling, CONTEXT_TOKENS)
    assert isinstance(gateway.received[-1], Deregister)


def test_without_a_gateway_it_leaves_at_once():
    inbox = Inbox()
    threading.Thread(target=inbox.enqueue_threadsafe, args=(LeaveRequested(),)).start()
    assert asyncio.run(serve(open_engine(), inbox, {})) == ""


def test_a_dead_engine_ends_it():
    inbox, engine = Inbox(), open_engine()
    engine.broken = True
    gateway = Gateway(inbox, request("a", max_tokens=9))
    with pytest.raises(EngineFailed, match="out of memory"):
        asyncio.run(serve(engine, inbox, {GATEWAY: gateway}))


def test_a_part_that_failed_before_the_start_is_not_forgotten():
    inbox = Inbox()
    inbox.fail(EngineFailed("first"))
    inbox.fail(EngineFailed("second"))
    with pytest.raises(EngineFailed, match="first"):
        asyncio.run(serve(open_engine(), inbox, {}))


def test_events_from_threads_keep_their_order_and_none_is_lost():
    inbox = Inbox()
    total = 2000

    def enqueue(thread: int) -> None:
        for number in range(total):
            inbox.enqueue_threadsafe(GatewayConnected(f"{thread} {number}"))

    async def read() -> list[str]:
        threads = [threading.Thread(target=enqueue, args=(index,)) for index in range(3)]
        threads[0].start()
        inbox.open(asyncio.get_running_loop())
        for thread in threads[1:]:
            thread.start()
        seen: list[str] = []
        async with asyncio.timeout(30):
            while len(seen) < 3 * total:
                seen += [event.gateway for event in await inbox.next_events()]
        for thread in threads:
            thread.join()
        return seen

    seen = asyncio.run(read())
    for thread in range(3):
        numbers = [int(name.split()[1]) for name in seen if name.split()[0] == str(thread)]
        assert numbers == list(range(total))
