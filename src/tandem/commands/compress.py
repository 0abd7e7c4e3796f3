"""`tandem compress`: a smaller checkpoint of the same model, and what that has cost in quality."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tandem.bench.tasks.evaluation import choose_suites
from tandem.commands.late_imports import part
from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.config.checkpoints import find_checkpoint
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.models.compression.scheme import SCHEMES, PruningPlan, Recipe
from tandem.models.new_folder import require_absent

OF_FOUR = "2:4"


class Target(StrEnum):
    """What matrices become."""

    INT8 = "int8"
    W8A8 = "w8a8"
    W4A16 = "w4a16"


class RoundingMethod(StrEnum):
    """How codes are found."""

    RTN = "rtn"
    GPTQ = "gptq"
    SMOOTHQUANT = "smoothquant"
    SMOOTHQUANT_GPTQ = "smoothquant-gptq"


class Criterion(StrEnum):
    """Which weights become zero."""

    MAGNITUDE = "magnitude"
    WANDA = "wanda"


@flags
class CodeOptions:
    """Quantisation. What matrices become, and how that is found."""

    to: Target | None = flag(
        "int8: a scale for each output. w8a8: inputs in eight bits, too. w4a16: four bits, a scale "
        "for each group of inputs.",
        default=None,
    )
    method: RoundingMethod = flag(
        "rtn rounds each weight to the nearest code; gptq makes errors good with the weights left; "
        "smoothquant (for w8a8) moves outliers of inputs into weights.",
        default=RoundingMethod.GPTQ,
    )
    group_size: int = flag("Inputs that share a scale (w4a16).", default=128, min=8)
    asymmetric: bool = flag("Zero points beside scales (w4a16).", "--asymmetric", default=False)
    damping: float = flag(
        "Of gptq: what is added to a Hessian's diagonal, times its mean.", default=0.01, min=1e-6
    )
    smoothing: float = flag(
        "Of smoothquant: how much moves into weights.", default=0.5, min=0.0, max=1.0
    )

    def recipe(self, ignore: tuple[str, ...]) -> Recipe:
        """Raises `InvalidConfiguration` for options that exclude each other."""
        assert self.to is not None
        scheme = SCHEMES[self.to.value]
        if scheme.group_size is not None:
            scheme = replace(scheme, group_size=self.group_size, symmetric=not self.asymmetric)
        elif self.asymmetric:
            raise InvalidConfiguration(
                f"--asymmetric: {scheme.name} has no zero points; expected --to w4a16"
            )
        return Recipe(scheme, self.method.value, self.damping, self.smoothing, ignore)


@flags
class PruningOptions:
    """Pruning. Zeros in place of codes."""

    sparsity: str | None = flag(
        "Share of the weights of each output that become zero, or 2:4.", default=None
    )
    pruning: Criterion = flag(
        "By magnitude, or by that times the norm of the input.", default=Criterion.WANDA
    )

    def plan(self, ignore: tuple[str, ...]) -> PruningPlan:
        """Raises `InvalidConfiguration` for what is no share."""
        assert self.sparsity is not None
        if self.sparsity == OF_FOUR:
            return PruningPlan(self.pruning.value, 0.5, of_four=True, ignore=ignore)
        try:
            share = float(self.sparsity)
        except ValueError:
            share = 0.0
        if not 0.0 < share < 1.0:
            raise InvalidConfiguration(
                f"--sparsity is {self.sparsity!r}; expected a share between 0 and 1, or {OF_FOUR}"
            )
        return PruningPlan(self.pruning.value, share, ignore=ignore)


@flags
class TextOptions:
    """Texts. What codes are fitted to, and what they are judged by."""

    calibration: Path | None = flag(
        "Texts or chats (.jsonl), or plain text; one text in five is held out. (default: tasks of "
        "`tandem eval` with right replies)",
        default=None,
    )
    calibration_tokens: int = flag("At most so many are fitted to.", default=16384, min=1)
    held_out_tokens: int = flag(
        "At most so many are judged by; of chats the replies.", default=8192, min=2
    )
    seed: int = flag("Same seed, same tasks.", default=0, min=0)
    evaluate: bool = flag(
        "Also serve both checkpoints and ask them the tasks of `tandem eval`.",
        "--eval",
        default=False,
    )
    tasks: str | None = flag("Suites of --eval. (default: all)", default=None)
    samples: int | None = flag(
        "Tasks a suite. (default: the suite's own number)", default=None, min=1
    )
    progress: bool = flag("Show a progress bar.", default=True)


@with_options
def compress_command(
    codes: CodeOptions,
    pruning: PruningOptions,
    texts: TextOptions,
    model: Annotated[
        str, typer.Argument(help="Folder of the model, or its name (bundled, or on the hub).")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder that is made.")],
    ignore: Annotated[
        str, typer.Option("--ignore", help="Modules that stay as they are, with commas between.")
    ] = "lm_head",
) -> None:
    """Write a smaller checkpoint of a model, and measure what that has cost.

    Codes are written in the compressed-tensors format, which vLLM and transformers read. Both
    models read held-out texts meanwhile: how far their logits are apart, and the perplexity of
    each. The report is compression.json in the folder, too.
    """
    names = tuple(name.strip() for name in ignore.split(",") if name.strip())
    if (codes.to is None) == (pruning.sparsity is None):
        raise InvalidConfiguration("give either --to or --sparsity: codes, or zeros")
    wanted = pruning.plan(names) if codes.to is None else codes.recipe(names)
    # What is wrong is said before torch is loaded.
    choose_suites(texts.tasks)
    out = out.expanduser()
    require_absent(out)
    directory = find_checkpoint(model, ServeOptions().revision)
    part("compression").compress(directory, out, wanted, texts, terminal())
