"""Low-rank adapters (LoRA, Hu et al. 2021) beside linear layers: y[t] += scaling * B (A x[t]), for
rows of several adapters and ranks in one batch; rows without an adapter are not touched.

Several linears may be fused into one; an adapter then has a part for each of them that it adapts,
which adds to that linear's outputs. The sums are fp32 (float64 where x is).

Axes: T packed tokens, N output features, C input features, R rank, A adapters, J rows that have an
adapter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.kernels.arguments import DTYPE_CODES, require_rows, require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer

Layout = Literal["rows", "columns"]

# As lora.cpp has them: q, k and v are the most that are fused.
MOST_PARTS = 3
# Columns are filled up to the widest register of any processor.
REGISTER_COLUMNS = 16
_PART = np.dtype(
    [
        ("up", np.int64),
        ("up_stride", np.int64),
        ("first_rank", np.int64),
        ("rank", np.int64),
        ("first_output", np.int64),
        ("outputs", np.int64),
        ("scaling", np.float64),
    ]
)
_ADAPTER = np.dtype(
    [
        ("down", np.int64),
        ("ranks", np.int64),
        ("storage", np.int64),
        ("parts", np.int64),
        ("part", _PART, MOST_PARTS),
    ]
)


@dataclass(frozen=True)
class LowRankPart:
    """What an adapter adds to N outputs of a linear from `first_output` on: A is [R, C], B [N, R],
    both in float32, bfloat16 or float16."""

    down: Tensor
    up: Tensor
    scaling: float
    first_output: int = 0

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True)
class PackedLowRank:
    """The parts of one adapter beside one linear, as one face reads them; only that face may use
    it. `rows` keeps A and B as they are; `columns` keeps A as [C, R of all parts] and each B as
    [R, N], their columns filled up with zeros."""

    in_features: int
    out_features: int
    layout: Layout
    parts: tuple[LowRankPart, ...]
    entry: NDArray[np.void] | None = None

    @property
    def weight_bytes(self) -> int:
        tensors = (each for part in self.parts for each in (part.down, part.up))
        held = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        return sum(storage.nbytes() for storage in held.values())

    @property
    def multiply_adds(self) -> int:
        """For one row."""
        return sum(part.rank * (self.in_features + len(part.up)) for part in self.parts)


@dataclass(frozen=True)
class LowRankStack:
    """What several adapters have beside one linear, by their numbers in a step (None: nothing), in
    the `layout` of all. The native face has a `table` of them, `ranks` of inner columns, and at
    most so many `multiply_adds` a row."""

    in_features: int
    out_features: int
    layout: Layout
    adapters: tuple[PackedLowRank | None, ...]
    table: NDArray[np.void] | None = None
    ranks: int = 0
    multiply_adds: int = 0


@dataclass(frozen=True)
class AdapterRows:
    """Which rows of a step have which adapter: `order` (int64 [J], on the device of x) lists them,
    those of adapter a at `starts[a] .. starts[a + 1]` (int64 [A + 1], on the host), in the order of
    the step."""

    order: Tensor
    starts: NDArray[np.int64]

    @property
    def count(self) -> int:
        return int(self.starts[-1])


def adapter_rows(
    numbers_T: NDArray[np.int32], adapters: int, device: torch.device | None = None
) -> AdapterRows:
    """Of rows that have these adapters, by number; -1 is none."""
    adapted = np.flatnonzero(numbers_T >= 0)
    numbers = numbers_T[adapted]
    order = adapted[np.argsort(numbers, kind="stable")].astype(np.int64)
    starts = np.zeros(adapters + 1, np.int64)
    np.cumsum(np.bincount(numbers, minlength=adapters), out=starts[1:])
    order_J = torch.from_numpy(order)
    return AdapterRows(order_J if device is None else order_J.to(device), starts)


class PackLowRank(Protocol):
    def __call__(self, parts: Sequence[LowRankPart], out_features: int) -> PackedLowRank:
        """Of at least one part; `out_features` are those of the whole linear."""
        ...


class JoinLowRank(Protocol):
    def __call__(self, adapters: Sequence[PackedLowRank | None]) -> LowRankStack | None:
        """Of adapters of one linear; None where none of them has anything there."""
        ...


class AddLowRank(Protocol):
    def __call__(self, y_TN: Tensor, x_TC: Tensor, stack: LowRankStack, rows: AdapterRows) -> None:
        """Adds to y, in place, what the adapters of its rows make of x."""
        ...


def check_parts(parts: Sequence[LowRankPart], out_features: int) -> None:
    if not 0 < len(parts) <= MOST_PARTS:
        raise KernelArgumentError("parts", len(parts), f"1 to {MOST_PARTS}")
    in_features = parts[0].down.shape[1]
    for part in parts:
        found = (tuple(part.down.shape), tuple(part.up.shape))
        if found[0] != (part.rank, in_features) or found[1][1:] != (part.rank,):
            raise KernelArgumentError("parts", found, f"[R, {in_features}] and [N, R]")
        if part.first_output + found[1][0] > out_features:
            raise KernelArgumentError("parts.first_output", part.first_output, "within the outputs")


def check_add(
    y_TN: Tensor, x_TC: Tensor, stack: LowRankStack, rows: AdapterRows, layout: str
) -> None:
    if stack.layout != layout:
        raise KernelArgumentError(
            "stack.layout", stack.layout, f"{layout}, as packed by the same Kernels object"
        )
    if x_TC.dim() != 2 or x_TC.shape[1] != stack.in_features:
        raise KernelArgumentError("x_TC", tuple(x_TC.shape), f"[T, {stack.in_features}]")
    if y_TN.shape != (x_TC.shape[0], stack.out_features):
        wanted = f"[{x_TC.shape[0]}, {stack.out_features}]"
        raise KernelArgumentError("y_TN", tuple(y_TN.shape), wanted)
    if len(rows.starts) != len(stack.adapters) + 1:
        raise KernelArgumentError("rows.starts", len(rows.starts), "one more than adapters")


def pack_low_rank(parts: Sequence[LowRankPart], out_features: int) -> PackedLowRank:
    check_parts(parts, out_features)
    return PackedLowRank(parts[0].down.shape[1], out_features, "rows", tuple(parts))


def join_low_rank(adapters: Sequence[PackedLowRank | None]) -> LowRankStack | None:
    found = [each for each in adapters if each is not None]
    if not found:
        return None
    alike = {(each.in_features, each.out_features, each.layout) for each in found}
    if len(alike) > 1:
        raise KernelArgumentError("adapters", sorted(alike), "all beside one linear")
    return LowRankStack(*alike.pop(), tuple(adapters))


def add_low_rank(y_TN: Tensor, x_TC: Tensor, stack: LowRankStack, rows: AdapterRows) -> None:
    """The reference, for any device and dtype."""
    check_add(y_TN, x_TC, stack, rows, "rows")
    wide = torch.promote_types(x_TC.dtype, torch.float32)
    for number, adapter in enumerate(stack.adapters):
        begin, end = int(rows.starts[number]), int(rows.starts[number + 1])
        if adapter is None or begin == end:
            continue
        order = rows.order[begin:end]
        x_JC = x_TC.index_select(0, order).to(wide)
        for part in adapter.parts:
            delta_JN = x_JC @ part.down.to(wide).T @ part.up.to(wide).T * part.scaling
            last = part.first_output + delta_JN.shape[1]
            y_TN[:, part.first_output : last].index_add_(0, order, delta_JN.to(y_TN.dtype))


class NativePackLowRank:
    """Of parts on the CPU. Where they are stored unlike each other, or wider, all become
    float32."""

    def __call__(self, parts: Sequence[LowRankPart], out_features: int) -> PackedLowRank:
        check_parts(parts, out_features)
        in_features = parts[0].down.shape[1]
        dtypes = {each.dtype for part in parts for each in (part.down, part.up)}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        if dtype not in DTYPE_CODES or dtype is torch.int8:
            dtype = torch.float32
        down_CR = _filled_up(torch.cat([part.down for part in parts]).T.to(dtype))
        entry = np.zeros((), _ADAPTER)
        entry["down"], entry["ranks"] = down_CR.data_ptr(), down_CR.shape[1]
        entry["storage"], entry["parts"] = DTYPE_CODES[dtype], len(parts)
        packed, first_rank = [], 0
        for place, part in enumerate(parts):
            up_RN = _filled_up(part.up.T.to(dtype))
            outputs = part.up.shape[0]
            entry["part"][place] = (
                *(up_RN.data_ptr(), up_RN.shape[1], first_rank, part.rank),
                *(part.first_output, outputs, part.scaling),
            )
            # Views of what is held, so that a part is still one, and nothing lies there twice.
            down_RC = down_CR[:, first_rank : first_rank + part.rank].T
            up_NR = up_RN[:, :outputs].T
            packed.append(LowRankPart(down_RC, up_NR, part.scaling, part.first_output))
            first_rank += part.rank
        return PackedLowRank(in_features, out_features, "columns", tuple(packed), entry)


def _filled_up(columns: Tensor) -> Tensor:
    """In memory of its own, with columns of zeros up to a whole number of registers."""
    width = -(-columns.shape[1] // REGISTER_COLUMNS) * REGISTER_COLUMNS
    filled = torch.zeros(columns.shape[0], width, dtype=columns.dtype)
    filled[:, : columns.shape[1]] = columns
    return filled


def native_join_low_rank(adapters: Sequence[PackedLowRank | None]) -> LowRankStack | None:
    joined = join_low_rank(adapters)
    if joined is None:
        return None
    table = np.zeros(len(adapters), _ADAPTER)
    for number, each in enumerate(adapters):
        if each is not None:
            if each.entry is None:
                raise KernelArgumentError("adapters", each.layout, "columns")
            table[number] = each.entry
    most = max(each.multiply_adds for each in adapters if each is not None)
    return replace(joined, table=table, ranks=int(table["ranks"].max()), multiply_adds=most)


class NativeAddLowRank:
    """fp32 arithmetic, row-invariant bits. x and y must be float32 with contiguous features; rows
    may be strided."""

    def __init__(self, library: NativeLibrary) -> None:
        self._run = library.function(
            "tandem_add_low_rank",
            *(Pointer, Integer, Pointer, Integer, Pointer, Pointer, Integer),
            *(Pointer, Integer, Pointer, Integer, Integer, Integer),
        )

    def __call__(self, y_TN: Tensor, x_TC: Tensor, stack: LowRankStack, rows: AdapterRows) -> None:
        check_add(y_TN, x_TC, stack, rows, "columns")
        require_rows("x_TC", x_TC)
        require_rows("y_TN", y_TN)
        require_whole("rows.order", rows.order, torch.int64)
        table = stack.table
        if table is None:
            raise KernelArgumentError("stack.table", None, "as joined by the same Kernels object")
        count = rows.count
        if not count:
            return
        inner_JR = torch.empty(count, stack.ranks)
        self._run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            y_TN.data_ptr(),
            y_TN.stride(0),
            rows.order.data_ptr(),
            rows.starts.ctypes.data,
            len(stack.adapters),
            table.ctypes.data,
            stack.in_features,
            inner_JR.data_ptr(),
            stack.ranks,
            count * stack.multiply_adds,
            torch.get_num_threads(),
        )
