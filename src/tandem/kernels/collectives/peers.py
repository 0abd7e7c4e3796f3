"""A torch.distributed process group: sums, parcels, and exchanges in which each rank sends to
each other one directly."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor


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
