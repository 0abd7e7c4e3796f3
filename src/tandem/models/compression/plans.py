"""What becomes of a matrix, and how it is written: codes of a recipe, or floats with zeros.

Axes: N output features, C input features.
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.models.compression.compressed_tensors import quantization_config, tensors_of
from tandem.models.compression.gptq import gptq
from tandem.models.compression.layer_walk import InputSums
from tandem.models.compression.pruning import PATTERN, prune
from tandem.models.compression.rounding import CodedMatrix, round_to_nearest
from tandem.models.compression.scheme import PruningPlan, Recipe


class CompressedMatrix(Protocol):
    """A matrix after compression."""

    def values(self) -> Tensor:
        """weight_NC as products see it, float32."""
        ...

    def rows(self, rows: slice) -> Self:
        """Some rows of it: one of the matrices that were stacked."""
        ...

    def tensors(self, module: str) -> dict[str, Tensor]:
        """What the checkpoint holds of it under the name of its module."""
        ...


class Plan(Protocol):
    """What is done to every matrix that is not ignored. `smoothing` is SmoothQuant's share, or None
    to leave norms alone; with `rounds_inputs` inputs of the matrices are rounded, too. One that
    `calibrates` has to see the inputs of a matrix, and may want their Hessian."""

    ignore: tuple[str, ...]
    smoothing: float | None
    rounds_inputs: bool
    calibrates: bool
    wants_hessians: bool

    def check(self, module: str, columns: int) -> None:
        """Raises `InvalidConfiguration` for a matrix whose inputs do not fit the plan."""
        ...

    def compress(
        self, weight_NC: Tensor, inputs: InputSums | None, stored: torch.dtype
    ) -> CompressedMatrix:
        """`weight_NC` is float32; `stored` the precision that the checkpoint has."""
        ...

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """Fields that config.json has besides."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenCodes:
    """A coded matrix in the compressed-tensors format."""

    matrix: CodedMatrix

    def values(self) -> Tensor:
        return self.matrix.values()

    def rows(self, rows: slice) -> "WrittenCodes":
        return WrittenCodes(self.matrix.rows(rows))

    def tensors(self, module: str) -> dict[str, Tensor]:
        return tensors_of(module, self.matrix)


@dataclass(frozen=True, slots=True)
class WrittenFloats:
    """A matrix [N, C] in the precision that the checkpoint has."""

    stored: Tensor

    def values(self) -> Tensor:
        return self.stored.to(torch.float32)

    def rows(self, rows: slice) -> "WrittenFloats":
        return WrittenFloats(self.stored[rows])

    def tensors(self, module: str) -> dict[str, Tensor]:
        return {f"{module}.weight": self.stored}


class QuantisationPlan:
    """The codes of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.ignore = recipe.ignore
        self.smoothing = recipe.smoothing if recipe.smooths else None
        self.rounds_inputs = recipe.scheme.rounds_inputs
        self.calibrates = recipe.calibrates
        self.wants_hessians = recipe.uses_hessians

    def check(self, module: str, columns: int) -> None:
        size = self._recipe.scheme.group_size
        if size is not None and columns % size:
            raise InvalidConfiguration(
                f"--group-size is {size}; expected a divisor of the {columns} inputs of {module}, "
                "or --ignore with that module"
            )

    def compress(
        self, weight_NC: Tensor, inputs: InputSums | None, stored: torch.dtype
    ) -> WrittenCodes:
        recipe = self._recipe
        if inputs is None or inputs.hessian is None:
            return WrittenCodes(round_to_nearest(weight_NC, recipe.scheme, stored))
        hessian_CC = inputs.hessian
        return WrittenCodes(gptq(weight_NC, hessian_CC, recipe.scheme, stored, recipe.damping))

    def config(self, ignored: list[str]) -> dict[str, Any]:
        return {"quantization_config": quantization_config(self._recipe.scheme, ignored)}


class ZerosPlan:
    """Floats as before, many of them zero."""

    smoothing: float | None = None
    rounds_inputs = False
    wants_hessians = False

    def __init__(self, plan: PruningPlan) -> None:
        self._plan = plan
        self.ignore = plan.ignore
        self.calibrates = plan.criterion == "wanda"

    def check(self, module: str, columns: int) -> None:
        if self._plan.of_four and columns % PATTERN:
            raise InvalidConfiguration(
                f"--sparsity 2:4 needs a multiple of {PATTERN} inputs; {module} has {columns}"
            )

    def compress(
        self, weight_NC: Tensor, inputs: InputSums | None, stored: torch.dtype
    ) -> WrittenFloats:
        square_C = None if inputs is None else inputs.square
        return WrittenFloats(prune(weight_NC, self._plan, square_C).to(stored))

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """None: a reader need not know of zeros."""
        del ignored
        return {}
