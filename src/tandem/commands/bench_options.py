"""The flags of `tandem bench`, and the load and the workload that they mean."""

from dataclasses import dataclass
from pathlib import Path

from tandem.bench.laws import Arrivals, Process, parse_length_law, read_length_pairs
from tandem.bench.load import CHAT_PATH, COMPLETION_PATH
from tandem.bench.workload import (
    Conversation,
    Replay,
    Synthetic,
    arrive,
    clip_prompts,
    plan_replay,
    plan_synthetic,
)
from tandem.commands.options import flag, flags, positive_numbers
from tandem.commands.workloads import TraceOptions, read_workload
from tandem.facts.errors import InvalidConfiguration
from tandem.report.measured import LoadPoint

_DEFAULT_PROMPTS = 100
_DEFAULT_CONCURRENCY = 8


@flags
class LoadOptions:
    """How hard and in which rhythm to push."""

    num_prompts: int | None = flag(
        "Requests to send. (default: 100, or the whole trace)",
        "--num-prompts",
        "--requests",
        default=None,
        min=1,
    )
    rate: str | None = flag(
        "Requests a second; 1,2,4 sweeps; inf sends all at once. "
        "(default: no rate; the next request starts when one ends)",
        "--rate",
        "--request-rate",
        default=None,
    )
    concurrency: str | None = flag(
        "Requests in flight at most; without --rate the load itself, and 1,2,4 sweeps. "
        "(default: 8 without --rate, else no bound)",
        "--concurrency",
        "--max-concurrency",
        default=None,
    )
    arrival: Process = flag(
        "Law of the gaps; burst is gamma with --burstiness.", default=Process.POISSON
    )
    burstiness: float = flag("Gamma shape: 1 is Poisson, smaller comes in bunches.", default=1.0)
    warmup: int = flag(
        "Requests before, not counted.", "--warmup", "--num-warmups", default=4, min=0
    )
    seed: int = flag("Same seed, same requests.", default=0, min=0)

    def points(self, traced: bool) -> list[LoadPoint]:
        """The loads to run, as given; a trace without rate or concurrency runs as recorded."""
        rates = _numbers(self.rate, "--rate")
        limits = [_whole(number) for number in _numbers(self.concurrency, "--concurrency")]
        if len(rates) > 1 and len(limits) > 1:
            raise InvalidConfiguration("--rate and --concurrency cannot both be lists")
        if rates:
            limit = limits[0] if limits else None
            if len(limits) > 1:
                return [LoadPoint(rates[0], limit) for limit in limits]
            return [LoadPoint(rate, limit) for rate in rates]
        if not limits and not traced:
            limits = [_DEFAULT_CONCURRENCY]
        return [LoadPoint(None, limit) for limit in limits] or [LoadPoint()]

    def arrivals(self, rate_rps: float) -> Arrivals:
        process = self.arrival
        if self.burstiness != 1.0 and process is Process.POISSON:
            # vLLM's spelling: --burstiness alone asks for the gamma law.
            process = Process.BURST
        return Arrivals(rate_rps, process, self.burstiness)


@flags
class PromptOptions:
    """What is asked."""

    input_tokens: str = flag(
        "Prompt length: 256, uniform:100-500, normal:256,64 or lognormal:256,200.",
        "--input-tokens",
        "--random-input-len",
        default="256",
    )
    output_tokens: str = flag(
        "Answer length, likewise.", "--output-tokens", "--random-output-len", default="64"
    )
    lengths_file: Path | None = flag(
        "CSV(.gz) of prompt and answer lengths to draw from, as ShareGPT's.", default=None
    )
    max_input_tokens: int | None = flag("Cuts longer prompts to this.", default=None, min=1)
    shared_prefix_tokens: int = flag(
        "Tokens that prompts share, before their own.",
        "--shared-prefix-tokens",
        "--random-prefix-len",
        default=0,
        min=0,
    )
    prefix_groups: int = flag("How many different shared prefixes there are.", default=1, min=1)
    turns: int = flag("Requests a conversation.", default=1, min=1)
    think_time_s: float = flag("Pause between two turns.", default=0.0, min=0.0)
    endpoint: str = flag(f"{COMPLETION_PATH} or {CHAT_PATH} (text only).", default=COMPLETION_PATH)
    text: bool = flag("Send words instead of token ids.", "--text", default=False)
    vocabulary: int | None = flag(
        "Token ids below this. (default: ask the server)", default=None, min=2
    )
    ignore_eos: bool = flag("Answers are exactly as long as asked.", default=True)
    temperature: float = flag("0 is greedy.", default=0.0, min=0.0)


@flags
class ReportOptions:
    """What is done with the results."""

    slo: list[str] | None = flag(
        "Bounds for goodput: ttft=500ms,tpot=50ms,e2e=10s.", "--slo", "--goodput", default=None
    )
    output: Path | None = flag("Writes everything as JSON.", default=None)
    records: Path | None = flag("Writes one JSON line a request; usable as --trace.", default=None)
    plot: Path | None = flag(
        "Draws the results: .html (plotly) or .png (matplotlib).", default=None
    )
    progress: bool = flag("Show a progress bar.", default=True)


@dataclass(frozen=True)
class BenchOptions:
    """All that decides the workload, together."""

    load: LoadOptions
    prompts: PromptOptions
    trace: TraceOptions

    def points(self) -> list[LoadPoint]:
        """The loads to run. Raises `InvalidConfiguration` for what no run could use."""
        points = self.load.points(traced=self.trace.trace is not None)
        for point in points:
            self.load.arrivals(point.rate_rps or 1.0)
        return points

    def plan(self) -> list[Conversation]:
        """The requests, with the trace's arrivals or all at 0. Raises `InvalidConfiguration`."""
        if self.prompts.endpoint not in (COMPLETION_PATH, CHAT_PATH):
            raise InvalidConfiguration(
                f"--endpoint must be {COMPLETION_PATH} or {CHAT_PATH}, "
                f"got {self.prompts.endpoint!r}"
            )
        planned = self._replay() if self.trace.trace is not None else self._synthetic()
        limit_tokens = self.prompts.max_input_tokens
        return planned if limit_tokens is None else clip_prompts(planned, limit_tokens)

    def at(self, point: LoadPoint, planned: list[Conversation]) -> list[Conversation]:
        """The same requests arriving as a load point wants it."""
        if point.rate_rps is None:
            return planned
        return arrive(planned, self.load.arrivals(point.rate_rps), self.load.seed)

    def _replay(self) -> list[Conversation]:
        trace = self.trace
        assert trace.trace is not None
        if self.prompts.turns > 1 or self.prompts.shared_prefix_tokens:
            raise InvalidConfiguration("--turns and --shared-prefix-tokens do not go with --trace")
        rows = tuple(read_workload(trace.trace)[: self.load.num_prompts])
        return plan_replay(
            Replay(rows, trace.speed, trace.scale_lengths, trace.spread_s, self.load.seed)
        )

    def _synthetic(self) -> list[Conversation]:
        prompts = self.prompts
        pairs = None if prompts.lengths_file is None else read_length_pairs(prompts.lengths_file)
        return plan_synthetic(
            Synthetic(
                num_prompts=self.load.num_prompts or _DEFAULT_PROMPTS,
                input_law=parse_length_law(prompts.input_tokens, "--input-tokens"),
                output_law=parse_length_law(prompts.output_tokens, "--output-tokens"),
                length_pairs=pairs,
                shared_prefix_tokens=prompts.shared_prefix_tokens,
                prefix_groups=prompts.prefix_groups,
                turns=prompts.turns,
                think_s=prompts.think_time_s,
                seed=self.load.seed,
            )
        )


def _numbers(text: str | None, flag: str) -> list[float]:
    return [] if text is None else positive_numbers(text, flag, "1,2,4")


def _whole(number: float) -> int:
    if number != number // 1:
        raise InvalidConfiguration(f"--concurrency must be a whole number, got {number:g}")
    return int(number)
