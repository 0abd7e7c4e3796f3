"""A worker process of a cluster: loads, finds its gateways, works until it has to leave."""

import gc

if __name__ == "__main__":
    # torch makes a million objects that live as long as the process: a fifth of the time that its
    # import takes would go into looking for garbage among them.
    gc.disable()

import os
import sys
from pathlib import Path

import tandem
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.worker.machine import WorkerMachine
from tandem.config.processes import WorkerSetup, read_setup
from tandem.facts.fleet import Role
from tandem.live.clock import now_ns
from tandem.live.driver import Inbox
from tandem.live.node import Node
from tandem.live.processes.adapter_loading import AdapterLoading
from tandem.live.processes.lifecycle import (
    StartUp,
    end_as,
    end_with_parent,
    log_of_process,
    loop_runner,
    run_to_the_end,
)
from tandem.live.processes.member import LINGER_S, run_member
from tandem.live.processes.worker_group import Worker, start_worker
from tandem.messages.cluster import PROTOCOL, Register
from tandem.messages.node import Leave


def run_worker(setup: WorkerSetup) -> None:
    """Until the worker has to leave and has nothing left to do. Raises `SystemExit` as
    `end_as`."""
    end_with_parent(setup.parent)
    log_of_process(setup.options, setup.worker)
    end_as(f"worker {setup.worker}", lambda: _run(setup))


def _run(setup: WorkerSetup) -> Leave:
    startup = StartUp(setup.worker)
    startup.so_far("import")
    inbox = Inbox()
    incarnation = f"{os.getpid():x}-{now_ns():x}"
    worker = start_worker(setup, inbox, f"{setup.worker}/{incarnation}")
    machine = _machine(setup, worker, incarnation)
    adapters = worker.rank.adapters
    memory = adapters.memory if adapters is not None and setup.options.enable_lora else None
    node = Node(machine, inbox, worker.transfers, worker.tiers, memory)
    startup.ready()
    try:
        with loop_runner() as runner:
            return runner.run(_work(setup, node, worker, inbox))
    finally:
        worker.close()


async def _work(setup: WorkerSetup, node: Node, worker: Worker, inbox: Inbox) -> Leave:
    steps = worker.steps(node.take_result)
    adapters = worker.rank.adapters
    loading = None if adapters is None else AdapterLoading(inbox, adapters)
    if loading is not None:
        loading.start_loading()
    try:
        return await run_member(
            setup,
            node.machine.registration,
            loading or inbox,
            lambda channels: node.run(steps, channels),
        )
    finally:
        if loading is not None:
            loading.stop_loading()
        # The steps in flight may end.
        steps.stop(LINGER_S)


def _machine(setup: WorkerSetup, worker: Worker, incarnation: str) -> NodeMachine:
    config = worker.config
    register = Register(
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
    return NodeMachine(NodeConfig(register, tiers), WorkerMachine(config))


def main() -> None:
    """What a launcher starts as `python -m`; the last word names the file with the set-up."""
    run_worker(read_setup(WorkerSetup, Path(sys.argv[-1])))


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    run_to_the_end(main)
