"""The one parser of quantities as people write them: sizes, times, rates, counts, shares, prices.

Cluster files, command-line options, fault schedules and service levels all read their numbers here.
A `Quantity` gives back plain numbers in seconds, bytes, bytes per second or dollars. Which one a
field holds is the last word of its name (`startup_s`); its key in a file is the name without it
(`startup: 60s`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

MIB = 1 << 20
GIB = 1 << 30

_AMOUNT = re.compile(
    r"\$?\s*([+-]?(?:\d[\d_,]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*([a-zA-Zµ%/]*)"
)
# Decimal, so that 10us is the float nearest to 0.00001.
_SECONDS = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6")}
_SECONDS |= {"ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "min": Decimal(60)}
_SECONDS |= {"h": Decimal(3600), "d": Decimal(86400)}
_PREFIXES = {
    prefix: Decimal(1000) ** power for power, prefix in enumerate(("", "k", "M", "G", "T"))
}
_PREFIXES |= {f"{prefix}i": Decimal(1024) ** power for power, prefix in enumerate("KMGT", start=1)}
_PREFIXES["K"] = _PREFIXES["k"]
_BYTES = {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
_BITS = {f"{prefix}{bit}": f / 8 for prefix, f in _PREFIXES.items() for bit in ("b", "bit")}
_RATES = {f"{unit}/s": factor for unit, factor in (_BYTES | _BITS).items()}


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of amount: its units with their factors, and an example for the error. A number
    without unit is in the unit `bare`; None: it needs one. With `any_case`, `gib` is `GiB`."""

    kind: str
    example: str
    factors: Mapping[str, Decimal]
    bare: str | None = None
    any_case: bool = False

    def read(self, text: str) -> float:
        """The amount in seconds, bytes or whatever the kind counts. Raises `ValueError` with a
        sentence."""
        return self.read_unit(text)[0]

    def read_unit(self, text: str) -> tuple[float, str]:
        """The same, and the unit as it was written; empty for a number without one."""
        match = _AMOUNT.fullmatch(text.strip())
        number = Decimal(match[1].replace(",", "").replace("_", "")) if match else Decimal(0)
        unit = match[2] if match else ""
        factor = self._factor(unit) if match else None
        # A zero needs no unit.
        if match and not unit and not number:
            factor = Decimal(1)
        if factor is None:
            raise ValueError(f"expected {self.kind} such as {self.example}, got {text!r}")
        if number < 0:
            raise ValueError(f"{self.kind} must not be negative, got {text!r}")
        return float(number * factor), unit

    def _factor(self, unit: str) -> Decimal | None:
        if not unit:
            return None if self.bare is None else self.factors[self.bare]
        if self.any_case:
            folded = {name.lower(): factor for name, factor in self.factors.items()}
            return folded.get(unit.lower())
        return self.factors.get(unit)


SECONDS = Quantity("a time", "2s, 50ms or 10m", _SECONDS)
BYTES = Quantity("a size", "64 GiB or 256 GB", _BYTES, any_case=True)
BYTES_PER_S = Quantity("a bandwidth", "50 GB/s or 400 Gbit/s", _RATES)
DOLLARS_PER_HOUR = Quantity("a price", "2.50 (dollars an hour)", {"/h": Decimal(1)}, bare="/h")
COUNT = Quantity("a number", "16, 16k or 2M", _PREFIXES, bare="")
SHARE = Quantity("a number", "0.9 or 90%", {"": Decimal(1), "%": Decimal("0.01")}, bare="")

_BY_SUFFIX = {
    "_bytes_per_s": BYTES_PER_S,
    "_usd_per_hour": DOLLARS_PER_HOUR,
    "_bytes": BYTES,
    "_s": SECONDS,
}


def unit_of(field_name: str) -> tuple[str, Quantity | None]:
    """The key that a field has in the file, and the quantity that its name says it holds."""
    for suffix, quantity in _BY_SUFFIX.items():
        if field_name.endswith(suffix):
            return field_name.removesuffix(suffix), quantity
    return field_name, None


def size_text(count_bytes: int) -> str:
    """A size for a person: `1.5 GiB`, `300 MiB`."""
    if count_bytes < GIB:
        return f"{count_bytes / MIB:,.0f} MiB"
    return f"{count_bytes / GIB:,.1f} GiB"
