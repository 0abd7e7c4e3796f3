"""Costs of a worker corrected by what was measured of it."""

from dataclasses import replace

from msgspec import Struct

from tandem.cost.worker import LinkCost, StepShape, StepTime, WorkerCost
from tandem.facts.correction import UNCORRECTED, Correction


def corrected(listed: WorkerCost, correction: Correction) -> WorkerCost:
    """The costs with the correction; the listed ones themselves where there is none."""
    if correction == UNCORRECTED:
        return listed
    step_time, network = listed.step_time, listed.network
    if (correction.decode, correction.prefill) != (1.0, 1.0):
        step_time = CorrectedStepTime(step_time, correction.decode, correction.prefill)
    if correction.network != 1.0:
        factor = correction.network
        network = LinkCost(network.bytes_per_s / factor, network.latency_s * factor)
    return replace(listed, step_time=step_time, network=network, correction=correction)


class CorrectedStepTime(Struct, frozen=True):
    """A step time whose decode steps and prompt steps take other factors of the `listed` seconds. A
    prompt chunk in a step never makes it shorter: the decodes in it take what they take alone."""

    listed: StepTime
    decode: float
    prefill: float

    @property
    def stages(self) -> int:
        return self.listed.stages

    def seconds(self, shape: StepShape) -> float:
        listed_s = self.listed.seconds(shape)
        if not shape.chunks:
            return self.decode * listed_s
        decodes_s = 0.0
        if shape.decode_sequences and self.decode > self.prefill:
            sampled_rows = min(shape.sampled_rows, shape.decode_sequences)
            alone = StepShape((), shape.decode_sequences, shape.decode_context_tokens, sampled_rows)
            decodes_s = self.decode * self.listed.seconds(alone)
        return max(self.prefill * listed_s, decodes_s)

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        return self.decode * self.listed.decode_seconds(sequences, context_tokens)
