"""A cluster on one event loop: a gateway and toy workers over real sockets. All parts are real but
the model and the copying of its KV."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, KvGeometry, MoveKv, MoveReport
from tandem.facts.rate_limits import LimitTerms
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ANYBODY, Caller, Generator, ModelCard
from tandem.facts.steps import StepPlan, StepResult
from tandem.facts.tracing import SpanSink
from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import ChannelLimits
from tandem.live.driver import Inbox
from tandem.live.engine_thread import EngineThread
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.local_worker import LocalWorker
from tandem.live.node import Node
from tandem.messages.cluster import PROTOCOL, Register, Registered
from tandem.messages.node import BlocksExported, Leave, MoveFinished
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.routing.policies import make_routing
from tests.cluster.ledger_engine import VOCABULARY, LedgerEngine
from tests.live.ends import GATEWAY_KEYS, NODE_KEYS, PATIENCE_S

BLOCK_SIZE, BLOCKS, SEQUENCES, CONTEXT_TOKENS = 4, 256, 4, 200
MODEL, REVISION = "toy", "r"
ROOT = CacheRoot(MODEL, REVISION, b"toy")
EXPORT = KvExport(
    MODEL,
    REVISION,
    KvGeometry(1, 1, 1, BLOCK_SIZE, "float32"),
    BLOCKS,
    (),
    identity=ROOT.identity,
)
TERMS = Registered("g0", 20_000_000, 2_000_000_000, 4_000_000_000)
COST = WorkerCost(
    FittedStepTime(fixed_s=0.01, token_s=1e-3),
    kv_bytes_per_token=1.0,
    chunk_tokens=32,
    network=LinkCost(1e9),
)


def gateway_config(
    root: CacheRoot = ROOT,
    terms: Registered = TERMS,
    *,
    block_size: int = BLOCK_SIZE,
    transfer: Transfer = Transfer.PUSH,
    served: tuple[str, str] = (MODEL, REVISION),
) -> GatewayConfig:
    router = RouterConfig(
        block_size=block_size,
        root=root,
        capacities={},
        routing=make_routing("round-robin", 0),
        admission=ADMISSIONS["none"](),
        dispatching=DISPATCHES["remote"](transfer=transfer),
    )
    return GatewayConfig("g0", router, capacity_of, terms, *served)


def capacity_of(register: Register) -> Capacity:
    export = register.export
    return Capacity(COST, export.geometry.block_size, export.block_count, register.max_sequences)


def make_gateway(
    planning: PlanningConfig | None = None,
    root: CacheRoot = ROOT,
    spans: SpanSink | None = None,
    of_cluster: Registered = TERMS,
    gateways: int = 1,
    **terms,
) -> Gateway:
    card = ModelCard(("toy",), 10_000, VOCABULARY, (), 0)
    config = replace(
        gateway_config(root, of_cluster),
        gateway=of_cluster.gateway,
        planning=planning,
        limits=LimitTerms(gateways=gateways),
    )
    router = replace(config.router, explains=terms.get("explain_bytes", 0) > 0)
    machine = GatewayMachine(replace(config, router=router))
    return Gateway(card, machine, GatewayTerms(**({"incarnation": "i"} | terms)), spans=spans)


@asynccontextmanager
async def serving(gateway: Gateway, listen: str = "tcp://127.0.0.1:0"):
    """The gateway runs while the block does; gives its endpoint."""
    channel = GatewayChannel(listen, GATEWAY_KEYS, gateway.enqueue)
    endpoint = channel.open()
    await gateway.start(channel)
    try:
        yield endpoint
    finally:
        await gateway.stop()


@dataclass
class Landed:
    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


@dataclass
class GatedLedger:
    """A ledger engine whose steps wait for `gate`; `broken` makes the next step raise."""

    asynchronous: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    ledger: LedgerEngine = field(
        default_factory=lambda: LedgerEngine(BLOCK_SIZE, BLOCKS, SEQUENCES)
    )

    def adopt_thread(self) -> None:
        pass

    def launch(self, plan: StepPlan) -> Landed:
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise RuntimeError("out of memory")
        return Landed(self.ledger.run(plan))


class LedgerTransferEngine:
    """Copies KV from ledger to ledger, at once: what a KV transfer engine does, without its
    memory."""

    def __init__(self, inbox: Inbox, own: LedgerEngine, ledgers: dict[str, LedgerEngine]) -> None:
        self.peers: set[tuple[str, str]] = set()
        self._inbox, self._own, self._ledgers = inbox, own, ledgers

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        self.peers.add((worker, incarnation))

    def forget_source(self, worker: str, incarnation: str) -> None:
        self.peers.discard((worker, incarnation))

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        assert (order.source, order.incarnation) in self.peers
        first_token = order.first_token // BLOCK_SIZE * BLOCK_SIZE
        keys = self._ledgers[order.source].read(order.source_blocks, order.end_token - first_token)
        self._own.write(order.target_blocks, keys)
        report = MoveReport(True, "ledger", len(keys), len(order.source_blocks), 1e-3)
        self._inbox.enqueue(MoveFinished(move_id, report))

    def stop_transfer(self, move_id: int) -> None:
        pass

    def export_blocks(self, export_id, blocks, versions) -> None:
        self._inbox.enqueue(BlocksExported(export_id))


def worker_config(context_tokens: int = CONTEXT_TOKENS, **more) -> WorkerConfig:
    return WorkerConfig(
        block_size=BLOCK_SIZE,
        block_count=BLOCKS,
        context_tokens=context_tokens,
        vocabulary_tokens=VOCABULARY,
        max_sequences=SEQUENCES,
        batching=TokenBudgetBatching(32),
        root=ROOT,
        **more,
    )


def worker_machine(context_tokens: int = CONTEXT_TOKENS, max_waiting: int = 64) -> WorkerMachine:
    return WorkerMachine(worker_config(context_tokens, max_waiting=max_waiting))


def make_worker(
    engine: GatedLedger, max_waiting: int = 64, spans: SpanSink | None = None
) -> LocalWorker:
    """One in this process, without a cluster."""
    card = ModelCard(("toy",), CONTEXT_TOKENS, VOCABULARY, (), 0)
    return LocalWorker(card, worker_machine(max_waiting=max_waiting), engine, spans=spans)


def drained(worker: "LocalWorker | ToyWorker") -> bool:
    """Whether it has nothing to do and holds no block."""
    pool = worker.machine.sequences.pool
    return worker.machine.idle and pool.free_blocks == pool.block_count


def registration(
    name: str,
    role: Role = Role.BOTH,
    context_tokens: int = CONTEXT_TOKENS,
    export: KvExport = EXPORT,
) -> Register:
    return Register(
        PROTOCOL, "0", name, "a", "p", role, True, ROOT, export, SEQUENCES, context_tokens
    )


class ToyWorker:
    """Runs on the loop from `start` to `stop`; `die` ends it without a word."""

    def __init__(
        self,
        name: str,
        role: Role = Role.BOTH,
        ledgers: dict[str, LedgerEngine] | None = None,
        context_tokens: int = CONTEXT_TOKENS,
        export: KvExport = EXPORT,
    ) -> None:
        self.engine = GatedLedger()
        self.engine.gate.set()
        self.inbox = Inbox()
        ledgers = ledgers if ledgers is not None else {}
        ledgers[name] = self.engine.ledger
        self.registration = registration(name, role, context_tokens, export)
        self.machine = worker_machine(context_tokens)
        transfers = LedgerTransferEngine(self.inbox, self.engine.ledger, ledgers)
        self.node = Node(
            NodeMachine(NodeConfig(self.registration), self.machine), self.inbox, transfers
        )
        self.task: asyncio.Task[Leave] | None = None
        self._steps = EngineThread(self.engine, self.node.take_result, self.inbox.fail)
        self._channels: dict[str, NodeChannel] = {}

    def start(self, *endpoints: str) -> None:
        identity = f"{self.registration.worker}/{self.registration.incarnation}"
        self._channels = {
            endpoint: NodeChannel(
                endpoint,
                identity,
                NODE_KEYS,
                on_news=self.inbox.enqueue,
                refused=lambda reason: self.inbox.fail(RuntimeError(reason)),
                limits=ChannelLimits(reconnect_s=0.01, reconnect_most_s=0.05),
            )
            for endpoint in endpoints
        }
        self.task = asyncio.create_task(self.node.run(self._steps, self._channels))

    async def stop(self) -> None:
        """What its process does at its end."""
        assert self.task is not None
        self.engine.gate.set()
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled() and (failure := self.task.exception()):
            raise failure
        for channel in self._channels.values():
            await channel.close(0.5)
        await asyncio.to_thread(self._steps.stop, PATIENCE_S)

    @property
    def drained(self) -> bool:
        return drained(self)


@asynccontextmanager
async def working(*workers: ToyWorker, at: str | tuple[str, ...]):
    """They run while the block does, for one gateway or for several."""
    endpoints = (at,) if isinstance(at, str) else at
    for worker in workers:
        worker.start(*endpoints)
    try:
        yield
    finally:
        for worker in workers:
            await worker.stop()


def request(name: str, prompt=(1, 2, 3), **sampling) -> Request:
    return Request(name, tuple(prompt), SamplingParameters(**({"max_tokens": 8} | sampling)))


async def read(gateway: Generator, wanted: Request, caller: Caller = ANYBODY) -> list[int]:
    tokens: list[int] = []
    async for output in gateway.generate(wanted, caller):
        tokens += output.tokens
    assert output.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
    return tokens


async def until(condition: Callable[[], object]) -> None:
    """Give the loop turns until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)
