"""How long prompt tokens take on one kind of worker, as one curve that is cheap to ask."""

from tandem.cost.step import StepShape
from tandem.cost.worker import WorkerCost


class PrefillCurve:
    """The seconds that a step time asks for the first so many tokens of a prompt, chunk by chunk.

    A router asks for a thousand workers at once, so the sums are kept: exact at whole chunks,
    linear in between. The curve is convex, as later chunks attend to more; what lies between two
    points is therefore never cheaper for starting earlier. It remembers nothing but values of a
    pure function.
    """

    def __init__(self, cost: WorkerCost) -> None:
        self.cost = cost
        self.chunk_tokens = cost.chunk_tokens
        self.stages = cost.step_time.stages
        # Reading the weights once: what a step takes however little it computes.
        self.step_s = cost.step_time.decode_seconds(1, 1)
        self._sums = [0.0]
        self.chunk_s = self._until_chunk(1)

    def seconds(self, tokens: float) -> float:
        """Compute the first `tokens` of a prompt, alone, in one stage of the pipeline."""
        whole = int(tokens // self.chunk_tokens)
        after = self._until_chunk(whole + 1)
        before = self._sums[whole]
        return before + (after - before) * (tokens / self.chunk_tokens - whole)

    def between(self, context_tokens: int, prompt_tokens: int) -> float:
        """Compute the prompt from `context_tokens` on. The last chunk is half full on average, and
        a step takes at least `step_s`: half of one is added."""
        return self.seconds(prompt_tokens) - self.seconds(context_tokens) + self.step_s / 2

    def fill_seconds(self, compute_s: float) -> float:
        """What one prompt waits for in a pipeline: its first chunk passes all stages."""
        return (self.stages - 1) * min(compute_s, self.chunk_s)

    def queue_seconds(self, queued_tokens: int) -> float:
        """Work off prompts of which only the sum is known: their chunks fill the steps, and their
        attention to earlier chunks of their own, which nobody reported, is left out."""
        if not queued_tokens:
            return 0.0
        return queued_tokens / self.chunk_tokens * self.chunk_s + self.step_s / 2

    def _until_chunk(self, chunks: int) -> float:
        while len(self._sums) <= chunks:
            context_tokens = (len(self._sums) - 1) * self.chunk_tokens
            shape = StepShape(chunks=((context_tokens, self.chunk_tokens),), sampled_rows=1)
            self._sums.append(self._sums[-1] + self.cost.step_time.seconds(shape))
        return self._sums[chunks]
