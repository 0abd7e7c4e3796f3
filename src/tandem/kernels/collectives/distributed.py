"""Ranks that are processes: where they meet, and the groups that they form.

They meet through torch.distributed, gloo between CPUs and NCCL between GPUs. CPU ranks of one
machine then sum through memory that they share, which is faster by an order of magnitude.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from tandem.kernels.collectives.contract import ALONE, AllReduceWay, Collectives
from tandem.kernels.collectives.ordered import Exchange, OrderedCollectives
from tandem.kernels.collectives.peers import PeerGroup
from tandem.kernels.collectives.shared_memory import (
    MemoryExchange,
    SharedMemory,
    Spot,
    memory_of,
    new_memory,
)
from tandem.kernels.native.build import BuildFailure
from tandem.kernels.native.library import load_library

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class World:
    """All ranks of a worker, `stage * tensor_ranks + tensor_rank`, and where they meet.

    `meeting_place` is `file:///path` (a new file that all can reach) or `tcp://host:port` (where
    rank 0 will listen). Who waits longer than `timeout_s` for a rank gives up. `share_memory`
    needs all ranks on CPUs of one machine; without a C++ compiler it is not used.
    """

    meeting_place: str
    rank: int
    tensor_ranks: int
    stages: int = 1
    backend: Backend = "gloo"
    timeout_s: float = 60.0
    all_reduce: AllReduceWay = "one-shot"
    share_memory: bool = True

    @property
    def ranks(self) -> int:
        return self.tensor_ranks * self.stages

    @property
    def tensor_groups(self) -> tuple[range, ...]:
        """The ranks of each stage."""
        firsts = range(0, self.ranks, self.tensor_ranks)
        return tuple(range(first, first + self.tensor_ranks) for first in firsts)

    @property
    def stage_groups(self) -> tuple[range, ...]:
        """Over all stages, the ranks that hold the same share of one."""
        firsts = range(self.tensor_ranks)
        return tuple(range(first, self.ranks, self.tensor_ranks) for first in firsts)


@dataclass(frozen=True, slots=True)
class Groups:
    """The two groups of a rank: `tensor` are the ranks of its stage, `stages` those that hold the
    same share of the other stages."""

    tensor: Collectives
    stages: Collectives


def connect(world: World) -> Groups:
    """Meet all other ranks; every rank of the world has to call it. One world at a time in a
    process, until `disconnect`. Raises `RuntimeError` when not all come in time, or memory cannot
    be shared."""
    assert 0 <= world.rank < world.ranks
    if world.ranks == 1:
        return Groups(ALONE, ALONE)
    dist.init_process_group(
        world.backend,
        init_method=world.meeting_place,
        rank=world.rank,
        world_size=world.ranks,
        timeout=timedelta(seconds=world.timeout_s),
    )
    tensor: Collectives = ALONE
    stages: Collectives = ALONE
    if world.tensor_ranks > 1:
        peers = _own_group(world.tensor_groups, world)
        tensor = OrderedCollectives(peers, _exchange(peers, world), world.all_reduce)
    if world.stages > 1:
        peers = _own_group(world.stage_groups, world)
        stages = OrderedCollectives(peers, peers, world.all_reduce)
    return Groups(tensor, stages)


def disconnect() -> None:
    """Leave the world, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_group(groups: Sequence[range], world: World) -> PeerGroup:
    """Every rank has to take part in making every group."""
    timeout = timedelta(seconds=world.timeout_s)
    made = [dist.new_group(list(ranks), timeout=timeout) for ranks in groups]
    return PeerGroup(next(g for g, ranks in zip(made, groups, strict=True) if world.rank in ranks))


def _exchange(peers: PeerGroup, world: World) -> Exchange:
    if world.backend != "gloo" or not world.share_memory:
        return peers
    library = load_library()
    able = not isinstance(library, BuildFailure)
    fresh = new_memory(peers.size) if able and peers.rank == 0 else -1
    told = peers.gather(torch.tensor([os.getpid(), fresh, able]))
    if isinstance(library, BuildFailure) or not told[:, 2].all():
        return peers
    process, descriptor = told[0, :2].tolist()
    try:
        own = fresh if peers.rank == 0 else memory_of(process, descriptor)
        memory = SharedMemory(own, peers.rank, peers.size)
    except OSError as problem:
        raise RuntimeError(
            f"rank {peers.rank} cannot share memory with process {process}: {problem}; "
            "without it, say share_memory=False"
        ) from problem
    # Nobody may look for another's lock before all hold theirs.
    peers.gather(torch.zeros(1))
    return MemoryExchange(memory, Spot(peers.rank, peers.size, world.timeout_s), library)
