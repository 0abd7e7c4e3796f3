"""Rotary embedding and the pool write in plain torch, for any device and dtype."""

import torch
from torch import Tensor

from tandem.kernels.rotary.contract import QueryKeyValue, RotaryTable, TokenPlaces, check_rotate


def rotate_and_store(
    heads: QueryKeyValue, kv_B2KSD: Tensor, table: RotaryTable | None, places: TokenPlaces
) -> None:
    check_rotate(heads, kv_B2KSD, table, places)
    if table is not None:
        cos_T1R = table.cos[places.positions][:, None]
        sin_T1R = table.sin[places.positions][:, None]
        rotate_in_place(heads.q, cos_T1R, sin_T1R)
        rotate_in_place(heads.k, cos_T1R, sin_T1R)
    store(heads.k, kv_B2KSD[:, 0], places.slots)
    store(heads.v, kv_B2KSD[:, 1], places.slots)


def rotate_in_place(x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> None:
    half = cos_T1R.shape[-1]
    wide = torch.promote_types(x_THD.dtype, torch.float32)
    # A copy: both results need the first half as it was.
    first = x_THD[..., :half].to(wide, copy=True)
    second = x_THD[..., half : 2 * half].to(wide)
    x_THD[..., :half] = first * cos_T1R - second * sin_T1R
    x_THD[..., half : 2 * half] = second * cos_T1R + first * sin_T1R


def store(x_TKD: Tensor, pool_BKSD: Tensor, slot_T: Tensor) -> None:
    block_size = pool_BKSD.shape[2]
    kept = slot_T >= 0
    slot = slot_T[kept]
    # Indexing by (block, :, offset) yields [T, K, D]: the shape of the rows to be written.
    pool_BKSD[slot // block_size, :, slot % block_size] = x_TKD[kept].to(pool_BKSD.dtype)
