"""What drawn samples come to: the accuracy of every gang by the policy that decides for the server,
as tables and as a picture beside what was timed."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from rich.console import Console
from rich.table import Table

from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.evaluation import wilson_interval
from tandem.bench.tasks.task import Task
from tandem.policy.scaling.contract import Method, Sample, SampleState, ScalingPlan
from tandem.policy.scaling.policies import decide

# Of the gangs that are compared; as many are drawn as the largest has.
SAMPLES = (2, 4, 8, 16)
MOST_SAMPLES = 16
RESAMPLES = 2000
COLOURS = ("#0072B2", "#CC79A7", "#56B4E9", "#009E73")
_PRODUCT = re.compile(r"\d\d \* \d\d")
# The outcomes of each way on each set of questions, in their order.
Results = dict[str, list[Any]]


def is_product(task: Task) -> bool:
    """Whether it asks for a product of two digits by two."""
    return _PRODUCT.search(task.messages[0]["content"]) is not None


def decided(plan: ScalingPlan, drawn: list[list[Any]]) -> tuple[str | None, int]:
    """The answer of a gang with these samples, and how many it started: as many as run at the same
    time end together."""
    ended = [
        Sample(SampleState.FINISHED, answer, math.exp(logprob) if plan.scored else 0.0)
        for answer, logprob in drawn
    ]
    samples: list[Sample] = []
    while (decision := decide(plan, samples, 0)).winner is None:
        samples = ended[: len(samples) + decision.start]
    return drawn[decision.winner][0], len(samples)


def gangs() -> dict[str, list[ScalingPlan]]:
    """Plans of 1 to 16 samples."""

    def plans(method: Method, **terms: Any) -> list[ScalingPlan]:
        return [ScalingPlan(method, samples=k, parallel=k, **terms) for k in (1, *SAMPLES)]

    return {
        "self-consistency": plans(Method.SELF_CONSISTENCY),
        "best of n by log-probability": plans(Method.BEST_OF_N, votes=False, scored=True),
        "best of n, scores add up": plans(Method.BEST_OF_N, scored=True),
        "up to 16, 4 at a time, confidence 0.95": [
            ScalingPlan(Method.SELF_CONSISTENCY, samples=16, parallel=4, confidence=0.95)
        ],
    }


@dataclass(frozen=True)
class Drawn:
    """What drawn samples come to: which of the questions are right, and samples a question."""

    right: list[bool]
    samples: float


def judged(plan: ScalingPlan, tasks: list[Task], rows: list[list[list[Any]]]) -> Drawn:
    found = [decided(plan, row) for row in rows]
    right = [answer == task.answer for (answer, _), task in zip(found, tasks, strict=True)]
    return Drawn(right, fmean(count for _, count in found))


def drawn_sets(kept: Results) -> dict[str, tuple[list[Task], list[int]]]:
    """The drawn questions with their places, and those among them that are hard."""
    count = len(kept["drawn 0"])
    tasks = [arithmetic(Random(f"arithmetic 0 {number}")) for number in range(count)]
    hard = [n for n, task in enumerate(tasks) if is_product(task)]
    return {
        "all": (tasks, list(range(count))),
        "products of two digits by two": ([tasks[n] for n in hard], hard),
    }


def show_drawn(kept: Results, temperatures: Sequence[float]) -> None:
    """A table for each set of questions."""
    for name, (tasks, places) in drawn_sets(kept).items():
        table = Table(title=f"drawn, {name}: {len(tasks)} questions")
        for column in ("", "T", "right %", "95 %", "over greedy", "samples"):
            table.add_column(column, justify="left" if not column else "right")
        greedily = [
            kept["drawn 0"][n][0][0] == task.answer for n, task in zip(places, tasks, strict=True)
        ]
        _add(table, "greedy", 0.0, Drawn(greedily, 1.0), greedily)
        for temperature in temperatures:
            rows = [kept[f"drawn {temperature:g}"][n] for n in places]
            for label, plans in gangs().items():
                for plan in plans:
                    found = judged(plan, tasks, rows)
                    _add(table, f"{label}, {plan.samples}", temperature, found, greedily)
            either = [
                any(answer == task.answer for answer, _ in row)
                for task, row in zip(tasks, rows, strict=True)
            ]
            _add(table, "any of 16 is right", temperature, Drawn(either, 16.0), greedily)
        Console(width=130).print(table)


def _add(table: Table, label: str, temperature: float, found: Drawn, greedily: list[bool]) -> None:
    low, high = wilson_interval(sum(found.right), len(found.right))
    gain, least, most = gain_interval(found.right, greedily)
    table.add_row(
        label,
        f"{temperature:g}",
        f"{100 * fmean(found.right):.1f}",
        f"{100 * low:.1f}-{100 * high:.1f}",
        f"{gain:+.1f} ({least:+.1f} to {most:+.1f})",
        f"{found.samples:.1f}",
    )


def gain_interval(ours: list[bool], theirs: list[bool]) -> tuple[float, float, float]:
    """By how many points of accuracy ours is better on the same questions, and the 95 % interval
    of a paired bootstrap."""
    differences = [int(a) - int(b) for a, b in zip(ours, theirs, strict=True)]
    rng = Random(0)
    drawn = sorted(fmean(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    low, high = drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40]
    return 100 * fmean(differences), 100 * low, 100 * high


def draw(kept: Results, timed: dict[str, Results], temperature: float, path: Path) -> None:
    """Accuracy over samples for each set of drawn questions, and latency over samples."""
    figure = Figure(figsize=(13, 4.4), dpi=110, facecolor="white", layout="constrained")
    figure.suptitle(
        "Inference-time scaling of tandem-mini on arithmetic",
        x=0.01, ha="left", fontsize=13, fontweight="bold",
    )  # fmt: skip
    panels = figure.subplots(1, 3)
    for axes, (name, (tasks, places)) in zip(panels, drawn_sets(kept).items(), strict=False):
        rows = [kept[f"drawn {temperature:g}"][n] for n in places]
        for (label, plans), colour in zip(gangs().items(), COLOURS, strict=True):
            found = [judged(plan, tasks, rows) for plan in plans]
            _plot_shares(axes, [each.samples for each in found], found, label, colour)
        greedily = [
            kept["drawn 0"][n][0][0] == task.answer for n, task in zip(places, tasks, strict=True)
        ]
        either = [
            any(answer == task.answer for answer, _ in row)
            for task, row in zip(tasks, rows, strict=True)
        ]
        for label, right in (("greedy", greedily), ("any of the 16 is right", either)):
            share = 100 * fmean(right)
            axes.axhline(share, color="black", linewidth=1, linestyle=":")
            axes.annotate(label, (16, share), (0, 3), textcoords="offset points", fontsize=8,
                          ha="right")  # fmt: skip
        _dress(axes, f"{name}, {len(tasks)} questions", "right, %")
    for name, line in (("mixed", "-"), ("products", "--")):
        for label, stem, colour in (("gang", "vote", COLOURS[0]), ("a client", "client", "black")):
            measured = [timed[name][f"{stem}-{k}"] for k in SAMPLES]
            seconds = [median(row["seconds"] for row in rows) for rows in measured]
            style = f"o{line}"
            panels[2].plot(SAMPLES, seconds, style, color=colour, label=f"{label}, {name}")
    panels[2].set_ylim(bottom=0)
    panels[2].legend(fontsize=8, frameon=False)
    _dress(panels[2], "timed, one user", "median latency, s")
    marks, labels = panels[0].get_legend_handles_labels()
    figure.legend(marks, labels, fontsize=8, frameon=False, loc="outside lower left", ncols=4)
    note = f"Samples at temperature {temperature:g}; bars are 95 % Wilson intervals."
    figure.text(0.99, 0.01, note, fontsize=8, color="#666666", ha="right")
    figure.savefig(path, bbox_inches="tight", pad_inches=0.15)


def _plot_shares(
    axes: Axes, places: list[float], found: list[Drawn], label: str, colour: str
) -> None:
    shares = [100 * fmean(each.right) for each in found]
    bounds = [wilson_interval(sum(each.right), len(each.right)) for each in found]
    below = [share - 100 * low for share, (low, _) in zip(shares, bounds, strict=True)]
    above = [100 * high - share for share, (_, high) in zip(shares, bounds, strict=True)]
    axes.errorbar(
        places, shares, yerr=(below, above), fmt="o-" if len(places) > 1 else "D", color=colour,
        label=label, markersize=5, linewidth=1.4, elinewidth=0.6, capsize=2,
    )  # fmt: skip


def _dress(axes: Axes, title: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("samples started", fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
