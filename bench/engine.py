"""The engine against the machine's own limits, all in one run; `peers.py` has it beside others.

python bench/engine.py [--only steps,overhead,layers,memory,arithmetic] [--arithmetic float32]
    [--output results/engine.json]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from arithmetic import arithmetic_figures
from figures import Figure, show, write
from layers import layers_figure
from limits import measure_limits
from memory import memory_figure
from overhead import overhead_figures
from steps import step_figures
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.packed import Arithmetic, Storage

STORAGES: list[Storage] = ["float32", "bfloat16", "int8", "int4"]
Section = Callable[[Kernels], list[Figure]]
SECTIONS: dict[str, Section] = {
    "overhead": overhead_figures,
    "layers": lambda kernels: [layers_figure(kernels)],
    "steps": lambda kernels: step_figures(kernels, STORAGES),
    "memory": lambda kernels: [memory_figure(kernels)],
    "arithmetic": lambda _: arithmetic_figures(),
}


def main(
    only: Annotated[str, typer.Option(help="Sections, separated by commas.")] = "",
    arithmetic: Annotated[
        Arithmetic, typer.Option(help="What matrices are multiplied in.")
    ] = "auto",
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/engine.json"
    ),
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    kernels, reason = choose_kernels(
        torch.device("cpu"), torch.float32, allow_native=True, arithmetic=arithmetic
    )
    print(f"kernels: {reason}; {torch.get_num_threads()} threads")
    figures: list[Figure] = []
    for name in only.split(",") if only else SECTIONS:
        print(f"{name}: {measure_limits()}", flush=True)
        figures += SECTIONS[name](kernels)
    show(figures, "Engine")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
