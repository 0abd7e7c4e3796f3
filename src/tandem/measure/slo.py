"""Service level objectives of a benchmark: upper bounds in seconds that a good request keeps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration
from tandem.measure.record import RequestRecord

_TERM = re.compile(r"(ttft|tpot|e2el|e2e)[=:](\d+(?:\.\d+)?)(ms|s|)")


@dataclass(frozen=True)
class Slo:
    """Bounds on time to the first token, on time per token after it, and on the whole answer."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def empty(self) -> bool:
        return self.ttft_s is None and self.tpot_s is None and self.e2e_s is None

    def met_by(self, record: RequestRecord) -> bool:
        """A failed request is never good; an answer of one token has no TPOT to miss."""
        return (
            record.succeeded
            and _within(record.ttft_s, self.ttft_s)
            and _within(record.tpot_s, self.tpot_s)
            and _within(record.latency_s, self.e2e_s)
        )

    def __str__(self) -> str:
        bounds = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("E2E", self.e2e_s))
        return ", ".join(f"{name} <= {bound * 1e3:g} ms" for name, bound in bounds if bound)


def parse_slo(texts: Sequence[str]) -> Slo:
    """Reads `ttft=500ms,tpot=50ms`; also `ttft:500 tpot:50`, milliseconds, as vLLM writes it."""
    bounds: dict[str, float] = {}
    for term in re.split(r"[,\s]+", ",".join(texts)):
        if not term:
            continue
        match = _TERM.fullmatch(term)
        if not match or float(match[2]) == 0:
            raise InvalidConfiguration(
                f"--slo must look like ttft=500ms,tpot=50ms,e2e=10s, got {term!r}"
            )
        name = "e2e" if match[1] == "e2el" else match[1]
        bounds[name] = float(match[2]) * (1.0 if match[3] == "s" else 1e-3)
    return Slo(bounds.get("ttft"), bounds.get("tpot"), bounds.get("e2e"))


def _within(value: float | None, bound: float | None) -> bool:
    return value is None or bound is None or value <= bound
