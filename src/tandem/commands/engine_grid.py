"""The engine's part of a calibration: times its steps over a grid of shapes and fits a step time to
them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from tandem.bench.load import start_clock
from tandem.commands.terminal import plain_table
from tandem.config.hardware.worker import PROFILE_VERSION
from tandem.config.memory import model_facts
from tandem.config.options import ServeOptions
from tandem.config.resolve import ServerPlan, machine_facts, resolve
from tandem.config.speculation import NO_DRAFT_MEMORY
from tandem.cost.fitted import COEFFICIENTS, FittedStepTime, TimedStep, fit, to_fields
from tandem.cost.worker import StepShape
from tandem.engine.engine import Engine
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import StepPlan
from tandem.kernels.faces import choose_kernels
from tandem.kv.store import KvStore
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm

PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps to time: each of `chunks` tokens after each of `contexts`, with and without a sampled
    row; each of `batches` decodes at each of `contexts`."""

    chunks: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    repeats: int

    def shapes(self, plan: ServerPlan) -> list[StepShape]:
        """Those that a server of this plan can run."""
        everything = [*self._prefills(plan), *self._decodes(plan)]
        return [shape for shape in everything if _blocks(shape, plan) <= plan.worker.block_count]

    def _prefills(self, plan: ServerPlan) -> Iterator[StepShape]:
        for count in self.chunks:
            for start in self.contexts:
                fits = start + count < plan.worker.context_tokens
                if fits and count <= plan.worker.batching.max_batched_tokens:
                    yield StepShape(chunks=((start, count),))
                    yield StepShape(chunks=((start, count),), sampled_rows=1)

    def _decodes(self, plan: ServerPlan) -> Iterator[StepShape]:
        for sequences in self.batches:
            for context in self.contexts:
                attended = max(1, context)
                if attended < plan.worker.context_tokens and sequences <= plan.slots.slots:
                    yield StepShape((), sequences, sequences * attended, sequences)


@dataclass(frozen=True)
class TimedEngine:
    """An engine alone: the steps that were timed, and the step time that is fitted to them."""

    step_time: FittedStepTime
    samples: Sequence[TimedStep]


def time_engine(
    directory: Path, options: ServeOptions, grid: Grid, console: Console
) -> tuple[TimedEngine, ServerPlan]:
    """Load the model, time the grid, fit, show. Raises `InvalidConfiguration`."""
    engine, plan = load_engine(directory, options)
    shapes = grid.shapes(plan)
    if not shapes:
        raise InvalidConfiguration(
            "no step of this grid fits; choose smaller --chunks, --batches and --contexts"
        )
    with console.status(f"timing {len(shapes)} kinds of steps …"):
        samples = time_steps(engine, plan, shapes, grid.repeats)
    timed = TimedEngine(fit(samples), samples)
    console.print(_table(timed))
    return timed, plan


def load_engine(directory: Path, options: ServeOptions) -> tuple[Engine, ServerPlan]:
    """An engine as a server would have it. Its KV cache is cleared: attention to memory that was
    never written may meet numbers that are slow to compute with."""
    facts = replace(model_facts(directory, options), drafts=NO_DRAFT_MEMORY)
    plan = resolve(options, facts, machine_facts())
    spec = replace(facts.spec, context_tokens=plan.worker.context_tokens)
    torch.set_num_threads(plan.threads)
    compute = torch.float32 if plan.device.type == "cpu" else getattr(torch, plan.storage)
    kernels, _ = choose_kernels(
        *(plan.device, compute, options.native_kernels),
        *(plan.arithmetic(options.arithmetic), options.instruction_set),
    )
    load = LoadPlan(
        directory,
        WeightForm(plan.storage, compute, plan.device, plan.as_stored),
        "dummy" if options.load_format == "dummy" else "safetensors",
        options.seed,
    )
    decoder = load_decoder(spec, load, kernels)
    kv = KvStore(plan.layout, plan.worker.block_count, plan.device)
    kv.pool_BL2KSD.zero_()
    return Engine(decoder, kv, plan.slots, threads=plan.threads), plan


def time_steps(
    engine: Engine, plan: ServerPlan, shapes: list[StepShape], repeats: int
) -> list[TimedStep]:
    """The median of each shape's runs. The whole grid runs `repeats` times, after once for warmth,
    so that a slow moment of the machine meets each shape once."""
    clock = start_clock()
    runs: list[list[float]] = [[] for _ in shapes]
    step_id = 0
    for repeat in range(repeats + 1):
        for shape, seconds in zip(shapes, runs, strict=True):
            step = step_plan(step_id, shape, plan)
            started_s = clock()
            engine.run(step)
            if repeat:
                seconds.append(clock() - started_s)
            step_id += 1
    return [TimedStep(s, median(seconds)) for s, seconds in zip(shapes, runs, strict=True)]


def step_plan(step_id: int, shape: StepShape, plan: ServerPlan) -> StepPlan:
    """A step of this shape: each row in a slot and in blocks of its own; tokens are whatever the
    slots hold, as times do not depend on them."""
    rows = _rows(shape)
    tables: list[tuple[int, int]] = []
    for slot, (start, count) in enumerate(rows):
        blocks = -(-(start + count) // plan.worker.block_size)
        tables += [(slot, index) for index in range(blocks)]
    counts = np.array([count for _, count in rows], np.int32)
    samples = np.zeros(len(rows), np.bool_)
    samples[len(rows) - shape.sampled_rows :] = True
    return StepPlan(
        step_id=step_id,
        placements=(),
        slots=np.arange(len(rows), dtype=np.int32),
        starts=np.array([start for start, _ in rows], np.int32),
        counts=counts,
        samples=samples,
        table_slots=np.array([slot for slot, _ in tables], np.int32),
        table_indices=np.array([index for _, index in tables], np.int32),
        table_blocks=np.arange(len(tables), dtype=np.int32),
    )


def engine_record(timed: TimedEngine) -> dict[str, Any]:
    """The engine's part of a profile: coefficients, error of the fit in percent of the measured
    time, and every timed step."""
    fitted, samples = timed.step_time, timed.samples
    errors = sorted(100 * abs(_error(fitted, sample)) for sample in samples)
    return {
        "version": PROFILE_VERSION,
        "fitted": to_fields(fitted),
        "error": {
            "median_percent": round(median(errors), 3),
            "p90_percent": round(errors[int(PERCENTILE * (len(errors) - 1))], 3),
        },
        "samples": [
            {**msgspec.structs.asdict(sample.shape), "seconds": sample.seconds}
            for sample in samples
        ],
    }


def _rows(shape: StepShape) -> list[tuple[int, int]]:
    """(tokens before, tokens now) of each row."""
    decodes = shape.decode_sequences
    context = shape.decode_context_tokens // decodes if decodes else 0
    return [*shape.chunks, *[(context - 1, 1)] * decodes]


def _blocks(shape: StepShape, plan: ServerPlan) -> int:
    return sum(-(-(start + count) // plan.worker.block_size) for start, count in _rows(shape))


def _error(fitted: FittedStepTime, sample: TimedStep) -> float:
    return fitted.seconds(sample.shape) / sample.seconds - 1


def _table(timed: TimedEngine) -> Table:
    fitted = timed.step_time
    figures = ("measured ms", "fitted ms", "error")
    table = plain_table("step", *figures, right=figures)
    for sample in timed.samples:
        shape = sample.shape
        if shape.chunks:
            start, count = shape.chunks[0]
            step = f"{count} tokens after {start}" + (", sampled" if shape.sampled_rows else "")
        else:
            context = shape.decode_context_tokens // shape.decode_sequences
            step = f"{shape.decode_sequences} decodes at {context}"
        table.add_row(
            step,
            f"{sample.seconds * 1e3:.3f}",
            f"{fitted.seconds(shape) * 1e3:.3f}",
            f"{100 * _error(fitted, sample):+.1f} %",
        )
    table.add_section()
    for name in COEFFICIENTS:
        table.add_row(name, "", f"{getattr(fitted, name) * 1e3:.3g}", "")
    return table
