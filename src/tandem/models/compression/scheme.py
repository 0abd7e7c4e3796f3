"""What is made of a checkpoint: the codes its matrices become, and how these are found.

Pure data, without torch: commands read wishes into it before torch is loaded.
"""

from dataclasses import dataclass
from typing import Literal

from tandem.facts.errors import InvalidConfiguration

Bits = Literal[4, 8]
Method = Literal["rtn", "gptq", "smoothquant", "smoothquant-gptq"]
Pruning = Literal["magnitude", "wanda"]
DEFAULT_GROUP_SIZE = 128
# Names of modules that stay as they are, as llm-compressor has it.
IGNORED = ("lm_head",)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Integers of `bits`, a scale for each `group_size` inputs of a row, or (None) one a row.
    Asymmetric ones have a zero point beside each scale. With `rounds_inputs` the inputs of a
    matrix are integers of eight bits, too, with one scale a token that is found as they come."""

    name: str
    bits: Bits
    group_size: int | None
    symmetric: bool = True
    rounds_inputs: bool = False

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def groups(self, columns: int) -> int:
        """Of a row of so many inputs."""
        return 1 if self.group_size is None else columns // self.group_size


W8A16 = Scheme("int8", 8, None)
W8A8 = Scheme("w8a8", 8, None, rounds_inputs=True)
W4A16 = Scheme("w4a16", 4, DEFAULT_GROUP_SIZE)
SCHEMES = {scheme.name: scheme for scheme in (W8A16, W8A8, W4A16)}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How codes are found. `damping` is the share of its mean that GPTQ adds to the diagonal of a
    Hessian; `smoothing` how much of the spread of inputs SmoothQuant moves into weights, 0 to 1;
    `ignore` names modules whose weights stay: a whole name, or its last parts."""

    scheme: Scheme
    method: Method
    damping: float = 0.01
    smoothing: float = 0.5
    ignore: tuple[str, ...] = IGNORED

    def __post_init__(self) -> None:
        if self.smooths and not self.scheme.rounds_inputs:
            raise InvalidConfiguration(
                f"--method {self.method} moves what is hard to round from inputs into weights, and "
                f"{self.scheme.name} leaves inputs as they are; expected rtn or gptq, or --to w8a8"
            )

    @property
    def smooths(self) -> bool:
        return self.method.startswith("smoothquant")

    @property
    def uses_hessians(self) -> bool:
        return self.method.endswith("gptq")

    @property
    def calibrates(self) -> bool:
        """Whether it has to see inputs of the matrices."""
        return self.smooths or self.uses_hessians


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """A share of each row's weights becomes zero, or (`of_four`) two of every four in a row."""

    criterion: Pruning
    sparsity: float
    of_four: bool = False
    ignore: tuple[str, ...] = IGNORED


def is_ignored(module: str, names: tuple[str, ...]) -> bool:
    """Whether one of the names is the module's, or ends or begins it."""
    return any(
        module == name or module.endswith(f".{name}") or module.startswith(f"{name}.")
        for name in names
    )
