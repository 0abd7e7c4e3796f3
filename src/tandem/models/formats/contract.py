"""How a quantised checkpoint stores a matrix, as data: which tensors of its files hold what of it,
in which order and precision. A format describes; `decoding` reads what is described.

Needs no torch: memory is counted from descriptions before anything is loaded.
Axes: N output features, C input features, G groups along C.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, Protocol

from tandem.facts.errors import InvalidConfiguration
from tandem.models.parameters import TensorPart

Axis = Literal["outputs", "inputs"]

WEIGHT = ".weight"
# Bits that share a word of four bytes, from which codes are packed for the kernels.
WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What the header of a safetensors file says of a tensor: `dtype` as it spells it ("I32")."""

    dtype: str
    shape: tuple[int, ...]


Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True, slots=True)
class CodeForm:
    """A matrix that is held as codes of so many `bits`, below `levels`, which count from `zero`,
    with a scale (and an offset) for each `size` inputs; a size of at least C is one a row."""

    bits: int
    size: int
    offsets: bool
    zero: int
    levels: int

    def cut(self, start: int, stop: int, inputs: int) -> "CodeForm | None":
        """Of these columns of a matrix of so many; None where the kernels cannot pack them."""
        size = cut_size(self.size, start, stop, inputs)
        return replace(self, size=size) if codable(self.bits, size, stop - start) else None


@dataclass(frozen=True, slots=True)
class Integers:
    """A tensor of whole numbers: [N, columns], or [columns, N] where `transposed`; columns are
    inputs or groups of them.

    Where they are `packed` several along that axis share a word, `bits` each: place i from the
    lowest bits on holds the one at `order[i]` (empty: as they come). Else each is a signed byte,
    and 2 ** (bits - 1) is added to it. `plus` is added to each of a word before they are taken
    apart, and carries over into the next. With `levels` they index these.
    """

    name: str
    bits: int
    packed: Axis | None
    transposed: bool = False
    order: tuple[int, ...] = ()
    plus: int = 0
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scales:
    """A tensor of scales: [N, G], [G, N] where `transposed`, or one number for all where `single`.

    They are floats, or exponents of two with a bias of 127 where `exponents`; times `factor`, and
    divided by the one number in the tensor `divisor`.
    """

    name: str
    transposed: bool = False
    single: bool = False
    exponents: bool = False
    factor: float = 1.0
    divisor: str = ""


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """weight[n, c] = scale[n, g] * (code[n, c] - zero[n, g]), with g = c // size, or as the tensor
    `group_of_input` says. Codes are below 2 ** bits. Without `zeros` zero is 2 ** (bits - 1).
    `reordered`: groups are said not to be in order."""

    shape: tuple[int, int]
    bits: Literal[4, 8]
    size: int
    codes: Integers
    scales: Scales
    zeros: Integers | None = None
    group_of_input: str = ""
    reordered: bool = False

    @property
    def code_form(self) -> CodeForm | None:
        """As which codes the kernels can hold all of it; None if as values only."""
        if self.reordered or not codable(self.bits, self.size, self.shape[1]):
            return None
        levels = 1 << self.bits
        return CodeForm(self.bits, self.size, self.zeros is not None, levels // 2, levels)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of all that it is made of."""
        zeros = self.zeros.name if self.zeros else ""
        scales = (self.scales.name, self.scales.divisor)
        return tuple(
            each for each in (self.codes.name, *scales, zeros, self.group_of_input) if each
        )


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """weight[n, c] = value[n, c] * scale of its block of `block` (outputs, inputs), with values of
    eight bits in the tensor `values` [N, C]."""

    shape: tuple[int, int]
    values: str
    scales: Scales
    block: tuple[int, int]

    @property
    def code_form(self) -> None:
        return None

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.values, self.scales.name


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix in the blocks of a GGUF file, which are codes of that form."""

    shape: tuple[int, int]
    code_form: CodeForm

    @property
    def tensors(self) -> tuple[str, ...]:
        return ()


StoredMatrix = IntegerMatrix | FloatMatrix | BlockMatrix


class Format(Protocol):
    """One way of storing matrices, with the settings of one checkpoint. Its `repr` tells it from
    all others."""

    def matrix(self, part: TensorPart, headers: Headers) -> StoredMatrix | None:
        """How this checkpoint stores a matrix of the model; None where it does so plainly. What the
        files hold counts, so whatever was left unquantised is found so. Raises
        `InvalidConfiguration` where they hold something else than the format has."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """What config.json says of it: `method` is its quant_method."""

    method: str
    format: Format


def codable(bits: int, size: int, columns: int) -> bool:
    """Whether the kernels pack codes in such groups: words must not be cut."""
    return size >= columns or size % (WORD_BITS // bits) == 0


def cut_size(size: int, start: int, stop: int, inputs: int) -> int:
    """Of the largest groups that are cut neither by columns `start` to `stop` of so many inputs nor
    by groups of `size`."""
    if size >= inputs:
        return max(1, stop - start)
    return gcd(size, start, 0 if stop == inputs else stop)


def joint_form(forms: Sequence[CodeForm], columns: int) -> CodeForm | None:
    """As which codes matrices of so many columns are packed as one; None where they cannot be. No
    value changes: codes of four bits are some of eight, zeros and codes move up together, and
    groups are divided."""
    first, zero = forms[0], max(form.zero for form in forms)
    alike = all((form.bits, form.zero) == (first.bits, first.zero) for form in forms)
    bits = first.bits if alike else 8
    size = gcd(*(min(form.size, columns) for form in forms))
    levels = max(form.levels + zero - form.zero for form in forms)
    if levels > 1 << bits or not codable(bits, size, columns):
        return None
    return CodeForm(bits, size, any(form.offsets for form in forms), zero, levels)


def groups(columns: int, size: int) -> int:
    return -(-columns // size)


def expect(headers: Headers, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> None:
    """Raises `InvalidConfiguration` unless there is a tensor of this name, shape and one of these
    types."""
    found = headers.get(name)
    if found is None:
        raise InvalidConfiguration(f"the checkpoint lacks {name}; a download may be incomplete")
    if found.dtype not in dtypes or found.shape != shape:
        raise InvalidConfiguration(
            f"{name} is {found.dtype} {list(found.shape)}; expected {' or '.join(dtypes)} "
            f"{list(shape)}, as config.json says"
        )
