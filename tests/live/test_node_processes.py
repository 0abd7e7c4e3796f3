"""Worker processes as a cluster starts them: real engines, real sockets, real memory, real ends.

What they answer is what one process without a cluster answers, to the last token.
"""

import asyncio
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tandem.config.cluster.file import Cluster as FileCluster
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.channels.keys import make_pair
from tandem.live.clock import now_ns
from tandem.live.processes.model import plan_model
from tandem.live.processes.server import assemble, running
from tandem.policy.dispatch.contract import Transfer
from tests.config.clusters import cluster_of_one
from tests.live.ends import KEYS, PATIENCE_S
from tests.live.gateway_side import (
    HEALTH,
    OPTIONS,
    Alive,
    GatewaySide,
    LoopThread,
    Workers,
    gateway_config,
    ranks_of,
)
from tests.live.toy_cluster import until


def a_request(name: str, tokens: int, length: int = 24, **sampling) -> Request:
    prompt = tuple(7 + (index * 31 + len(name) * 17 + tokens) % 900 for index in range(tokens))
    return Request(name, prompt, SamplingParameters(**{"max_tokens": length, **sampling}))


GREEDY = [a_request(f"greedy-{n}", n, temperature=0.0) for n in (3, 16, 40, 150)]
SAMPLED = [
    a_request(f"sampled-{n}", n, temperature=0.9, top_p=0.95, seed=n) for n in (5, 33, 64, 200)
]
QUESTIONS = GREEDY + SAMPLED


@pytest.fixture(scope="module")
def answers() -> dict[str, list[int]]:
    """What one process answers."""

    async def ask_all() -> dict[str, list[int]]:
        server = assemble(None, OPTIONS)

        async def ask(request: Request) -> list[int]:
            return [token async for out in server.worker.generate(request) for token in out.tokens]

        async with running(server):
            found = await asyncio.gather(*(ask(request) for request in QUESTIONS))
        return {request.request_id: got for request, got in zip(QUESTIONS, found, strict=True)}

    return asyncio.run(ask_all())


@pytest.fixture(scope="module")
def loop():
    thread = LoopThread()
    yield thread
    thread.close()


class Cluster:
    """`side` may be opened anew, at the same endpoint."""

    def __init__(self, loop: LoopThread, folder: Path) -> None:
        self.loop = loop
        self.side, self.endpoint = loop.run(self._open("tcp://127.0.0.1:0"))
        self.workers = Workers(folder, self.endpoint)

    def restart_gateway(self) -> None:
        self.loop.run(self.side.stop())
        self.side, _ = self.loop.run(self._open(self.endpoint))

    async def _open(self, listen: str) -> tuple[GatewaySide, str]:
        root = plan_model(None, OPTIONS).plan.worker.root
        side = GatewaySide(gateway_config(root, Transfer.PUSH))
        return side, await side.open(listen)


def over(connector: str) -> FileCluster:
    return cluster_of_one(health=HEALTH, connectors=(connector,))


@pytest.fixture(scope="module")
def cluster(loop, tmp_path_factory, request):
    cluster = Cluster(loop, tmp_path_factory.mktemp("workers"))
    cluster.workers.start("p0", "prefill")
    cluster.workers.start("d0", "decode", cluster=over("shm"))
    cluster.workers.start("d1", "decode", cluster=over("tcp"))
    loop.run(cluster.side.members("p0", "d0", "d1"))
    yield cluster
    cluster.workers.kill_all()
    loop.run(cluster.side.stop())
    if request.session.testsfailed:
        cluster.workers.print_logs()


async def ask_all(side: GatewaySide, attempt: str = "") -> dict[str, list[int]]:
    """All questions at once; an answer may be asked for again under another `attempt`, which finds
    nothing cached."""
    asked = [
        replace(request, request_id=request.request_id + attempt, cache_salt=attempt)
        for request in QUESTIONS
    ]
    got = await asyncio.gather(*(side.ask(request) for request in asked))
    return {r.request_id: tokens for r, tokens in zip(QUESTIONS, got, strict=True)}


def test_prefill_here_and_decode_there_gives_the_same(cluster, loop, answers):
    side = cluster.side
    assert loop.run(ask_all(side)) == answers
    by_name = {worker.worker: worker for worker in side.status().workers}
    for name, connector in (("d0", "shm"), ("d1", "tcp")):
        worker = by_name[name]
        assert worker.transfers > 0
        assert worker.failed_transfers == 0
        assert worker.moved_bytes > 0
        assert worker.connectors == (connector,)


async def only(side: GatewaySide, *names: str) -> None:
    """No others take requests."""
    for worker in side.status().workers:
        if worker.accepting and worker.worker not in names:
            await side.drain(worker.worker)


def test_several_ranks_give_the_same_in_both_roles(cluster, loop, answers):
    """One worker is cut by heads, one by layers, so that KV moves from two shards that lie side by
    side into two that lie one after the other; then the two change their roles, and KV of one rank
    moves into two as well."""
    side, workers = cluster.side, cluster.workers
    heads = cluster_of_one(health=HEALTH, tensor_parallel=2)
    layers = cluster_of_one(health=HEALTH, pipeline_parallel=2)
    workers.start("heads", "prefill", cluster=heads)
    workers.start("layers", "decode", cluster=layers)
    loop.run(side.members("p0", "d0", "d1", "heads", "layers"))
    loop.run(only(side, "heads", "layers"))
    assert loop.run(ask_all(side, "/ranks")) == answers
    assert not side.failed_moves
    by_name = {worker.worker: worker for worker in side.status().workers}
    assert by_name["layers"].transfers >= len(QUESTIONS)
    assert by_name["layers"].failed_transfers == 0
    assert by_name["heads"].prompts == len(QUESTIONS)
    for name in ("p0", "d0"):
        loop.run(side.undrain(name))
    loop.run(side.drain("heads", then_role=Role.DECODE))
    loop.run(side.drain("layers", then_role=Role.PREFILL))
    loop.run(only(side, "p0", "heads"))
    assert loop.run(ask_all(side, "/one-to-two")) == answers
    loop.run(side.undrain("layers"))
    loop.run(only(side, "heads", "layers"))
    assert loop.run(ask_all(side, "/flipped")) == answers
    by_name = {worker.worker: worker for worker in side.status().workers}
    assert by_name["layers"].prompts == len(QUESTIONS)
    assert by_name["heads"].transfers >= 2 * len(QUESTIONS)
    assert by_name["heads"].failed_transfers == 0


def test_nothing_is_left_behind(cluster, loop):
    audit = loop.run(cluster.side.audit())
    assert audit.problem == ""
    assert len(audit.workers) == len(cluster.side.status().workers)
    for worker in audit.workers:
        held = (worker.owned_blocks, worker.held, worker.leases, worker.moves, worker.importing)
        assert (worker.problem, *held) == ("", 0, 0, 0, 0, 0)


def test_workers_come_back_to_a_gateway_that_starts_anew(cluster, loop, answers):
    cluster.restart_gateway()
    side = cluster.side
    loop.run(side.members("p0", "d0", "d1", "heads", "layers"))
    roles = {w.worker: (w.role, w.accepting) for w in side.status().workers}
    assert roles["heads"] == (Role.DECODE, True)
    assert roles["p0"] == (Role.PREFILL, False)
    assert loop.run(ask_all(side, "/anew")) == answers


def test_one_dead_rank_ends_its_worker_and_others_take_over(cluster, loop, answers):
    side, process = cluster.side, cluster.workers.processes["heads"]
    loop.run(side.undrain("d0"))
    loop.run(side.undrain("p0"))
    (rank,) = ranks_of(process.pid)

    async def kill_meanwhile() -> dict[str, list[int]]:
        asking = asyncio.ensure_future(ask_all(side, "/rank"))
        await until(lambda: side.status().running_requests)
        os.kill(rank, signal.SIGKILL)
        return await asking

    assert loop.run(kill_meanwhile()) == answers
    assert process.wait(PATIENCE_S) == 1
    loop.run(side.members("p0", "d0", "d1", "layers"))


def test_no_rank_outlives_its_worker(cluster, loop):
    process = cluster.workers.processes["layers"]
    ranks = [Alive(rank) for rank in ranks_of(process.pid)]
    process.kill()
    for rank in ranks:
        rank.wait_for_end()
    loop.run(cluster.side.members("p0", "d0", "d1"))


def test_a_killed_worker_costs_no_request(cluster, loop, answers):
    side, process = cluster.side, cluster.workers.processes["d0"]
    loop.run(side.undrain("d1"))

    async def kill_meanwhile() -> dict[str, list[int]]:
        asking = asyncio.ensure_future(ask_all(side, "/killed"))
        await until(lambda: side.status().running_requests)
        process.kill()
        return await asking

    assert loop.run(kill_meanwhile()) == answers
    loop.run(side.members("p0", "d1"))


def test_a_worker_that_is_to_end_finishes_its_work_first(cluster, loop, answers):
    side, process = cluster.side, cluster.workers.processes["d1"]

    async def end_meanwhile() -> dict[str, list[int]]:
        asking = asyncio.ensure_future(ask_all(side, "/ending"))
        await until(lambda: side.status().running_requests)
        process.send_signal(signal.SIGTERM)
        return await asking

    assert loop.run(end_meanwhile()) == answers
    assert process.wait(PATIENCE_S) == 0
    loop.run(side.members("p0"))


def test_a_stranger_is_not_let_in_and_ends(cluster, loop):
    strangers = make_pair()
    keys = msgspec.structs.replace(
        KEYS, worker_public=strangers.public, worker_secret=strangers.secret
    )
    process = cluster.workers.start("stranger", "both", keys=keys)
    assert process.wait(PATIENCE_S) == 1
    assert "refuses this key" in cluster.workers.log("stranger").read_text()
    assert [worker.worker for worker in cluster.side.status().workers] == ["p0"]


def test_a_worker_whose_rank_dies_early_ends_soon(cluster):
    split = cluster_of_one(health=HEALTH, tensor_parallel=2)
    process = cluster.workers.start("early", "both", cluster=split)
    deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
    while not (ranks := ranks_of(process.pid)):
        assert now_ns() < deadline_ns
        assert process.poll() is None
    os.kill(ranks[0], signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 1
    assert "a rank" in cluster.workers.log("early").read_text()
    assert not list(Path(tempfile.gettempdir()).glob("tandem-ranks-*"))
