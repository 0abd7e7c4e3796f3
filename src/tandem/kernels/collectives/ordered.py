"""Sums and gathers made of two exchanges, with parts always added in the order of ranks.

So all ranks get the same bits, whatever the way of exchange, and whatever shares the batch.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.collectives.choose import choose_all_reduce
from tandem.kernels.collectives.contract import AllReduceWay

NARROW = (torch.bfloat16, torch.float16)


class Exchange(Protocol):
    """How ranks see each other's tensors, which are contiguous and have elements."""

    def gather(self, own: Tensor) -> Tensor:
        """[size, ...]: what every rank gave."""
        ...

    def scatter(self, parts: Tensor) -> Tensor:
        """[size, ...]: what every rank had in `parts[own rank]`."""
        ...


class Peers(Protocol):
    """The communication library's view of a group."""

    rank: int
    size: int

    def library_sum(self, partial: Tensor) -> None: ...

    def send(self, parcel: Tensor, to: int) -> None: ...

    def recv(self, space: Tensor, sender: int) -> None: ...


class OrderedCollectives:
    """One group. To be used by one thread at a time."""

    def __init__(self, peers: Peers, exchange: Exchange, all_reduce: AllReduceWay) -> None:
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
