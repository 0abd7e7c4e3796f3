"""Slots: what the engine remembers of each sequence between steps, its tokens, block table and
sampling parameters, and which samples another pipeline stage still owes.

The tokens live on the device, because a step may be launched before the host knows what the step
before it drew; everything else the host knows and keeps in numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.bans import Bans
from tandem.engine.drafts import Draws, draft_places
from tandem.facts.adapter import Adapter
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import IntArray, Placement, StepPlan
from tandem.kernels.sampling import LateFilters, SamplingRows
from tandem.kernels.steps import SlotColumns
from tandem.kv.store import KvPlaces

TokenArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlotShape:
    """`slots` sequences of at most `context_tokens` tokens in blocks of `block_size`."""

    slots: int
    context_tokens: int
    block_size: int


class Slots:
    """State by slot; a slot's content is replaced when a sequence is placed in it."""

    def __init__(self, shape: SlotShape, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        self._on_host = device.type == "cpu"
        slots = shape.slots
        blocks = -(-shape.context_tokens // shape.block_size)
        self.tokens = torch.zeros((slots, shape.context_tokens), dtype=torch.int32, device=device)
        # The same memory: where a step is a millisecond, indices of numpy count.
        self._tokens_here = self.tokens.numpy() if self._on_host else None
        self.block_table = np.zeros((slots, blocks), np.int32)
        self.prompt_tokens = np.zeros(slots, np.int64)
        self.sampling: list[SamplingParameters] = [SamplingParameters()] * slots
        # The parameters that every draw needs, as columns; the rare ones stay in `sampling`.
        self._temperature = np.zeros(slots, np.float32)
        self._top_k = np.zeros(slots, np.int32)
        self._top_p = np.ones(slots, np.float32)
        self._min_p = np.zeros(slots, np.float32)
        self._typical_p = np.ones(slots, np.float32)
        self._xtc_threshold = np.zeros(slots, np.float32)
        self._xtc_probability = np.zeros(slots, np.float32)
        self._filters_late = np.zeros(slots, np.bool_)
        self._seed = np.zeros(slots, np.int64)
        self.penalised = np.zeros(slots, np.bool_)
        # Repetition, frequency and presence.
        self.penalties = np.zeros((slots, 3), np.float32)
        self.adjusts_logits = np.zeros(slots, np.bool_)
        # Of the sequences that must not draw some tokens.
        self.bans: list[Bans | None] = [None] * slots
        self.wants_logprobs = np.zeros(slots, np.bool_)
        # Whose tokens are drawn by nothing but the parameters that every draw needs.
        self.plain = np.zeros(slots, np.bool_)
        self.has_adapter = np.zeros(slots, np.bool_)
        self.adapters: list[Adapter | None] = [None] * slots

    @property
    def columns(self) -> SlotColumns:
        """What every step and draw needs, where it lies."""
        return SlotColumns(
            tokens=self.tokens,
            block_table=self.block_table,
            block_size=self.shape.block_size,
            temperature=self._temperature,
            top_k=self._top_k,
            top_p=self._top_p,
            min_p=self._min_p,
            seed=self._seed,
        )

    def apply(self, plan: StepPlan) -> None:
        """Take over the plan's differences: placements, then their block tables; and its drafts,
        in a row behind what is known."""
        for placement in plan.placements:
            self._place(placement)
        if len(plan.table_slots):
            self.block_table[plan.table_slots, plan.table_indices] = plan.table_blocks
        if len(plan.draft_tokens):
            self._take_drafts(plan)

    def _take_drafts(self, plan: StepPlan) -> None:
        if self._tokens_here is None:
            self.write_tokens(*draft_places(plan), torch.from_numpy(plan.draft_tokens))
            return
        ends, first = (plan.starts + plan.counts).tolist(), 0
        for slot, end, count in zip(
            plan.slots.tolist(), ends, plan.draft_counts.tolist(), strict=True
        ):
            drafts = plan.draft_tokens[first : first + count]
            self._tokens_here[slot, end - count : end] = drafts
            first += count

    def write_tokens(self, slots: IntArray, places: IntArray, tokens: Tensor) -> None:
        """These are the tokens there."""
        if self._tokens_here is not None:
            self._tokens_here[slots, places] = tokens.numpy()
            return
        index = self.to_device(slots.astype(np.int64)), self.to_device(places.astype(np.int64))
        self.tokens[index] = tokens.to(self.device, torch.int32, non_blocking=True)

    def read_tokens(self, slots: IntArray, places: IntArray) -> Tensor:
        """The tokens there, int64."""
        if self._tokens_here is not None:
            return torch.from_numpy(self._tokens_here[slots, places].astype(np.int64))
        index = self.to_device(slots.astype(np.int64)), self.to_device(places.astype(np.int64))
        return self.tokens[index].long()

    def blocks_to_write(self, plan: StepPlan) -> np.ndarray:
        """The blocks that this plan hands to sequences which have computed nothing in them yet;
        what lies before a sequence's first token to compute, others may have computed."""
        if not len(plan.table_blocks):
            return plan.table_blocks
        begins = np.zeros(self.shape.slots, np.int64)
        begins[plan.slots] = plan.starts
        first = plan.table_indices.astype(np.int64) * self.shape.block_size
        return plan.table_blocks[first >= begins[plan.table_slots]]

    def kv_moves(
        self, slots: IntArray, sources: IntArray, targets: IntArray
    ) -> tuple[KvPlaces, KvPlaces]:
        """Where these tokens of the sequences lie in the pool, and where they are to lie."""
        block_size, table = self.shape.block_size, self.block_table
        return (
            (table[slots, sources // block_size], sources % block_size),
            (table[slots, targets // block_size], targets % block_size),
        )

    def _place(self, placement: Placement) -> None:
        slot, sampling = placement.slot, placement.sampling
        known = torch.from_numpy(np.array(placement.tokens, np.int32))
        self.tokens[slot, : len(placement.tokens)] = known.to(self.device)
        self.prompt_tokens[slot] = placement.prompt_tokens
        self.sampling[slot] = sampling
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._typical_p[slot] = sampling.typical_p
        self._xtc_threshold[slot] = sampling.xtc_threshold
        self._xtc_probability[slot] = sampling.xtc_probability
        self._filters_late[slot] = sampling.typical_p < 1.0 or sampling.xtc_probability > 0.0
        self._seed[slot] = np.uint64(sampling.seed).astype(np.int64)
        self.wants_logprobs[slot] = sampling.top_logprobs is not None
        self.has_adapter[slot] = placement.adapter is not None
        self.adapters[slot] = placement.adapter
        self.penalised[slot] = sampling.penalised
        self.penalties[slot] = (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        self.adjusts_logits[slot] = sampling.adjusts_logits
        self.plain[slot] = not (
            sampling.penalised
            or sampling.adjusts_logits
            or sampling.grammar
            or self.wants_logprobs[slot]
            or self._filters_late[slot]
        )
        self.bans[slot] = Bans.of(sampling, self.device) if sampling.adjusts_logits else None

    def sampling_rows(self, slots: np.ndarray, positions: np.ndarray) -> SamplingRows:
        """The draw parameters of these slots, for tokens at these positions."""
        return SamplingRows(
            temperature=self.to_device(self._temperature[slots]),
            top_k=self.to_device(self._top_k[slots]),
            top_p=self.to_device(self._top_p[slots]),
            min_p=self.to_device(self._min_p[slots]),
            seed=self.to_device(self._seed[slots]),
            position=self.to_device(positions.astype(np.int64)),
            late=self._late_filters(slots) if self.filters_late(slots) else None,
        )

    def filters_late(self, slots: np.ndarray) -> bool:
        """Whether any of them draws by more than the parameters that every draw needs."""
        return bool(self._filters_late[slots].any())

    def _late_filters(self, slots: np.ndarray) -> LateFilters:
        return LateFilters(
            typical_p=self.to_device(self._typical_p[slots]),
            xtc_threshold=self.to_device(self._xtc_threshold[slots]),
            xtc_probability=self.to_device(self._xtc_probability[slots]),
        )

    def to_device(self, values: np.ndarray) -> Tensor:
        """There without waiting; on the host, the values themselves."""
        tensor = torch.from_numpy(values)
        # A dozen of these a step: even a copy that copies nothing is worth leaving out.
        return tensor if self._on_host else tensor.to(self.device, non_blocking=True)


class PendingSamples:
    """The steps that were launched here and are drawn elsewhere, until their tokens come: which
    slots wait for them, and at which positions. A slot may have been given to another sequence
    before its token comes; then the token is of no use."""

    def __init__(self) -> None:
        self._draws_of: dict[int, Draws] = {}

    def step_launched(self, plan: StepPlan, draws: Draws) -> None:
        """A launched plan: its sampling rows wait from now on, and the rows of sequences whose
        slots it gives to others wait no longer."""
        replaced = [placement.slot for placement in plan.placements]
        if replaced:
            for earlier in self._draws_of.values():
                earlier.slots[np.isin(earlier.slots, replaced)] = -1
        if len(draws.slots):
            self._draws_of[plan.step_id] = draws

    def tokens_landed(
        self, step_id: int, tokens: TokenArray, counts: Sequence[int] = ()
    ) -> tuple[IntArray, IntArray, TokenArray]:
        """(slots, positions, tokens) of the draws that still wait for this step's tokens; each row
        has so many (empty: one)."""
        nobody = np.empty(0, np.int32)
        draws = self._draws_of.pop(step_id, Draws(nobody, nobody))
        slots, positions = draws.slots, draws.positions
        if counts:
            # A pipeline has chains alone: what lies where on this stage need not move.
            assert not draws.trees
            counting = np.array(draws.counting(tuple(tuple(range(count)) for count in counts)))
            slots, positions = slots[counting], positions[counting]
        assert len(slots) == len(tokens)
        waiting = slots >= 0
        return slots[waiting], positions[waiting], tokens[waiting]
