"""A whole compression: gathers texts, writes the folder, asks both models their tasks if that is
wanted, and tells what came of it, on the terminal and in compression.json beside the weights."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table

from tandem.bench.tasks.evaluation import SuiteScore
from tandem.commands.compress import TextOptions
from tandem.commands.compression_texts import (
    PIECE_TOKENS,
    TextBudget,
    TextEncoder,
    gather_texts,
    read_samples,
    task_samples,
)
from tandem.commands.evaluate import EvaluationOptions, evaluate_here
from tandem.commands.options import ServerOptions
from tandem.commands.terminal import bytes_text, plain_table, print_title, progress_bars
from tandem.models.compression.compress import (
    Compressed,
    JudgedText,
    Texts,
    compress_checkpoint,
)
from tandem.models.compression.plans import QuantisationPlan, ZerosPlan
from tandem.models.compression.scheme import PruningPlan, Recipe
from tandem.models.configuration import read_model_spec
from tandem.report.documents import write_json

REPORT_NAME = "compression.json"


def compress(
    model: Path, out: Path, wanted: Recipe | PruningPlan, options: TextOptions, console: Console
) -> None:
    """Makes the folder `out` and prints the report. Raises `InvalidConfiguration`."""
    spec = read_model_spec(model)
    encoder = TextEncoder(model)
    given = options.calibration
    samples = task_samples(encoder, options.seed)
    if given is not None:
        samples = read_samples(given.expanduser())
    piece_tokens = min(PIECE_TOKENS, spec.context_tokens)
    budget = TextBudget(options.calibration_tokens, options.held_out_tokens, piece_tokens)
    gathered = gather_texts(samples, encoder, budget)
    plan = QuantisationPlan(wanted) if isinstance(wanted, Recipe) else ZerosPlan(wanted)
    with progress_bars(options.progress, MofNCompleteColumn()) as progress:
        bar = progress.add_task("layers", total=spec.layers)
        texts = Texts(
            [text.ids for text in gathered.calibration],
            [JudgedText(text.ids, text.first) for text in gathered.held_out],
        )
        done = compress_checkpoint(model, out, plan, texts, lambda: progress.advance(bar))
    document: dict[str, Any] = {
        "model": str(model),
        "wanted": asdict(wanted),
        "calibration": "tasks" if given is None else str(given),
        "calibration_tokens": sum(len(text.ids) for text in gathered.calibration),
        **asdict(done),
    }
    write_json(out / REPORT_NAME, document, "--out")
    print_title(console, f"{model.name}, {title(wanted)}")
    console.print(quality_table(done))
    if options.evaluate:
        scores = asyncio.run(_evaluate_both(model, out, options))
        document["suites"] = [_suite(*pair) for pair in zip(*scores, strict=True)]
        write_json(out / REPORT_NAME, document, "--out")
        console.print()
        console.print(suites_table(*scores))
    console.print(f"\n{done.matrices} matrices; {out}", soft_wrap=True, markup=False)


def title(wanted: Recipe | PruningPlan) -> str:
    """What was done, in a few words."""
    if isinstance(wanted, PruningPlan):
        share = "2 of 4" if wanted.of_four else f"{wanted.sparsity:.0%}"
        return f"{share} of the weights zero by {wanted.criterion}"
    group = wanted.scheme.group_size
    kind = "" if group is None else f", groups of {group}"
    return f"{wanted.scheme.name} by {wanted.method}{kind}"


def quality_table(done: Compressed) -> Table:
    """Bytes and perplexity of both, and how far the compressed one's logits are off."""
    quality = done.quality
    table = plain_table("", "original", "compressed", right=("original", "compressed"))
    table.add_row("weights", bytes_text(done.bytes_before), bytes_text(done.bytes_after))
    table.add_row(
        f"perplexity of {quality.tokens:,} tokens",
        f"{quality.perplexity_before:.4g}",
        f"{quality.perplexity_after:.4g}",
    )
    table.add_row("logit error, mean", "", f"{quality.mean_error:.3g}")
    table.add_row("logit error, largest", "", f"{quality.largest_error:.3g}")
    table.add_row("divergence, nats", "", f"{quality.divergence:.3g}")
    table.add_row("same most likely token", "", f"{quality.same_choice:.1%}")
    return table


def suites_table(before: Sequence[SuiteScore], after: Sequence[SuiteScore]) -> Table:
    """One row a suite, with 95 % Wilson intervals."""
    figures = ("n", "original", "compressed")
    table = plain_table("task", *figures, right=figures)
    for one, other in zip(before, after, strict=True):
        table.add_row(one.suite.name, str(len(one.judged)), _share(one), _share(other))
    return table


def _share(score: SuiteScore) -> str:
    low, high = score.interval
    return f"{score.share:.1%} ({low:.1%} - {high:.1%})"


def _suite(before: SuiteScore, after: SuiteScore) -> dict[str, Any]:
    both = {"before": before, "after": after}
    scores = {
        name: {"right": score.right, "score": score.share, "wilson_95": score.interval}
        for name, score in both.items()
    }
    return {"task": before.suite.name, "n": len(before.judged), **scores}


async def _evaluate_both(
    model: Path, out: Path, options: TextOptions
) -> tuple[list[SuiteScore], list[SuiteScore]]:
    """The same tasks for both, each served in this process, one after the other."""
    asked = EvaluationOptions(
        tasks=options.tasks,
        samples=options.samples,
        seed=options.seed,
        progress=options.progress,
        in_process=True,
    )
    _, before = await evaluate_here(ServerOptions(), replace(asked, checkpoint=model))
    _, after = await evaluate_here(ServerOptions(), replace(asked, checkpoint=out))
    return before, after
