"""Whether and how listed costs of workers are corrected by what is measured of them, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Learning:
    """A correction is a factor from 1 / `most_factor` to `most_factor`, or up to `most_late_s`
    before a first token. Of what is not measured any more, it halves in `half_life_s`: a worker
    that gets nothing because it was slow is tried again."""

    most_factor: float = 8.0
    most_late_s: float = 1.0
    half_life_s: float = 60.0

    def __post_init__(self) -> None:
        if self.most_factor < 1:
            raise InvalidConfiguration(
                f"most_factor is {self.most_factor:g}; choose 1 (no correction) or more"
            )
        if self.most_late_s < 0:
            raise InvalidConfiguration(f"most_late_s is {self.most_late_s:g}; choose 0 or more")
        if self.half_life_s <= 0:
            raise InvalidConfiguration(
                f"half_life_s is {self.half_life_s:g}; choose more than 0, such as 60"
            )


def none() -> None:
    """Costs are as listed."""


DEFAULT_LEARNING = Learning()
LEARNINGS: Mapping[str, Callable[..., Learning | None]] = {"measured": Learning, "none": none}
