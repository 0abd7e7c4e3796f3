"""Turns step plans into tokens. Owns device memory and slot state; decides nothing.

Axes: N rows of the plan, R of them sampling, T packed tokens, C hidden, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem.engine.batch import token_batch
from tandem.engine.sampler import PendingLogprobs, Sampler
from tandem.engine.slots import Slots, SlotShape
from tandem.facts.steps import StepPlan, StepResult
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose work is on its way on the device."""

    step_id: int
    tokens: Tensor | None
    logprobs: PendingLogprobs | None

    def result(self) -> StepResult:
        """Wait for the device and bring the tokens home."""
        if self.tokens is None:
            return StepResult(self.step_id, ())
        logprobs = self.logprobs.collect() if self.logprobs else ()
        return StepResult(self.step_id, tuple(self.tokens.tolist()), logprobs)


class Engine:
    """Runs plans in the order of their ids on one model and one KV store.

    `threads` bounds the CPU threads of a kernel (0: as torch has it).
    """

    def __init__(
        self, decoder: Decoder, kv: KvStore, shape: SlotShape, *, threads: int = 0
    ) -> None:
        self.decoder = decoder
        self.kv = kv
        self._threads = threads
        self.slots = Slots(shape, kv.device)
        self._sampler = Sampler(decoder.kernels, self.slots)
        self._next_step_id = 0

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the device is done."""
        return self.slots.device.type != "cpu"

    def adopt_thread(self) -> None:
        """To be called in the thread that launches: OpenMP counts its threads per caller."""
        if self._threads:
            torch.set_num_threads(self._threads)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a step. Its tokens are written into the slots, so the next plan may be launched
        before this one's `result` is read."""
        assert plan.step_id == self._next_step_id
        self._next_step_id += 1
        self.slots.apply(plan)
        hidden_RC = self.decoder.forward(token_batch(plan, self.slots), self.kv)
        sampling = np.flatnonzero(plan.samples)
        if not len(sampling):
            return LaunchedStep(plan.step_id, None, None)
        logits_RV = self.decoder.logits(hidden_RC)
        row_slots = plan.slots[sampling]
        positions = (plan.starts + plan.counts)[sampling]
        tokens_R, logprobs = self._sampler.draw(logits_RV, row_slots, positions)
        self._remember(row_slots, positions, tokens_R)
        return LaunchedStep(plan.step_id, tokens_R, logprobs)

    def run(self, plan: StepPlan) -> StepResult:
        """One step from plan to tokens."""
        return self.launch(plan).result()

    def _remember(self, row_slots: np.ndarray, positions: np.ndarray, tokens_R: Tensor) -> None:
        device = self.slots.device
        index = torch.from_numpy(row_slots.astype(np.int64)).to(device)
        place = torch.from_numpy(positions.astype(np.int64)).to(device)
        self.slots.tokens[index, place] = tokens_R.to(torch.int32)
