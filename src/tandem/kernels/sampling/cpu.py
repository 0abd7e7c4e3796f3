"""The native face of sampling: the same tokens as the reference, one row a thread."""

import torch
from torch import Tensor

from tandem.kernels.native.arguments import require_rows, require_whole
from tandem.kernels.native.library import Integer, NativeLibrary, Pointer
from tandem.kernels.sampling.contract import (
    SamplingRows,
    TokenLogprobs,
    check_sample,
    check_score,
)

ROW_DTYPES = (
    ("temperature", torch.float32),
    ("top_k", torch.int32),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("seed", torch.int64),
    ("position", torch.int64),
)


class NativeSample:
    """Parameter arrays must be contiguous and of the contract's dtypes."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_sample",
            *(Pointer, Integer, Integer, Integer, Pointer, Pointer),
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, rows: SamplingRows) -> Tensor:
        check_sample(logits_RV, rows)
        require_rows("logits_RV", logits_RV)
        for name, dtype in ROW_DTYPES:
            require_whole(name, getattr(rows, name), dtype)
        count, vocabulary = logits_RV.shape
        tokens_R = torch.empty(count, dtype=torch.int64)
        self.run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            count,
            vocabulary,
            rows.temperature.data_ptr(),
            rows.top_k.data_ptr(),
            rows.top_p.data_ptr(),
            rows.min_p.data_ptr(),
            rows.seed.data_ptr(),
            rows.position.data_ptr(),
            tokens_R.data_ptr(),
            torch.get_num_threads(),
        )
        return tokens_R


class NativeTokenLogprobs:
    """Log probabilities in float32; the normaliser is summed in double."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_token_logprobs",
            *(Pointer, Integer, Integer, Integer, Pointer, Integer),
            *(Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> TokenLogprobs:
        check_score(logits_RV, tokens_R, top_n)
        require_rows("logits_RV", logits_RV)
        require_whole("tokens_R", tokens_R, torch.int64)
        count, vocabulary = logits_RV.shape
        scored = TokenLogprobs(
            logprob=torch.empty(count),
            rank=torch.empty(count, dtype=torch.int64),
            top_ids=torch.empty(count, top_n, dtype=torch.int64),
            top_logprobs=torch.empty(count, top_n),
        )
        self.run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            count,
            vocabulary,
            tokens_R.data_ptr(),
            top_n,
            scored.logprob.data_ptr(),
            scored.rank.data_ptr(),
            scored.top_ids.data_ptr(),
            scored.top_logprobs.data_ptr(),
            torch.get_num_threads(),
        )
        return scored
