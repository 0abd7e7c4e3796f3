"""What storms did to a cluster, for a person: a table and one timeline a storm."""

from dataclasses import dataclass
from pathlib import Path

import matplotlib

from tests.chaos.shapes import Shape
from tests.chaos.storm import Outcome

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BIN_S = 0.5
COLORS = {"kill": "tab:red", "stop": "tab:orange", "cut": "tab:purple", "isolate": "tab:pink"}


@dataclass
class StormReport:
    """One shape and seed: the same load `calm` and in the `storm`; `left` is what the cluster left
    behind when it ended."""

    shape: Shape
    seed: int
    calm: Outcome | None = None
    storm: Outcome | None = None
    left: str = ""

    @property
    def broken(self) -> list[str]:
        found = [problem for each in (self.calm, self.storm) if each for problem in each.broken]
        if self.storm is None:
            found.append("the storm did not end")
        return found + [self.left] * bool(self.left)


def write_report(reports: list[StormReport], folder: Path, words: str = "") -> Path:
    """`chaos.md` and its pictures in this folder. `words` stand below the table."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Chaos",
        "",
        "The same load on the same cluster, calm and with what went wrong; every answer is "
        "compared with that of one undisturbed process.",
        "",
        "| shape | seed | faults | visits | left early | retried at another gateway | takeovers "
        "| goodput, calm | in the storm | laws broken |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(report) for report in reports]
    lines += ["", words] if words else []
    for number, report in enumerate(reports):
        if report.storm is None:
            continue
        picture = folder / f"chaos-{number}.png"
        draw(report.storm, report.shape.name, picture)
        lines += ["", f"## {report.shape.name}, seed {report.seed}", ""]
        lines += [f"![tokens a second, and faults]({picture.name})", ""]
        for at_s, fault in report.storm.done:
            lines.append(f"- {at_s - report.storm.began_s:.1f} s: {fault}")
        lines += ["", *(f"- **broken**: {problem[:600]}" for problem in report.broken)]
    file = folder / "chaos.md"
    file.write_text("\n".join(lines) + "\n")
    return file


def _row(report: StormReport) -> str:
    storm, calm = report.storm, report.calm
    if storm is None:
        return f"| {report.shape.name} | {report.seed} |" + " |" * 7 + " did not end |"
    cells = [
        report.shape.name,
        report.seed,
        len(storm.done),
        len(storm.records),
        sum(record.left for record in storm.records),
        sum(record.lost for record in storm.records),
        storm.takeovers - (calm.takeovers if calm else 0),
        f"{calm.goodput:.2f} /s" if calm else "",
        f"{storm.goodput:.2f} /s",
        len(report.broken),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def draw(outcome: Outcome, title: str, path: Path) -> None:
    """Pieces of answers a second over the time of the storm, faults as marks."""
    pieces_s = [at_s - outcome.began_s for each in outcome.records for at_s in each.pieces_s]
    end_s = max([*pieces_s, outcome.ended_s - outcome.began_s])
    bins = [BIN_S * index for index in range(int(end_s / BIN_S) + 2)]
    figure, axes = plt.subplots(figsize=(10, 3.2), layout="constrained")
    rate = [1 / BIN_S] * len(pieces_s)
    axes.hist(pieces_s, bins=bins, weights=rate, histtype="stepfilled", color="tab:blue", alpha=0.5)
    for at_s, fault in outcome.done:
        color = COLORS.get(fault.kind, "tab:brown")
        begin_s = at_s - outcome.began_s
        axes.axvline(begin_s, color=color, lw=1)
        if fault.for_s:
            axes.axvspan(begin_s, begin_s + fault.for_s, color=color, alpha=0.12, lw=0)
        axes.annotate(
            str(fault), (begin_s, 1), xycoords=("data", "axes fraction"), rotation=90,
            va="top", ha="right", fontsize=6, color=color,
        )  # fmt: skip
    axes.set(xlabel="seconds", ylabel="pieces of answers a second", title=title)
    axes.set_xlim(0, end_s)
    figure.savefig(path, dpi=110)
    plt.close(figure)
