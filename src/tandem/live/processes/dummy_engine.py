"""An engine that computes nothing: each step takes as long as a cost model says, and every draw is
the same token. Around it all is real: scheduler, KV blocks and their transfers, gateways. So the
control of a cluster can be tried at the speed of hardware that is not there.
"""

import time
from dataclasses import dataclass

import numpy as np

from tandem.cost.worker import StepShape, StepTime
from tandem.engine.slots import Slots, SlotShape
from tandem.facts.request import TokenLogprobs
from tandem.facts.steps import StepPlan, StepResult
from tandem.kv.store import KvStore
from tandem.live.clock import NS_PER_S, now_ns

# A word, or a part of one, to the tokenizers of the families that are served.
DRAWN_TOKEN = 1518


@dataclass(frozen=True, slots=True)
class EndedStep:
    """One whose time has passed."""

    ended: StepResult

    def result(self) -> StepResult:
        """At once."""
        return self.ended


class DummyEngine:
    """A `StageEngine` of a worker with one rank. Blocks of `kv` are handed out and moved as ever,
    and hold whatever was there."""

    asynchronous = False

    def __init__(
        self, step_time: StepTime, kv: KvStore, shape: SlotShape, vocabulary_tokens: int
    ) -> None:
        self._step_time = step_time
        self._kv = kv
        self._slots = Slots(shape, kv.device)
        self._token = min(DRAWN_TOKEN, vocabulary_tokens - 1)

    def adopt_thread(self) -> None:
        """Any thread will do."""

    def launch(self, plan: StepPlan) -> EndedStep:
        """Returns when the step's time has passed."""
        began_ns = now_ns()
        self._slots.apply(plan)
        self._kv.invalidate_blocks(self._slots.blocks_to_write(plan))
        drawing = plan.slots[plan.samples]
        logprobs: tuple[TokenLogprobs | None, ...] = ()
        if (wants := self._slots.wants_logprobs[drawing]).any():
            logprobs = tuple(TokenLogprobs(0.0, 1) if wanted else None for wanted in wants)
        seconds = self._step_time.seconds(shape_of(plan))
        end_ns = began_ns + round(seconds * NS_PER_S)
        while (left_ns := end_ns - now_ns()) > 0:
            time.sleep(left_ns / NS_PER_S)
        scored = (TokenLogprobs(0.0, 1),) * int(plan.scored_counts.sum())
        tokens = (self._token,) * len(drawing)
        return EndedStep(StepResult(plan.step_id, tokens, logprobs, prompt_logprobs=scored))

    def take_landed(
        self, step_id: int, tokens: tuple[int, ...], counts: tuple[int, ...] = ()
    ) -> None:
        """Of another stage, of which there is none."""
        raise AssertionError(f"step {step_id} drew {tokens} ({counts}) elsewhere")


def shape_of(plan: StepPlan) -> StepShape:
    """What the time of this step depends on."""
    rows = list(zip(plan.starts.tolist(), plan.counts.tolist(), strict=True))
    decodes = [start + 1 for start, count in rows if count == 1]
    return StepShape(
        chunks=tuple((start, count) for start, count in rows if count > 1),
        decode_sequences=len(decodes),
        decode_context_tokens=sum(decodes),
        sampled_rows=int(np.count_nonzero(plan.samples)),
    )
