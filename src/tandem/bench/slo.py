"""How a command line spells a service level objective."""

import re
from collections.abc import Sequence

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo

_TERM = re.compile(r"(ttft|tpot|e2el|e2e)[=:](\d+(?:\.\d+)?)(ms|s|)")


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
