"""A worker process of a cluster: loads, finds its gateways, works until it is told to leave."""

import asyncio
import logging
import os
import signal
from functools import partial

import uvloop

import tandem
from tandem.commands.cluster.process_log import log_of_process
from tandem.commands.cluster.worker_group import Worker, start_worker
from tandem.config.processes import WorkerSetup
from tandem.facts.cluster_messages import PROTOCOL, Hello
from tandem.facts.errors import EngineFailed, InvalidConfiguration, TandemError
from tandem.facts.fleet import Role
from tandem.facts.node_messages import LeaveRequested
from tandem.live.channels.inbox import Inbox
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import NodeKeys
from tandem.live.clock import now_ns
from tandem.live.launching.parent import end_with_parent
from tandem.live.launching.restarts import AGAIN
from tandem.live.node import Node, say_goodbye
from tandem.live.process_end import end_within
from tandem.live.startup import StartUp
from tandem.machines.node.machine import NodeConfig, NodeMachine
from tandem.machines.worker import WorkerMachine
from tandem.wire.curve import KeyPair

logger = logging.getLogger(__name__)

# Exit codes beside 0 and `AGAIN`, which are what was wanted. A new start may cure the first only.
FAILED = 1
MISCONFIGURED = 2
UNWELCOME = 3
# When the worker ends, what it said last may take so long to leave, and everything so long.
LAST_WORD_S = 2.0
FAREWELL_S = 10.0


def run_worker(setup: WorkerSetup) -> None:
    """Until the worker was told to leave and has nothing left to do. Raises `SystemExit` with one
    of the codes above when it ends otherwise."""
    end_with_parent(setup.parent)
    log_of_process(setup.options.log_level)
    try:
        reason, again = _run(setup)
    except InvalidConfiguration as error:
        logger.error("worker %s cannot start: %s", setup.worker, error)
        raise SystemExit(MISCONFIGURED) from error
    except TandemError as error:
        logger.error("worker %s failed: %s", setup.worker, error)
        raise SystemExit(FAILED) from error
    if reason:
        logger.error("worker %s ends: %s", setup.worker, reason)
        raise SystemExit(UNWELCOME)
    logger.info("worker %s has left", setup.worker)
    if again:
        raise SystemExit(AGAIN)


def _run(setup: WorkerSetup) -> tuple[str, bool]:
    startup = StartUp(setup.worker)
    startup.so_far("import")
    inbox = Inbox()
    incarnation = f"{os.getpid():x}-{now_ns():x}"
    worker = start_worker(setup, inbox, f"{setup.worker}/{incarnation}")
    tiers = worker.tiers.live if worker.tiers else None
    node = Node(_machine(setup, worker, incarnation), inbox, worker.mover, tiers)
    startup.ready()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_work(setup, node, worker, inbox)), node.again
    finally:
        worker.close()


async def _work(setup: WorkerSetup, node: Node, worker: Worker, inbox: Inbox) -> str:
    _heed_signals(inbox)
    steps = worker.steps(node.take_result)
    channels = _channels(setup, node.machine.hello, inbox)
    code = FAILED
    try:
        reason = await node.run(steps, channels)
        code = UNWELCOME if reason else AGAIN * node.again
        return reason
    finally:
        end_within(FAREWELL_S, code)
        await say_goodbye(steps, channels, LAST_WORD_S)


def _channels(setup: WorkerSetup, hello: Hello, inbox: Inbox) -> dict[str, NodeChannel]:
    own = KeyPair(setup.keys.worker_public, setup.keys.worker_secret)
    return {
        gateway: NodeChannel(
            gateway,
            f"{hello.worker}/{hello.incarnation}",
            NodeKeys(own, setup.keys.gateway_public),
            tell=inbox.put,
            refused=lambda reason: inbox.fail(EngineFailed(reason)),
        )
        for gateway in setup.gateways
    }


def _machine(setup: WorkerSetup, worker: Worker, incarnation: str) -> NodeMachine:
    config = worker.config
    hello = Hello(
        protocol=PROTOCOL,
        version=tandem.__version__,
        worker=setup.worker,
        incarnation=incarnation,
        pool=setup.pool,
        role=Role(setup.role),
        accepting=True,
        root=config.root,
        export=worker.export,
        max_sequences=config.max_sequences,
        context_tokens=config.context_tokens,
    )
    tiers = worker.tiers.config if worker.tiers else None
    return NodeMachine(NodeConfig(hello, tiers), WorkerMachine(config))


def _heed_signals(inbox: Inbox) -> None:
    """The first signal asks the worker to leave orderly; a second one ends the process."""
    loop = asyncio.get_running_loop()
    told: list[int] = []

    def heed(number: int) -> None:
        if told:
            os._exit(128 + number)
        told.append(number)
        inbox.put(LeaveRequested())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, partial(heed, number))
