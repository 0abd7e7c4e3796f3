"""One measured figure beside its limit, and the table of all of them."""

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """`value` in `unit`, its `spread` (half the middle half of the repetitions), the `limit` in
    the same unit and where it comes from, and the goal as text."""

    name: str
    value: float
    unit: str
    spread: float = 0.0
    limit: float | None = None
    limit_name: str = ""
    goal: str = ""
    higher_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        return None if not self.limit else self.value / self.limit


def show(figures: list[Figure], title: str) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    for column in ("ours", "± ", "limit or peer", "ratio", "goal"):
        table.add_column(column, justify="right")
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:,.4g} {figure.limit_name}"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(
            figure.name,
            f"{figure.value:,.4g} {figure.unit}",
            f"{figure.spread:.2g}",
            limit,
            ratio,
            figure.goal,
        )
    Console(width=130).print(table)


def write(figures: list[Figure], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "figures": [asdict(figure) | {"ratio": figure.ratio} for figure in figures],
    }
    path.write_text(json.dumps(document, indent=1))
