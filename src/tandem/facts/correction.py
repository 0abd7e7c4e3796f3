"""How far a worker is from its listed costs, as measured: factors on its seconds, and seconds
before its first tokens. Figures and words; what they do to costs is in `cost`."""

from collections.abc import Iterator

from msgspec import Struct

from tandem.facts.bounds import Seconds


class Correction(Struct, frozen=True):
    """Measured seconds over listed ones, 1 where they agree: of steps that only decode, of steps
    that compute prompts, and of KV transfers. `first_token_s` is what a first token takes beside
    its steps: HTTP, event loops, the wire."""

    decode: float = 1.0
    prefill: float = 1.0
    network: float = 1.0
    first_token_s: Seconds = 0.0

    def __str__(self) -> str:
        """In words; empty where there is none."""
        return ", ".join(self._words())

    def _words(self) -> Iterator[str]:
        if self.decode == self.prefill != 1.0:
            yield f"steps {_compared(self.decode)}"
        else:
            for what, factor in (("decode", self.decode), ("prefill", self.prefill)):
                if factor != 1.0:
                    yield f"{what} steps {_compared(factor)}"
        if self.network != 1.0:
            yield f"KV transfers {_compared(self.network)}"
        if self.first_token_s:
            yield f"first token {self.first_token_s * 1e3:.3g} ms later"


def _compared(factor: float) -> str:
    if factor > 1:
        return f"{factor:.2g}x slower than listed"
    return f"{1 / factor:.2g}x faster than listed"


UNCORRECTED = Correction()
