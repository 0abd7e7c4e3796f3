"""Collectives between processes: where the ranks meet, the groups that they form, and sums and
gathers whose parts are always added in the order of ranks, so that all get the same bits.

They meet through torch.distributed, gloo between CPUs and NCCL between GPUs. CPU ranks of one
machine then sum through memory that they share, which is faster by an order of magnitude.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from tandem.kernels.collectives.contract import ALONE, AllReduceWay, Collectives
from tandem.kernels.collectives.shared_memory import (
    MemoryExchange,
    SharedMemory,
    Spot,
    memory_of,
    new_memory,
)
from tandem.kernels.native import BuildFailure, load_library

Backend = Literal["gloo", "nccl"]

# Between two ranks both ways move the same bytes, and one-shot waits once instead of twice. Among
# more ranks it moves `ranks / 2` times as many, which counts beyond this size.
ONE_SHOT_BYTES = 1 << 19
NARROW = (torch.bfloat16, torch.float16)


class Exchange(Protocol):
    """How ranks see each other's tensors, which are contiguous and have elements."""

    def gather(self, own: Tensor) -> Tensor:
        """[size, ...]: what every rank gave."""
        ...

    def scatter(self, parts: Tensor) -> Tensor:
        """[size, ...]: what every rank had in `parts[own rank]`."""
        ...


class PeerGroup:
    """One process group, and an `Exchange` over it. Owns what it is still sending."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self.rank = dist.get_rank(group)
        self.size = len(self._ranks)
        # The parcel on its way: it must stay in memory until it is taken.
        self._sending: tuple[dist.Work, Tensor] | None = None

    def library_sum(self, partial: Tensor) -> None:
        """In place."""
        dist.all_reduce(partial, group=self._group)

    def send(self, parcel: Tensor, to: int) -> None:
        """One parcel at most waits for its taker, so that a fast stage cannot run far ahead."""
        if self._sending is not None:
            self._sending[0].wait()
        work = dist.isend(parcel, self._ranks[to], self._group)
        assert work is not None
        self._sending = (work, parcel)

    def recv(self, space: Tensor, sender: int) -> None:
        dist.recv(space, self._ranks[sender], self._group)

    def gather(self, own: Tensor) -> Tensor:
        return self._swap([own] * self.size)

    def scatter(self, parts: Tensor) -> Tensor:
        return self._swap(parts.unbind(0))

    def _swap(self, outgoing: Sequence[Tensor]) -> Tensor:
        """[size, ...]: what every rank had in `outgoing` for this one. On gloo faster than the
        library's own gathers, and as one group of calls it is as NCCL wants it."""
        own = outgoing[self.rank]
        taken = own.new_empty((self.size, *own.shape))
        peers = [peer for peer in range(self.size) if peer != self.rank]
        sends = [
            dist.P2POp(dist.isend, outgoing[peer], self._ranks[peer], self._group) for peer in peers
        ]
        receives = [
            dist.P2POp(dist.irecv, taken[peer], self._ranks[peer], self._group) for peer in peers
        ]
        works = dist.batch_isend_irecv(sends + receives)
        taken[self.rank].copy_(own)
        for work in works:
            work.wait()
        return taken


class OrderedCollectives:
    """One group. To be used by one thread at a time."""

    def __init__(self, peers: PeerGroup, exchange: Exchange, all_reduce: AllReduceWay) -> None:
        self.rank = peers.rank
        self.size = peers.size
        self._peers = peers
        self._exchange = exchange
        self._way: AllReduceWay = all_reduce

    def all_reduce(self, partial: Tensor) -> Tensor:
        if not partial.numel():
            return partial
        way = self._way
        if way == "auto":
            way = choose_all_reduce(partial.nbytes, self.size)
        if way == "library":
            self._peers.library_sum(partial)
            return partial
        if way == "one-shot":
            return _sum_in_order(self._exchange.gather(partial.contiguous()))
        slice_elements = -(-partial.numel() // self.size)
        missing = slice_elements * self.size - partial.numel()
        padded = functional.pad(partial.flatten(), (0, missing))
        own = _sum_in_order(self._exchange.scatter(padded.view(self.size, slice_elements)))
        return self._exchange.gather(own).flatten()[: partial.numel()].view(partial.shape)

    def all_gather(self, own: Tensor, dim: int) -> Tensor:
        if not own.numel():
            return torch.cat([own] * self.size, dim)
        parts = self._exchange.gather(own.contiguous())
        return parts.flatten(0, 1) if dim == 0 else torch.cat(parts.unbind(0), dim)

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        assert partial.shape[0] % self.size == 0
        if not partial.numel():
            return partial[: partial.shape[0] // self.size]
        parts = partial.contiguous().view(self.size, -1, *partial.shape[1:])
        return _sum_in_order(self._exchange.scatter(parts))

    def send(self, parcel: Tensor, to: int) -> None:
        if parcel.numel():
            self._peers.send(parcel.contiguous(), to)

    def recv(self, space: Tensor, sender: int) -> None:
        if space.numel():
            self._peers.recv(space, sender)


def _sum_in_order(parts: Tensor) -> Tensor:
    """The sum over the first axis, added in its order; 16-bit parts are rounded once, at the end.

    `torch.sum` would add in an order that depends on the place in the tensor.
    """
    total = parts[0].float() if parts.dtype in NARROW else parts[0]
    for part in parts[1:]:
        total = total.add_(part)
    return total.to(parts.dtype)


def choose_all_reduce(partial_bytes: int, ranks: int) -> Literal["one-shot", "two-shot"]:
    """For partial sums of so many bytes a rank. Both give the same bits; `bench/collectives.py`
    measures which is faster."""
    if ranks <= 2 or partial_bytes <= ONE_SHOT_BYTES:
        return "one-shot"
    return "two-shot"


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
    offers = peers.gather(torch.tensor([os.getpid(), fresh, able]))
    if isinstance(library, BuildFailure) or not offers[:, 2].all():
        return peers
    process, descriptor = offers[0, :2].tolist()
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
