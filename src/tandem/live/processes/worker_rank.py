"""Loads one rank of a worker: its share of the weights, its KV memory, its engine and its KV
transfer engine."""

import logging
from dataclasses import dataclass, replace
from typing import Protocol, cast, get_args

import torch

from tandem.cluster.node.driver import KvTransferPort
from tandem.config.cluster.tiers import worker_tier_bytes
from tandem.config.environment import tokens_directory
from tandem.config.hardware.pools import pool_cost
from tandem.config.processes import WorkerSetup
from tandem.engine.adapters import AdapterCache
from tandem.engine.engine import Engine
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.facts.kv import Endpoint, KvExport, KvGeometry, KvShard
from tandem.kernels.collectives.contract import AllReduceWay
from tandem.kernels.collectives.distributed import Groups, World
from tandem.kernels.transfer import choose_transfer
from tandem.kv.layout import (
    encoded_copies,
    exported_bytes,
    is_wire_dtype,
    pool_layout,
    shard_layout,
)
from tandem.kv.region import SharedRegion
from tandem.kv.store import KvStore, exported_pool
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferMemory
from tandem.kv.transfer.engine import KvTransferEngine
from tandem.live.processes.connectors import make_connectors
from tandem.live.processes.dummy_engine import DummyEngine
from tandem.live.processes.lifecycle import StartUp
from tandem.live.processes.model import (
    PlannedModel,
    adapter_cache,
    load_model,
    plan_model,
)
from tandem.live.processes.speculation import proposer_maker
from tandem.live.ranks.engine import MeetingEngine, StageEngine
from tandem.live.ranks.transfers import NullTransfer
from tandem.models.parallel import Place, kv_share, places
from tandem.text.grammars import LlGuidanceGrammars
from tandem.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A rank that waits longer for another within a step gives up. Ranks that die or hang are noticed
# much sooner; this is for what nobody foresaw.
COLLECTIVE_PATIENCE_S = 600.0
# Of the KV pool, beyond what was ever used: what a long prompt needs of pages in one go.
WARM_AHEAD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """A worker whose sizes are fixed, over all its ranks. `export` has no endpoints yet."""

    setup: WorkerSetup
    model: PlannedModel
    places: tuple[Place, ...]
    export: KvExport


class RankTransferEngine(KvTransferPort, Protocol):
    """A transfer engine that belongs to one rank."""

    def endpoints(self) -> tuple[Endpoint, ...]: ...

    def stop_transfers(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, ready to compute and to move KV, whose blocks are in `store`. It owns `memory`,
    which is None on a GPU; `adapters` are None where nothing is computed."""

    place: Place
    engine: StageEngine
    transfers: RankTransferEngine
    store: KvStore
    memory: SharedRegion | None
    adapters: AdapterCache | None = None

    def close(self) -> None:
        self.transfers.stop_transfers()
        if self.memory:
            self.memory.release_region()


def plan_worker(setup: WorkerSetup, *, leads: bool = True) -> PlannedWorker:
    """Whoever `leads` looks whether all ranks fit into memory together. Raises
    `InvalidConfiguration`."""
    pool = setup.pool_config
    all_places = places(pool.tensor_parallel, pool.pipeline_parallel, pool.sequence_parallel)
    host_bytes = worker_tier_bytes(setup.cluster.tiers).get(Tier.HOST, 0) if leads else 0
    with StartUp(setup.worker).phase("model"):
        planned = plan_model(
            setup.model,
            setup.options,
            all_places if leads else (),
            host_tier_bytes=host_bytes,
        )
        model = _as_moved(planned, setup)
        if pool.engine == "dummy":
            # It guesses nothing, and nobody shall wait for that.
            worker = replace(model.plan.worker, speculation=None)
            model = replace(model, plan=replace(model.plan, worker=worker))
    layout, spec = model.plan.layout, model.spec
    if model.plan.device.type != "cpu" and len(all_places) > 1:
        raise InvalidConfiguration(
            "tensor_parallel and pipeline_parallel: the ranks of a worker run on CPUs in this "
            "version; set both to 1, or serve.device to cpu"
        )
    export = KvExport(
        model.name,
        setup.options.revision,
        KvGeometry(
            layout.layers, layout.kv_heads, layout.head_dim, layout.block_size, layout.dtype
        ),
        model.plan.worker.block_count,
        tuple(
            KvShard(place.rank, share.first_layer, share.layers, share.first_head, share.heads, ())
            for place in all_places
            for share in (kv_share(spec, place),)
        ),
        encoded_copies(layout.dtype, model.plan.worker.block_count, wire_dtype(setup)),
        model.plan.worker.root.identity,
    )
    return PlannedWorker(setup, model, all_places, export)


def _as_moved(model: PlannedModel, setup: WorkerSetup) -> PlannedModel:
    """KV that may have come from workers that store it otherwise, or in another precision on the
    way, is not what this worker computes itself: the identity names all that it may have been."""
    root = model.plan.worker.root
    precisions = {model.plan.layout.dtype, *setup.kv_precisions}
    if (moved := setup.cluster.transport.wire_dtype) is not None:
        precisions.add(moved)
    through = f"{root.arithmetic}, KV through {' '.join(sorted(precisions))}"
    if setup.pool_config.engine == "dummy":
        through += ", computed by nobody"
    return replace(model, plan=model.plan.of_model(root.model, through))


def world_of(planned: PlannedWorker, rank: int, meeting_place: str) -> World:
    """All ranks, as one of them sees them."""
    pool = planned.setup.pool_config
    return World(
        meeting_place,
        rank,
        pool.tensor_parallel,
        pool.pipeline_parallel,
        timeout_s=COLLECTIVE_PATIENCE_S,
        all_reduce=all_reduce_way(pool.all_reduce),
    )


def threads_of_rank(planned: PlannedWorker) -> int:
    """As the options say; otherwise the ranks share what there is."""
    threads = planned.setup.options.threads
    return threads or max(1, planned.model.plan.threads // len(planned.places))


def wire_dtype(setup: WorkerSetup) -> str | None:
    """Raises `InvalidConfiguration` when nothing is ever stored like that."""
    name = setup.cluster.transport.wire_dtype
    if name is not None and not is_wire_dtype(name):
        raise InvalidConfiguration(f"wire_dtype {name} is unknown")
    return name


def load_rank(
    planned: PlannedWorker, place: Place, groups: Groups, calls: TransferCalls, *, agent: str
) -> Rank:
    """Everything of one rank. `agent` is a name that no other process has. Raises
    `InvalidConfiguration`."""
    setup, model, plan = planned.setup, planned.model, planned.model.plan
    startup, threads = StartUp(f"{setup.worker} rank {place.rank}"), threads_of_rank(planned)
    computes = setup.pool_config.engine == "model"
    if computes:
        with startup.phase("weights"):
            decoder = load_model(
                model, setup.options, threads, place=place, collectives=groups.tensor
            )
    with startup.phase("memory"):
        kv, memory = _take_memory(planned, place)
    with startup.phase("KV transfer"):
        transfers = _make_transfer_engine(planned, place, memory, calls, agent=agent)
    engine: StageEngine
    adapters = None
    if computes:
        adapters = adapter_cache(model, setup.options, place)
        tokens = tokens_directory(model.directory, setup.options.load_format)
        engine = Engine(
            decoder,
            kv,
            plan.slots,
            threads=threads,
            stages=groups.stages,
            load_grammars=lambda: LlGuidanceGrammars(Tokenizer.load(tokens)).load(),
            make_proposer=(
                proposer_maker(model, setup.options, threads) if place.is_last else None
            ),
            adapters=adapters,
        )
    else:
        cost = pool_cost(setup.cluster, setup.pool_config)
        engine = DummyEngine(cost.step_time, kv, plan.slots, model.spec.vocabulary_tokens)
    if place.tensor_ranks > 1:
        nothing = torch.zeros(1, device=plan.device)
        engine = MeetingEngine(engine, lambda: groups.tensor.all_gather(nothing, 0))
    startup.note(f"kernels: {model.reason}; KV pool: {kv.bytes / (1 << 20):.0f} MiB")
    return Rank(place, engine, transfers, kv, memory, adapters)


def _take_memory(planned: PlannedWorker, place: Place) -> tuple[KvStore, SharedRegion | None]:
    """The pool of a rank, in memory that others may read unless it lies on a GPU."""
    export, device = planned.export, planned.model.plan.device
    shard = export.shards[place.rank]
    layout, whole = shard_layout(export.geometry, shard), pool_layout(export, shard)
    if device.type != "cpu":
        return KvStore(layout, export.block_count, device), None
    memory = SharedRegion.create(exported_bytes(export, shard), f"tandem-kv-{planned.setup.worker}")
    # Blocks are handed out from the first one on: what was never needed takes no memory.
    memory.warm(WARM_AHEAD_BYTES)
    exported = exported_pool(memory.view, whole, memory.used_to)
    return KvStore(layout, export.block_count, device, exported), memory


def _make_transfer_engine(
    planned: PlannedWorker,
    place: Place,
    memory: SharedRegion | None,
    calls: TransferCalls,
    *,
    agent: str,
) -> RankTransferEngine:
    setup = planned.setup
    if memory is None:
        logger.warning(
            "worker %s keeps its KV on a GPU, from where none moves in this version: what another "
            "worker has computed is computed again here",
            setup.worker,
        )
        return NullTransfer("the KV of this worker lies on a GPU", calls.answered)
    transport = setup.cluster.transport
    config = TransferConfig(
        checksums=transport.checksums,
        wire_dtype=transport.wire_dtype,
        timeout_s=setup.cluster.health.transfer_timeout_s,
    )
    transfer = choose_transfer(setup.options.native_kernels, setup.options.instruction_set)
    return KvTransferEngine(
        TransferMemory(memory.region, planned.export, place.rank, transfer),
        make_connectors(setup, agent),
        config,
        calls,
    )


def all_reduce_way(name: str) -> AllReduceWay:
    """Raises `InvalidConfiguration` when there is no such way."""
    for way in get_args(AllReduceWay):
        if way == name:
            return cast(AllReduceWay, way)
    known = ", ".join(get_args(AllReduceWay))
    raise InvalidConfiguration(f"all_reduce is {name}; expected one of {known}")
