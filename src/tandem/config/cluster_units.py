"""How people write quantities in a cluster file, and what they are in seconds, bytes and dollars.

The unit a field wants is the last word of its name (`startup_s`), and its key in the file is the
name without it (`startup: 60s`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

_AMOUNT = re.compile(r"\$?\s*(-?\d[\d_,]*(?:\.\d+)?(?:e-?\d+)?)\s*([a-zA-Zµ%/]*)")
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
    without unit is taken as it is where `bare` allows it."""

    kind: str
    example: str
    factors: Mapping[str, Decimal]
    bare: bool = False

    def read(self, text: str) -> float:
        """The amount in seconds, bytes or whatever the kind counts. Raises `ValueError` with a
        sentence."""
        match = _AMOUNT.fullmatch(text.strip())
        number = Decimal(match[1].replace(",", "").replace("_", "")) if match else Decimal(0)
        factor = self.factors.get(match[2]) if match else None
        # A zero needs no unit.
        if match and not match[2] and (self.bare or not number):
            factor = Decimal(1)
        if factor is None:
            raise ValueError(f"expected {self.kind} such as {self.example}, got {text!r}")
        if number < 0:
            raise ValueError(f"{self.kind} must not be negative, got {text!r}")
        return float(number * factor)


SECONDS = Quantity("a time", "2s, 50ms or 10m", _SECONDS)
BYTES = Quantity("a size", "64 GiB or 256 GB", _BYTES)
BYTES_PER_S = Quantity("a bandwidth", "50 GB/s or 400 Gbit/s", _RATES)
DOLLARS_PER_HOUR = Quantity("a price", "2.50 (dollars an hour)", {"/h": Decimal(1)}, bare=True)
COUNT = Quantity("a number", "16, 16k or 2M", _PREFIXES, bare=True)
SHARE = Quantity("a number", "0.9 or 90%", {"%": Decimal("0.01")}, bare=True)

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
