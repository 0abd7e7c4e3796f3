"""Penalties for what was said before: repetition counts prompt and answer (Keskar et al. 2019,
CTRL), presence and frequency count the answer alone, as the OpenAI API defines them.

Axes: R rows of logits, V vocabulary, P penalised rows, T their tokens, one row after the other.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.arguments import require_rows, require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer


@dataclass(frozen=True, slots=True)
class PenaltyRows:
    """What is penalised, and how.

    `rows` int64 [P] are those of the logits; `tokens` int32 [T] what their sequences have said,
    `starts` int64 [P + 1] where those of each begin and `answers` int64 [P] where those of its
    answer do (its end where there is none yet); `factors` float32 [P, 3]: repetition, frequency,
    presence. All but `tokens` lie on the CPU.
    """

    rows: Tensor
    tokens: Tensor
    starts: Tensor
    answers: Tensor
    factors: Tensor


class Penalise(Protocol):
    def __call__(self, logits_RV: Tensor, penalties: PenaltyRows) -> None:
        """Changes float32 logits in place."""
        ...


def check_penalties(logits_RV: Tensor, penalties: PenaltyRows) -> None:
    count = len(penalties.rows)
    shapes = {"starts": (count + 1,), "answers": (count,), "factors": (count, 3)}
    for name, expected in shapes.items():
        found = tuple(getattr(penalties, name).shape)
        if found != expected:
            raise KernelArgumentError(f"penalties.{name}", found, str(expected))
    if logits_RV.dim() != 2:
        raise KernelArgumentError("logits_RV", tuple(logits_RV.shape), "[R, V]")


def penalise(logits_RV: Tensor, penalties: PenaltyRows) -> None:
    """The reference."""
    check_penalties(logits_RV, penalties)
    starts = penalties.starts.tolist()
    for row, start, end, answer, (repetition, frequency, presence) in zip(
        penalties.rows.tolist(),
        starts[:-1],
        starts[1:],
        penalties.answers.tolist(),
        penalties.factors.tolist(),
        strict=True,
    ):
        logits_V = logits_RV[row]
        if repetition != 1.0:
            said = penalties.tokens[start:end].long()
            seen = logits_V[said]
            logits_V[said] = torch.where(seen > 0, seen / repetition, seen * repetition)
        if frequency or presence:
            distinct, times = torch.unique(penalties.tokens[answer:end].long(), return_counts=True)
            logits_V[distinct] -= times.to(logits_V.dtype) * frequency + presence


class NativePenalise:
    """The same bits, in C++: linear in the tokens, without sorting them."""

    def __init__(self, library: NativeLibrary) -> None:
        self._run = library.function(
            "tandem_penalise",
            *(Pointer, Integer, Integer, Integer, Pointer, Pointer, Pointer, Pointer, Pointer),
            Integer,
        )

    def __call__(self, logits_RV: Tensor, penalties: PenaltyRows) -> None:
        check_penalties(logits_RV, penalties)
        require_rows("logits_RV", logits_RV)
        require_whole("penalties.tokens", penalties.tokens, torch.int32)
        for name in ("rows", "starts", "answers"):
            require_whole(f"penalties.{name}", getattr(penalties, name), torch.int64)
        require_whole("penalties.factors", penalties.factors, torch.float32)
        self._run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            logits_RV.shape[1],
            len(penalties.rows),
            penalties.rows.data_ptr(),
            penalties.tokens.data_ptr(),
            penalties.starts.data_ptr(),
            penalties.answers.data_ptr(),
            penalties.factors.data_ptr(),
            torch.get_num_threads(),
        )
