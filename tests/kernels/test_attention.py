"""Paged attention against the obvious formula, and its law: chunks, company, blocks, threads."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.attention import POOL_DTYPES, AttentionBatch
from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError
from tests.kernels.pools import Shape, batch_of, oracle, paged, repaged, tree_paths

# The largest difference from the formula, for values near 1: in fp32, and in bfloat16, where the
# formula has rounded queries, keys and values, too.
WIDE_ERROR, NARROW_ERROR = 3e-6, 1e-2
QUERIES = [5, 1, 0, 70, 40, 1]
CONTEXTS = [5, 600, 9, 333, 40, 1]
SHAPES = [
    Shape(4, 4, 16, 16),
    Shape(9, 3, 24, 8),
    Shape(14, 2, 64, 16),
    Shape(8, 1, 80, 7),
    Shape(6, 2, 128, 128),
    Shape(13, 1, 32, 1),
    Shape(3, 3, 6, 16),
]
NARROW = [
    Shape(8, 2, 64, 16, torch.bfloat16),
    Shape(8, 2, 64, 16, torch.int8),
    Shape(4, 4, 24, 8, torch.int8),
    Shape(6, 1, 6, 3, torch.int8),
]


def queries_for(tokens: int, shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(tokens, shape.heads, shape.head_dim, generator=generator)


@pytest.fixture(scope="session", params=["native", "narrow"])
def fixed(request: pytest.FixtureRequest) -> Kernels:
    """A row's bits are its own, in fp32 and in bfloat16."""
    if request.param == "narrow":
        request.getfixturevalue("bf16_products")
    face: Kernels = request.getfixturevalue(request.param)
    return face


def check(kernels: Kernels, shape: Shape, window: int | None, tolerance: float) -> None:
    scale = shape.head_dim**-0.5
    pages = paged(CONTEXTS, shape)
    batch = batch_of(QUERIES, CONTEXTS, pages.block_table)
    q_THD = queries_for(sum(QUERIES), shape)
    found = kernels.paged_attention(q_THD, pages.pool, batch, scale=scale, window=window)
    assert found.is_contiguous()
    for span in batch.spans:
        rows = slice(span.query_start, span.query_start + span.query_tokens)
        wanted = oracle(q_THD[rows], pages.dense[span.index], scale, window)
        torch.testing.assert_close(found[rows].double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("window", [None, 1, 37, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_native_agrees_with_the_formula(
    native: Kernels, shape: Shape, window: int | None, dtype: torch.dtype
) -> None:
    typed = Shape(shape.heads, shape.kv_heads, shape.head_dim, shape.block_size, dtype)
    check(native, typed, window, WIDE_ERROR)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_in_bfloat16_agree_with_the_formula(
    narrow: Kernels, shape: Shape, window: int | None, dtype: torch.dtype
) -> None:
    typed = replace(shape, dtype=dtype)
    pages = paged(CONTEXTS, typed)
    batch = batch_of(QUERIES, CONTEXTS, pages.block_table)
    scale, q_THD = shape.head_dim**-0.5, queries_for(sum(QUERIES), typed)
    found = narrow.paged_attention(q_THD, pages.pool, batch, scale=scale, window=window)
    # The kernel takes powers of two, whose exponents are rounded; codes are exact.
    rounded_THD = (q_THD * (scale * math.log2(math.e))).bfloat16().double() * math.log(2)
    for span in batch.spans:
        rows = slice(span.query_start, span.query_start + span.query_tokens)
        dense = pages.dense[span.index]
        kept = dense if dtype is torch.int8 else dense.bfloat16()
        wanted = oracle(rounded_THD[rows], kept, 1.0, window)
        torch.testing.assert_close(found[rows].double(), wanted, rtol=0, atol=NARROW_ERROR)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("shape", SHAPES)
def test_kv_in_bfloat16_gives_products_in_bfloat16_the_same_bits(
    narrow: Kernels, shape: Shape
) -> None:
    q_THD = queries_for(sum(QUERIES), shape)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        pages = paged(CONTEXTS, replace(shape, dtype=dtype))
        batch = batch_of(QUERIES, CONTEXTS, pages.block_table)
        found.append(narrow.paged_attention(q_THD, pages.pool, batch, scale=0.2))
    assert torch.equal(*found)


@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW])
def test_reference_agrees_with_the_formula(
    reference: Kernels, shape: Shape, window: int | None
) -> None:
    check(reference, shape, window, WIDE_ERROR)


def test_reference_follows_the_dtype(reference: Kernels) -> None:
    shape = Shape(dtype=torch.float64)
    pages = paged([40], shape)
    q_THD = queries_for(3, shape).double()
    batch = batch_of([3], [40], pages.block_table)
    found = reference.paged_attention(q_THD, pages.pool, batch, scale=0.2)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, oracle(q_THD, pages.dense[0], 0.2, None))


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_blocks_before_the_window_may_be_gone(kernels: str, request: pytest.FixtureRequest) -> None:
    face: Kernels = request.getfixturevalue(kernels)
    shape = Shape()
    pages = paged([700], shape)
    table = pages.block_table.clone()
    table[0, : (700 - 4 - 50) // 16] = 2**30
    q_THD = queries_for(4, shape)
    batch = batch_of([4], [700], table)
    found = face.paged_attention(q_THD, pages.pool, batch, scale=0.2, window=50)
    wanted = oracle(q_THD, pages.dense[0], 0.2, 50)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=WIDE_ERROR)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_chunks_company_and_blocks_change_no_bit(fixed: Kernels, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([*SHAPES, *NARROW]))
    length = data.draw(st.integers(1, 700))
    window = data.draw(st.sampled_from([None, 40, 300]))
    pages = paged([length, 50], shape)
    q_THD = queries_for(length + 1, shape)
    alone = fixed.paged_attention(
        q_THD[:length],
        pages.pool,
        batch_of([length], [length], pages.block_table[:1]),
        scale=0.2,
        window=window,
    )
    moved = paged([length, 50], Shape(shape.heads, shape.kv_heads, shape.head_dim, 5, shape.dtype))
    cuts = sorted({*data.draw(st.lists(st.integers(1, length), max_size=4)), length})
    begin = 0
    for end in cuts:
        batch = batch_of([end - begin, 1], [end, 50], moved.block_table)
        rows = torch.cat([q_THD[begin:end], q_THD[-1:]])
        found = fixed.paged_attention(rows, moved.pool, batch, scale=0.2, window=window)
        assert torch.equal(found[:-1], alone[begin:end])
        begin = end


TREES = [
    [-1, 0, 0, 1, 1, 2, 4],
    [-1, -1, -1, 0],
    [-1, 0, 1, 2, 3, 2, 5],
    [-1, *[0] * 30],
]


@pytest.mark.parametrize("window", [None, 3, 300])
@pytest.mark.parametrize("known", [0, 9, 254, 700])
@pytest.mark.parametrize("parents", TREES)
def test_a_tree_is_its_paths(
    fixed: Kernels,
    native: Kernels,
    reference: Kernels,
    parents: list[int],
    known: int,
    window: int | None,
) -> None:
    """Beside a sequence with a tree another without; bit for bit by the native face, which gets
    each path as a sequence of its own."""
    shape = Shape(6, 2, 64, 16)
    queries = len(parents)
    pages = paged([known + queries, 50], shape)
    q_THD = queries_for(queries + 2, shape)
    chain = batch_of([queries, 2], [known + queries, 50], pages.block_table)
    tree = replace(chain, parents=torch.tensor([*parents, -1, 0], dtype=torch.int32))
    found = fixed.paged_attention(q_THD, pages.pool, tree, scale=0.2, window=window)
    slow = reference.paged_attention(q_THD, pages.pool, tree, scale=0.2, window=window)
    error = WIDE_ERROR if fixed is native else 2 * NARROW_ERROR
    torch.testing.assert_close(slow, found, rtol=0, atol=error)
    plain = fixed.paged_attention(q_THD, pages.pool, chain, scale=0.2, window=window)
    assert torch.equal(found[queries:], plain[queries:])
    for query, path in enumerate(tree_paths(parents)):
        keys = [*range(known), *(known + each for each in path)]
        alone = repaged([pages.rows[0][:, :, keys]], shape)
        batch = batch_of([1], [len(keys)], alone.block_table)
        wanted = fixed.paged_attention(
            q_THD[query : query + 1], alone.pool, batch, scale=0.2, window=window
        )
        assert torch.equal(found[query : query + 1], wanted)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_drawn_trees_on_threads_change_no_bit(fixed: Kernels, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([*SHAPES, *NARROW]))
    known = data.draw(st.integers(0, 1200))
    parents = [-1, *(data.draw(st.integers(-1, at)) for at in range(data.draw(st.integers(0, 17))))]
    pages = paged([known + len(parents)], shape)
    q_THD = queries_for(len(parents), shape)
    batch = replace(
        batch_of([len(parents)], [known + len(parents)], pages.block_table),
        parents=torch.tensor(parents, dtype=torch.int32),
    )
    torch.set_num_threads(data.draw(st.sampled_from([1, 2])))
    found = fixed.paged_attention(q_THD, pages.pool, batch, scale=0.2)
    torch.set_num_threads(1)
    for query, path in enumerate(tree_paths(parents)):
        keys = [*range(known), *(known + each for each in path)]
        alone = repaged([pages.rows[0][:, :, keys]], shape)
        one = batch_of([1], [len(keys)], alone.block_table)
        wanted = fixed.paged_attention(q_THD[query : query + 1], alone.pool, one, scale=0.2)
        assert torch.equal(found[query : query + 1], wanted)


@pytest.mark.parametrize("queries", [1, 3, 200])
def test_threads_change_no_bit(fixed: Kernels, two_threads: None, queries: int) -> None:
    shape = Shape(4, 1, 64, 16)
    pages = paged([2500], shape)
    q_THD = queries_for(queries, shape)
    batch = batch_of([queries], [2500], pages.block_table)
    two = fixed.paged_attention(q_THD, pages.pool, batch, scale=0.1)
    torch.set_num_threads(1)
    assert torch.equal(fixed.paged_attention(q_THD, pages.pool, batch, scale=0.1), two)


def test_large_scores_do_not_overflow(native: Kernels) -> None:
    shape = Shape(2, 1, 16, 16)
    pages = paged([600], shape)
    q_THD = queries_for(2, shape) * 1000
    batch = batch_of([2], [600], pages.block_table)
    found = native.paged_attention(q_THD, pages.pool, batch, scale=1.0)
    wanted = oracle(q_THD, pages.dense[0], 1.0, None)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-2)


def test_an_empty_batch_gives_an_empty_result(native: Kernels, reference: Kernels) -> None:
    shape = Shape()
    pages = paged([3], shape)
    batch = batch_of([0], [3], pages.block_table)
    for kernels in (native, reference):
        empty = kernels.paged_attention(queries_for(0, shape), pages.pool, batch, scale=1.0)
        assert empty.shape == (0, 4, 32)


def test_spans_leave_out_idle_sequences() -> None:
    batch = batch_of([2, 0, 1], [5, 6, 7], torch.zeros(3, 1, dtype=torch.int32))
    assert [(s.index, s.query_start, s.query_tokens) for s in batch.spans] == [(0, 0, 2), (2, 2, 1)]


def test_wrong_shapes_are_refused(native: Kernels) -> None:
    shape = Shape()
    pages = paged([3], shape)
    batch = batch_of([1], [3], pages.block_table)
    with pytest.raises(KernelArgumentError, match="kv_B2KSD"):
        native.paged_attention(torch.ones(1, 3, 32), pages.pool, batch, scale=1.0)
    with pytest.raises(KernelArgumentError, match="batch"):
        AttentionBatch(batch.query_start[:1], batch.context_lengths, batch.block_table)
    with pytest.raises(KernelArgumentError, match="context_lengths"):
        AttentionBatch(batch.query_start, batch.context_lengths.long(), batch.block_table)
