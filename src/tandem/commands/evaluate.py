"""`tandem eval`: how well a served model recalls, calculates, calls tools and speaks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table

from tandem.bench.client import Client, Endpoint
from tandem.bench.tasks.chat import HttpChat
from tandem.bench.tasks.evaluation import EvaluationSettings, SuiteScore, choose_suites, evaluate
from tandem.commands.late_imports import part
from tandem.commands.options import ServerOptions, flag, flags, with_options
from tandem.commands.terminal import plain_table, print_title, progress_bars
from tandem.config.checkpoints import check_model
from tandem.config.options import ServeOptions
from tandem.report.documents import require_folder, write_json


@flags
class EvaluationOptions:
    """What is asked and where the answers go."""

    tasks: str | None = flag("Suites, as recall-1k,arithmetic. (default: all)", default=None)
    samples: int | None = flag(
        "Tasks a suite. (default: the suite's own number)", default=None, min=1
    )
    seed: int = flag("Same seed, same tasks.", default=0, min=0)
    concurrency: int = flag("Chats asked at once.", default=8, min=1)
    output: Path | None = flag("Writes tasks and replies as JSON.", default=None)
    progress: bool = flag("Show a progress bar.", default=True)
    in_process: bool = flag(
        "Serve the bundled model here and measure it.", "--in-process", default=False
    )
    checkpoint: Path | None = flag("Serve this checkpoint in process and measure it.", default=None)

    def settings(self) -> EvaluationSettings:
        """Raises `InvalidConfiguration` for an unknown suite."""
        return EvaluationSettings(
            choose_suites(self.tasks), self.samples, self.seed, self.concurrency
        )


@with_options
def evaluate_command(server: ServerOptions, options: EvaluationOptions) -> None:
    """Measure the skills of a served model with tasks that it has not seen in training.

    Recall at several context lengths, arithmetic with written steps and by majority vote, tool
    calls, and whether it speaks whole sentences.
    """
    options.settings()  # a wrong suite is said before anything is loaded
    require_folder(options.output, "--output")
    in_process = options.in_process or options.checkpoint is not None
    measuring = evaluate_here if in_process else _evaluate
    name, scores = asyncio.run(measuring(server, options))
    _show_scores(name, scores, options)


def _show_scores(name: str, scores: Sequence[SuiteScore], options: EvaluationOptions) -> None:
    """The table, and the JSON file if one is wanted."""
    console = Console()
    print_title(console, f"{name}, seed {options.seed}")
    console.print(score_table(scores))
    for score in scores:
        for reason, count in score.failures.items():
            console.print(
                f"{score.suite.name}: {count} without a reply: {reason}", style="red", markup=False
            )
    if options.output is not None:
        document = _document(name, options.seed, scores)
        write_json(options.output, document, "--output")


def score_table(scores: Sequence[SuiteScore]) -> Table:
    """One row a suite."""
    figures = ("n", "score", "95 % interval", "target")
    table = plain_table("task", *figures, "", right=figures)
    for score in scores:
        low, high = score.interval
        target = score.suite.target
        verdict = "" if target is None else "[red]missed[/red]"
        if target is not None and score.share >= target:
            verdict = "[green]reached[/green]"
        table.add_row(
            score.suite.name,
            str(len(score.judged)),
            f"{score.share:.1%}",
            f"{low:.1%} - {high:.1%}",
            "" if target is None else f"{target:.0%}",
            verdict,
        )
    return table


def _document(name: str, seed: int, scores: Sequence[SuiteScore]) -> dict[str, Any]:
    """What the JSON file holds: every task with its replies, so that a verdict can be checked."""
    return {
        "model": name,
        "seed": seed,
        "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "suites": [
            {
                "task": score.suite.name,
                "n": len(score.judged),
                "right": score.right,
                "score": score.share,
                "target": score.suite.target,
                "wilson_95": score.interval,
                "votes": score.suite.votes,
                "temperature": score.suite.temperature,
                "tasks": [
                    {
                        "messages": entry.task.messages,
                        "answer": entry.task.answer,
                        "replies": entry.replies,
                        "right": entry.right,
                        "prompt_tokens": entry.prompt_tokens,
                        "error": entry.error,
                    }
                    for entry in score.judged
                ],
            }
            for score in scores
        ],
    }


async def evaluate_here(
    server: ServerOptions, options: EvaluationOptions
) -> tuple[str, list[SuiteScore]]:
    """Serves the checkpoint that the options name, or the bundled model, and measures it."""
    checkpoint = str(options.checkpoint) if options.checkpoint else None
    check_model(checkpoint, ServeOptions())
    # torch takes seconds to import; who measures a running server should not wait for it.
    assembly = part("server")
    here = assembly.assemble(checkpoint, ServeOptions())
    async with assembly.served_in_process(here) as url:
        # A key in the environment guards this server too.
        key = next(iter(here.api.api_keys), None)
        return await _evaluate(replace(server, url=url, api_key=key), options)


async def _evaluate(
    server: ServerOptions, options: EvaluationOptions
) -> tuple[str, list[SuiteScore]]:
    """With a bar for each suite on the terminal."""
    settings = options.settings()
    async with Client(Endpoint(server.url, server.api_key, server.timeout_s)) as client:
        model = await client.choose_model(server.model)
        with progress_bars(options.progress, MofNCompleteColumn()) as progress:
            bars = {
                suite.name: progress.add_task(suite.name, total=settings.samples or suite.samples)
                for suite in settings.suites
            }
            chat = HttpChat(client, model.id)
            scores = await evaluate(chat, settings, lambda each: progress.advance(bars[each.name]))
        return model.id, scores
