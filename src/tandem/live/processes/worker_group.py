"""Puts a worker together: one rank in this process, or the first of several that it leads."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

import msgspec

from tandem.cluster.node.driver import KvTransferPort
from tandem.cluster.worker.machine import WorkerConfig
from tandem.config.processes import WorkerSetup
from tandem.facts.errors import EngineFailed
from tandem.facts.kv import Endpoint, KvExport
from tandem.facts.steps import StepResult
from tandem.kernels.collectives.contract import ALONE
from tandem.kernels.collectives.distributed import Groups, connect, disconnect
from tandem.kv.transfer.config import TransferCalls, TransferEvent
from tandem.live.clock import now_ns
from tandem.live.driver import Inbox
from tandem.live.engine_thread import EngineThread
from tandem.live.node import Steps
from tandem.live.processes.follower import FOLLOWER_COMMAND, PATIENCE_S, FollowerSetup
from tandem.live.processes.lifecycle import end_within
from tandem.live.processes.worker_rank import (
    PlannedWorker,
    Rank,
    load_rank,
    plan_worker,
    threads_of_rank,
    world_of,
)
from tandem.live.processes.worker_tiers import WorkerTiers, make_tiers
from tandem.live.ranks.engine import PipelineThread, TensorEngine
from tandem.live.ranks.ranks import Follower, RankLost, Ranks, meeting_place, start_follower
from tandem.live.ranks.transfers import RankedTransferEngine, RankTally
from tandem.messages.node import BlocksExported, MoveFinished
from tandem.messages.ranks import RankReady, ToLeader

logger = logging.getLogger(__name__)

Endpoints = tuple[Endpoint, ...]
OnResult = Callable[[StepResult], None]
# So long the ranks may take to load, and to end.
LOADING_S = 1800.0
SHUTDOWN_S = 2.0
# When a rank is lost before all are ready, the process has so long to end by itself.
START_SHUTDOWN_S = 2.0


class RankMessages:
    """Brings what the other ranks of a worker of `ranks` report to where it belongs in the leader.
    `tally` also counts what the leader's own transfer engine answers; `pipeline` gets the tokens,
    where it is the last stage that draws them."""

    def __init__(self, ranks: int, inbox: Inbox) -> None:
        self.pipeline: PipelineThread | None = None
        self.tally = RankTally(ranks, inbox.enqueue_threadsafe)
        self._followers = ranks - 1
        self._all_ready = False
        self._inbox = inbox
        self._ready: SimpleQueue[tuple[int, Endpoints] | Exception] = SimpleQueue()

    def receive(self, rank: int, message: ToLeader) -> None:
        """From any thread."""
        match message:
            case RankReady(endpoints):
                self._ready.put((rank, endpoints))
            case StepResult():
                assert self.pipeline is not None
                self.pipeline.land(message)
            case MoveFinished() | BlocksExported():
                self.tally.rank_ended(message)

    def lost(self, failure: Exception) -> None:
        """The worker cannot go on; from any thread."""
        if not self._all_ready:
            logger.error("the worker cannot start: %s", failure)
            # The leader may just wait for the lost rank where nothing can wake it.
            end_within(START_SHUTDOWN_S, 1)
        self._ready.put(failure)
        self._inbox.fail(EngineFailed(str(failure)))

    def wait_for_all(self, timeout_s: float) -> dict[int, Endpoints]:
        """Until every follower is ready: the ways to their memory. Raises `RankLost`."""
        found: dict[int, Endpoints] = {}
        while len(found) < self._followers:
            try:
                ready = self._ready.get(timeout=timeout_s)
            except Empty as empty:
                raise RankLost(f"not all ranks were ready after {timeout_s:g} s") from empty
            if isinstance(ready, Exception):
                raise RankLost(str(ready)) from ready
            rank, endpoints = ready
            found[rank] = endpoints
        self._all_ready = True
        return found


@dataclass(frozen=True, slots=True)
class SoleWorker:
    """A loaded worker, all in this process. `export` describes how its KV can be read."""

    config: WorkerConfig
    export: KvExport
    rank: Rank
    tiers: WorkerTiers | None
    inbox: Inbox

    @property
    def transfers(self) -> KvTransferPort:
        return self.rank.transfers

    def steps(self, on_result: OnResult) -> Steps:
        """The thread that runs plans; what fails in it fails the inbox. Call it once."""
        return EngineThread(self.rank.engine, on_result, failing(self.inbox))

    def close(self) -> None:
        if self.tiers is not None:
            self.tiers.engine.stop_tiers()
        self.rank.close()


@dataclass(frozen=True, slots=True)
class LeadingWorker:
    """A loaded worker: the first rank in this process, each of the others in one of its own."""

    config: WorkerConfig
    export: KvExport
    rank: Rank
    ranks: Ranks
    messages: RankMessages
    inbox: Inbox

    @property
    def transfers(self) -> KvTransferPort:
        return RankedTransferEngine(self.rank.transfers, self.ranks)

    @property
    def tiers(self) -> None:
        return None

    def steps(self, on_result: OnResult) -> Steps:
        """As of `SoleWorker`."""
        engine, place, failed = self.rank.engine, self.rank.place, failing(self.inbox)
        if place.is_last:
            return EngineThread(TensorEngine(engine, self.ranks), on_result, failed)
        earlier = range(1, place.tensor_ranks * (place.stages - 1))
        self.messages.pipeline = PipelineThread(
            engine, self.ranks, earlier=earlier, on_result=on_result, on_failure=failed
        )
        return self.messages.pipeline

    def close(self) -> None:
        self.ranks.close(SHUTDOWN_S)
        self.rank.close()
        disconnect()


Worker = SoleWorker | LeadingWorker


def start_worker(setup: WorkerSetup, inbox: Inbox, agent: str) -> Worker:
    """Load everything, in this process and in those of the other ranks. `agent` is a name that no
    other process has. Raises `InvalidConfiguration`, or `RankLost` when a rank cannot start."""
    planned = plan_worker(setup)
    for cut in planned.model.plan.cuts:
        logger.warning("worker %s: %s", setup.worker, cut)
    if len(planned.places) > 1:
        return _lead(planned, inbox, agent)
    calls = _transfer_calls(inbox, inbox.enqueue_threadsafe)
    rank = load_rank(planned, planned.places[0], Groups(ALONE, ALONE), calls, agent=agent)
    export = _with_endpoints(planned.export, {0: rank.transfers.endpoints()})
    tiers = make_tiers(planned, rank.store, inbox)
    config = replace(planned.model.plan.worker, reports_committed=tiers is not None)
    return SoleWorker(config, export, rank, tiers, inbox)


def failing(inbox: Inbox) -> Callable[[Exception], None]:
    """For a thread without which the worker cannot go on."""
    return lambda failure: inbox.fail(
        EngineFailed(f"the engine failed: {type(failure).__name__}: {failure}")
    )


def _transfer_calls(inbox: Inbox, answered: Callable[[TransferEvent], None]) -> TransferCalls:
    failure = EngineFailed("the KV transfers failed")
    return TransferCalls(answered, lambda: inbox.fail(failure), now_ns)


def _lead(planned: PlannedWorker, inbox: Inbox, agent: str) -> LeadingWorker:
    meeting = meeting_place()
    messages = RankMessages(len(planned.places), inbox)
    calls = _transfer_calls(inbox, messages.tally.rank_ended)
    with ExitStack() as undo:
        ranks = Ranks(
            _start_followers(planned, agent, meeting),
            planned.setup.cluster.health.heartbeat_timeout_s,
        )
        undo.callback(ranks.close, 0.0)
        ranks.listen(messages.receive, messages.lost)
        groups = connect(world_of(planned, 0, meeting))
        rank = load_rank(planned, planned.places[0], groups, calls, agent=agent)
        endpoints = {0: rank.transfers.endpoints(), **messages.wait_for_all(LOADING_S)}
        ranks.watch()
        undo.pop_all()
    config = replace(
        planned.model.plan.worker, pipeline_stages=planned.setup.pool_config.pipeline_parallel
    )
    return LeadingWorker(
        config, _with_endpoints(planned.export, endpoints), rank, ranks, messages, inbox
    )


def _start_followers(planned: PlannedWorker, agent: str, meeting: str) -> dict[int, Follower]:
    """All at once: they load while this process does."""
    followers = {
        place.rank: start_follower(FOLLOWER_COMMAND, PATIENCE_S) for place in planned.places[1:]
    }
    for rank, follower in followers.items():
        setup = FollowerSetup(
            worker=_with_sizes(planned),
            rank=rank,
            agent=agent,
            meeting_place=meeting,
            identity=planned.export.identity,
            blocks=planned.export.block_count,
        )
        follower.begin(msgspec.json.encode(setup))
    return followers


def _with_sizes(planned: PlannedWorker) -> WorkerSetup:
    """The setup with every size that the leader chose by looking at the machine: the others would
    see less memory by now."""
    options = msgspec.structs.replace(
        planned.setup.options,
        device=planned.model.plan.device.type,
        threads=threads_of_rank(planned),
        kv_cache_memory=str(planned.model.plan.kv_bytes),
        max_model_len=planned.model.plan.worker.context_tokens,
    )
    return msgspec.structs.replace(planned.setup, options=options)


def _with_endpoints(export: KvExport, endpoints: dict[int, tuple[Endpoint, ...]]) -> KvExport:
    shards = (replace(shard, endpoints=endpoints[shard.rank]) for shard in export.shards)
    return replace(export, shards=tuple(shards))
