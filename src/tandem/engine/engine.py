"""Turns step plans into tokens. Owns device memory and slot state; decides nothing.

Axes: N rows of the plan, W tokens of them that are looked at, R draws, T packed tokens, C hidden, V
vocabulary, X tokens that cross from one stage to the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem.engine.adapters import AdapterCache, StepAdapters, no_adapter
from tandem.engine.drafts import Draws, drawing_rows, tree_queries, wanted_tokens
from tandem.engine.grammars import GrammarMasks, Grammars, NoGrammars
from tandem.engine.prompt_scores import PendingScores, PromptScorer, scored_tokens
from tandem.engine.proposers.contract import Continuations, Proposals, Proposer
from tandem.engine.sampler import PendingLogprobs, Sampler
from tandem.engine.slots import PendingSamples, Slots, SlotShape
from tandem.facts.steps import BoolArray, StepPlan, StepResult
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.collectives.contract import ALONE, Collectives
from tandem.kernels.sampling import NO_TOKEN
from tandem.kernels.steps import JoinedStep, StepRows
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder, TokenBatch


def token_batch(plan: StepPlan, slots: Slots, adapters: StepAdapters) -> TokenBatch:
    """The model's input for a plan whose differences `slots` has taken over."""
    block_size = slots.shape.block_size
    counts_N = plan.counts
    ends_N = plan.starts + counts_N
    query_start = np.zeros(len(counts_N) + 1, np.int32)
    np.cumsum(counts_N, out=query_start[1:])
    if int(query_start[-1]) == len(counts_N):
        slots_T, positions_T = plan.slots, plan.starts
    else:
        slots_T = np.repeat(plan.slots, counts_N)
        first_T = np.repeat(plan.starts - query_start[:-1], counts_N)
        positions_T = np.arange(query_start[-1], dtype=np.int32) + first_T
    blocks_T = slots.block_table[slots_T, positions_T // block_size].astype(np.int64)
    kv_slots_T = blocks_T * block_size + positions_T % block_size
    wanted_W = wanted_tokens(plan, query_start)
    if len(plan.scored_counts):
        wanted_W = np.concatenate((wanted_W, scored_tokens(plan, query_start)))
    used_blocks = -(-int(ends_N.max()) // block_size)
    adapted = None
    if slots.has_adapter[plan.slots].any():
        of_rows = [slots.adapters[slot] for slot in plan.slots]
        adapted = adapters.adapted_tokens(of_rows, counts_N, wanted_W)

    def on_device(values: np.ndarray) -> torch.Tensor:
        return slots.to_device(np.ascontiguousarray(values))

    token_ids, parents_T = slots.read_tokens(slots_T, positions_T), None
    if len(plan.draft_parents):
        # The tokens of a tree lie in a row, wherever they stand.
        positions_T, tree_T = tree_queries(plan)
        parents_T = on_device(tree_T)
    return TokenBatch(
        token_ids=token_ids,
        positions=on_device(positions_T.astype(np.int64)),
        slots=on_device(kv_slots_T),
        attention=AttentionBatch(
            query_start=on_device(query_start),
            context_lengths=on_device(ends_N.astype(np.int32)),
            block_table=on_device(slots.block_table[plan.slots, :used_blocks]),
            parents=parents_T,
        ),
        wanted=on_device(wanted_W.astype(np.int64)),
        adapted=adapted,
    )


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose work is on its way on the device; without tokens where none are drawn.
    `samples` [N] says which rows draw. Where some check drafts, `counting` are the draws that count
    and `token_counts` how many they are in each row. `silent_sums` are of the hidden states of the
    rows that draw nothing: finite where they came to numbers; None where all draw, or where that is
    seen elsewhere. `prompt_scores` are of the prompts that it scores, if it does."""

    step_id: int
    samples: BoolArray
    tokens: Tensor | None = None
    logprobs: PendingLogprobs | None = None
    silent_sums: Tensor | None = None
    prompt_scores: PendingScores | None = None
    counting: Sequence[int] | None = None
    token_counts: tuple[int, ...] = ()
    proposals: Proposals = ()

    def result(self) -> StepResult:
        """Wait for the device and bring the tokens home."""
        tokens = () if self.tokens is None else tuple(self.tokens.tolist())
        logprobs = self.logprobs.collect() if self.logprobs else ()
        if self.counting is not None:
            tokens = tuple([tokens[place] for place in self.counting])
            logprobs = tuple([logprobs[place] for place in self.counting]) if logprobs else ()
        return StepResult(
            self.step_id,
            tokens,
            logprobs,
            self._failed_rows(tokens),
            self.token_counts,
            self.proposals,
            self.prompt_scores.collect() if self.prompt_scores else (),
        )

    def _failed_rows(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        failed: list[int] = []
        if NO_TOKEN in tokens:
            rows = np.flatnonzero(self.samples)
            if self.token_counts:
                rows = np.repeat(rows, self.token_counts)
            failed += rows[np.array(tokens) == NO_TOKEN].tolist()
        if self.silent_sums is not None:
            sound = np.isfinite(self.silent_sums.tolist())
            failed += np.flatnonzero(~self.samples)[~sound].tolist()
        return tuple(sorted(failed))


class Engine:
    """Runs plans in the order of their ids on one model and one KV store.

    With several ranks each has an engine, and all launch the same plans in the same order; `stages`
    are the ranks that hold the same share of the other stages. All ranks of the last stage draw,
    and draw the same; the engines of other stages must be told by `take_landed`.
    `threads` bounds the CPU threads of a kernel (0: as torch has it). `load_grammars` is called in
    a thread of the engine's, and may take its time. `make_proposer` makes who drafts, on the ranks
    that draw. `adapters` are those of the decoder's share; a step waits for what it needs of them.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: KvStore,
        shape: SlotShape,
        *,
        threads: int = 0,
        stages: Collectives = ALONE,
        load_grammars: Callable[[], Grammars] = NoGrammars,
        make_proposer: Callable[[Decoder, Slots], Proposer] | None = None,
        adapters: AdapterCache | None = None,
    ) -> None:
        place = decoder.place
        assert (stages.rank, stages.size) == (place.stage, place.stages)
        self.decoder = decoder
        self.kv = kv
        self._threads = threads
        self._stages = stages
        self.slots = Slots(shape, kv.device)
        self._masks = GrammarMasks(
            load_grammars, shape.slots, decoder.spec.vocabulary_tokens, decoder.kernels.mask_logits
        )
        self._sampler = Sampler(decoder.kernels, self.slots, self._masks)
        self._prompt_scorer = PromptScorer(decoder, self.slots)
        drafts = make_proposer is not None and self.draws
        self._proposer = make_proposer(decoder, self.slots) if drafts and make_proposer else None
        # On the CPU, most steps of most requests: one call instead of some dozens.
        self._joined = decoder.join_step(self.slots.columns, kv) if self.draws else None
        self._adapters = StepAdapters(decoder, adapters or AdapterCache(no_adapter, 0))
        self._pending_samples = PendingSamples()
        self._next_step_id = 0

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the device is done."""
        return self.slots.device.type != "cpu"

    @property
    def draws(self) -> bool:
        """Whether the results of this engine have tokens."""
        return self.decoder.place.is_last

    def adopt_thread(self) -> None:
        """To be called in the thread that launches: OpenMP counts its threads per caller."""
        if self._threads:
            torch.set_num_threads(self._threads)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a step. Its tokens are written into the slots, so the next plan may be launched
        before this one's `result` is read. Raises `RuntimeError` when another rank is gone."""
        assert plan.step_id == self._next_step_id
        self._next_step_id += 1
        self.slots.apply(plan)
        self.kv.invalidate_blocks(self.slots.blocks_to_write(plan))
        draws = Draws.of(plan)
        if self.draws:
            self._masks.place(plan.placements)
            self._masks.drafts_placed(draws)
            if self._proposer:
                self._proposer.sequences_placed(plan.placements)
        if self._joined is not None and self._is_joined(plan):
            return self._launch_joined(self._joined, plan, draws)
        return self._launch_by_operation(plan, draws)

    def _is_joined(self, plan: StepPlan) -> bool:
        """Whether one call knows all that it needs: all rows draw, no drafts are more than
        chains, no weights are added to the model's."""
        return bool(
            not (len(plan.draft_parents) or len(plan.scored_counts))
            and plan.samples.all()
            and not self.slots.has_adapter[plan.slots].any()
        )

    def _launch_joined(self, joined: JoinedStep, plan: StepPlan, draws: Draws) -> LaunchedStep:
        draw_counts = np.ones_like(plan.counts)
        if draws.draft_counts is not None:
            draw_counts += draws.draft_counts
        rows = StepRows(plan.slots, plan.starts, plan.counts, draw_counts)
        if self.slots.plain[plan.slots].all():
            hidden_RC, tokens_R = joined.draw(rows)
            step = LaunchedStep(plan.step_id, plan.samples, tokens_R)
            return self._drawn(plan, draws, hidden_RC, step)
        return self._draw(plan, draws, *joined.logits(rows))

    def _launch_by_operation(self, plan: StepPlan, draws: Draws) -> LaunchedStep:
        """Any plan, operation by operation."""
        hidden_WC = self._forward(token_batch(plan, self.slots, self._adapters))
        if not self.draws:
            self._pending_samples.step_launched(plan, draws)
            return LaunchedStep(plan.step_id, plan.samples)
        prompt_scores = None
        if len(plan.scored_counts):
            # Before anything is drawn, while nothing else of the vocabulary's width is in memory.
            first = len(hidden_WC) - int(plan.scored_counts.sum())
            prompt_scores = self._prompt_scorer.score(plan, hidden_WC[first:])
            hidden_WC = hidden_WC[:first]
        # A row that draws is seen by its draw: a hidden state that is not finite leaves no logit
        # that is. Of the others the sum is finite only if all its terms are.
        hidden_RC, silent_sums = hidden_WC, None
        drawing = drawing_rows(plan)
        if not drawing.all():
            wide = torch.promote_types(hidden_WC.dtype, torch.float32)
            silent_sums = self._some(hidden_WC, ~drawing).sum(dim=1, dtype=wide)
            hidden_RC = self._some(hidden_WC, drawing)
        if not len(draws.row_slots):
            return LaunchedStep(
                plan.step_id, plan.samples, silent_sums=silent_sums, prompt_scores=prompt_scores
            )
        logits_RV = self.decoder.logits(hidden_RC)
        return self._draw(plan, draws, hidden_RC, logits_RV, silent_sums, prompt_scores)

    def take_landed(self, step_id: int, tokens: Sequence[int], counts: Sequence[int] = ()) -> None:
        """What the last stage drew in a step that was launched here too: its tokens, and how many
        each row has (empty: one each). To be told before the plan that goes on from these tokens is
        launched, by the thread that launches."""
        assert not self.draws
        row_slots, positions, kept = self._pending_samples.tokens_landed(
            step_id, np.array(tokens, np.int64), counts
        )
        self._remember(row_slots, positions, torch.from_numpy(kept).to(self.slots.device))

    def run(self, plan: StepPlan) -> StepResult:
        """One step from plan to tokens."""
        return self.launch(plan).result()

    def _draw(
        self,
        plan: StepPlan,
        draws: Draws,
        hidden_RC: Tensor,
        logits_RV: Tensor,
        silent_sums: Tensor | None = None,
        prompt_scores: PendingScores | None = None,
    ) -> LaunchedStep:
        """By all that a request may wish of its draws."""
        tokens_R, logprobs = self._sampler.draw(logits_RV, draws)
        if not draws.trees:
            self._remember(draws.slots, draws.positions, tokens_R)
        step = LaunchedStep(
            plan.step_id, plan.samples, tokens_R, logprobs, silent_sums, prompt_scores
        )
        return self._drawn(plan, draws, hidden_RC, step)

    def _drawn(
        self, plan: StepPlan, draws: Draws, hidden_RC: Tensor, step: LaunchedStep
    ) -> LaunchedStep:
        """Of a step that has drawn: which draws count, and drafts for the next step. Waits for the
        tokens where there are drafts, or shall be."""
        assert step.tokens is not None
        if not (len(plan.draft_counts) or len(plan.proposals)):
            self._masks.tokens_drawn(draws.row_slots, step.tokens)
            return step
        tokens_R = step.tokens.tolist()
        kept = draws.kept(tokens_R)
        counting = draws.counting(kept)
        counts = tuple(map(len, kept))
        self._masks.tokens_kept(draws, [tokens_R[place] for place in counting], counts)
        if draws.trees:
            rows = np.array(counting)
            self._remember(draws.slots[rows], draws.positions[rows], self._some(step.tokens, rows))
            self.kv.move(*self.slots.kv_moves(*draws.moves(kept)))
        proposals: Proposals = ()
        if self._proposer and len(plan.proposals):
            wanted = plan.proposals
            if len(wanted) != len(kept):
                wanted = wanted[plan.samples]
            ends = draws.first_positions + np.array(counts, np.int32)
            proposals = self._proposer.propose(
                Continuations(draws.row_slots, ends, wanted, counts, hidden_RC, counting)
            )
        checked = draws.draft_counts is not None
        return LaunchedStep(
            step.step_id,
            step.samples,
            step.tokens,
            step.logprobs,
            step.silent_sums,
            step.prompt_scores,
            counting if checked else None,
            counts if checked else (),
            proposals,
        )

    def _forward(self, batch: TokenBatch) -> Tensor:
        """hidden_WC of the wanted tokens; before the last stage, what the next goes on from."""
        place, received_XC = self.decoder.place, None
        if not place.is_first:
            received_XC = self.decoder.space_for(len(batch.token_ids))
            self._stages.recv(received_XC, place.stage - 1)
        hidden_XC = self.decoder.forward(batch, self.kv, received_XC)
        if not place.is_last:
            self._stages.send(hidden_XC, place.stage + 1)
        return hidden_XC

    def _some(self, values: Tensor, rows: np.ndarray) -> Tensor:
        """Rows of these numbers, or where it is true."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return values.index_select(0, torch.from_numpy(numbers).to(values.device))

    def _remember(self, row_slots: np.ndarray, positions: np.ndarray, tokens_R: Tensor) -> None:
        # A step that goes on from a row without a token is under way already: any token will do.
        self.slots.write_tokens(row_slots, positions, tokens_R.clamp(min=0))
