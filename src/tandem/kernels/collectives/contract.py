"""What ranks that compute together say to each other: sums, gathers, and parcels for one of them.

Every rank of a group calls the same operations in the same order with tensors of the same shape.
Nothing here knows what is being summed.
"""

from typing import Literal, Protocol

from torch import Tensor

# How partial sums become sums on every rank.
#   library: as the communication library does it; its order of adding may depend on the place in
#     the tensor, so a row's bits may depend on its company.
#   one-shot: every rank reads all parts and adds them in the order of ranks.
#   two-shot: every rank adds one slice in the order of ranks, then reads the slices of the others:
#     the same bits as one-shot with less traffic.
#   auto: whichever of the last two is faster at this size.
AllReduceWay = Literal["library", "one-shot", "two-shot", "auto"]


class Collectives(Protocol):
    """One group as one of its ranks sees it. Tensors are contiguous, on the group's device.

    A rank that waits longer for the others than its group allows raises `RuntimeError`.
    """

    @property
    def rank(self) -> int:
        """The own place in the group, 0 .. size - 1."""
        ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' tensors, of their shape; the same bits on every rank. `partial`
        may be overwritten, and the result may be it."""
        ...

    def all_gather(self, own: Tensor, dim: int) -> Tensor:
        """All ranks' tensors joined along `dim`, in the order of ranks."""
        ...

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        """[size * S, ...] to the own [S, ...]: the sum of all ranks' rows
        `rank * S .. (rank + 1) * S`."""
        ...

    def send(self, parcel: Tensor, to: int) -> None:
        """To one rank of the group. May return before it is taken; `parcel` may not be written to
        any more."""
        ...

    def recv(self, space: Tensor, sender: int) -> None:
        """Fill `space` with the next parcel of that rank: of the same shape and dtype."""
        ...


class Alone:
    """A group of one: nothing to sum, nobody to write to."""

    rank = 0
    size = 1

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial

    def all_gather(self, own: Tensor, dim: int) -> Tensor:
        assert -own.dim() <= dim < own.dim()
        return own

    def reduce_scatter(self, partial: Tensor) -> Tensor:
        return partial

    def send(self, parcel: Tensor, to: int) -> None:
        raise AssertionError(f"{tuple(parcel.shape)} for rank {to}: nobody else is in this group")

    def recv(self, space: Tensor, sender: int) -> None:
        raise AssertionError(f"{tuple(space.shape)} of rank {sender}: nobody else is here")


ALONE = Alone()
