"""Sums and gathers of real processes against the same arithmetic in one."""

import pytest
import torch

from tandem.kernels.collectives.contract import Alone
from tests.parallel.ranks import Layout, Ranks, Seat

# The last is larger than a slot of shared memory.
SHAPES = [(1, 3), (7, 5), (4, 64), (0, 8), (2, 1025), (3, 100_003)]
WAYS = ["library", "one-shot", "two-shot", "auto"]


def part_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def sums(seat: Seat, dtype: torch.dtype) -> list[torch.Tensor]:
    group = seat.groups.tensor
    return [group.all_reduce(part_of(group.rank, shape, dtype)) for shape in SHAPES]


def in_order(ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    total = part_of(0, shape, dtype).float()
    for rank in range(1, ranks):
        total = total + part_of(rank, shape, dtype).float()
    return total.to(dtype)


@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_is_the_same_on_every_rank(ranks: Ranks, count, way, share_memory):
    layout = Layout(count, all_reduce=way, share_memory=share_memory)
    for dtype in (torch.float32, torch.bfloat16):
        found = ranks.run(layout, sums, dtype)
        for index, shape in enumerate(SHAPES):
            expected = in_order(count, shape, dtype)
            for of_rank in found:
                assert torch.equal(of_rank[index], found[0][index])
                assert of_rank[index].shape == shape
            if way == "library":
                close = 1e-5 if dtype is torch.float32 else 5e-2
                torch.testing.assert_close(found[0][index], expected, atol=close, rtol=close)
            else:
                assert torch.equal(found[0][index], expected)


def gathers(seat: Seat) -> list[torch.Tensor]:
    group = seat.groups.tensor
    own = part_of(group.rank, (3, 4), torch.float32)
    return [group.all_gather(own, dim) for dim in (0, 1)]


@pytest.mark.parametrize("share_memory", [True, False])
def test_a_gather_joins_in_the_order_of_ranks(ranks: Ranks, share_memory):
    parts = [part_of(rank, (3, 4), torch.float32) for rank in range(3)]
    for of_rank in ranks.run(Layout(3, share_memory=share_memory), gathers):
        assert torch.equal(of_rank[0], torch.cat(parts, 0))
        assert torch.equal(of_rank[1], torch.cat(parts, 1))


def scattered_sums(seat: Seat) -> torch.Tensor:
    group = seat.groups.tensor
    return group.reduce_scatter(part_of(group.rank, (8, 5), torch.float32))


@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_a_scattered_sum_is_the_slice_of_the_whole_one(ranks: Ranks, count, share_memory):
    found = ranks.run(Layout(count, share_memory=share_memory), scattered_sums)
    assert torch.equal(torch.cat(found), in_order(count, (8, 5), torch.float32))


def pass_along(seat: Seat) -> torch.Tensor:
    """Each stage adds its number to two parcels and passes them on."""
    group = seat.groups.stages
    seen = []
    for parcel in range(2):
        x = torch.full((2, 3), float(100 * parcel))
        if group.rank > 0:
            group.recv(x, group.rank - 1)
        seen.append(x + group.rank)
        if group.rank < group.size - 1:
            group.send(x + group.rank, group.rank + 1)
    return torch.stack(seen)


def test_parcels_arrive_in_order(ranks: Ranks):
    found = ranks.run(Layout(1, 4), pass_along)
    for parcel in (0, 1):
        assert [float(of_rank[parcel, 0, 0]) for of_rank in found] == [
            100.0 * parcel + total for total in (0, 1, 3, 6)
        ]


def test_stages_and_tensor_ranks_are_groups_of_their_own(ranks: Ranks):
    found = ranks.run(Layout(2, 2), memberships)
    assert found == [((0, 2), (0, 2)), ((1, 2), (0, 2)), ((0, 2), (1, 2)), ((1, 2), (1, 2))]


def memberships(seat: Seat) -> tuple[tuple[int, int], tuple[int, int]]:
    tensor, stages = seat.groups.tensor, seat.groups.stages
    return (tensor.rank, tensor.size), (stages.rank, stages.size)


def test_alone_gives_back_what_it_was_given():
    x = torch.ones(2, 3)
    alone = Alone()
    assert alone.all_reduce(x) is x
    assert alone.all_gather(x, 1) is x
    assert alone.reduce_scatter(x) is x
