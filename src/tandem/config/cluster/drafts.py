"""The section of a cluster file about what comes of drafts, which only a simulator has to be told,
and what holds of each proposer where the file is silent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tandem.config.cluster.keys import key, section
from tandem.facts.errors import InvalidConfiguration

Share = Annotated[float, Meta(ge=0, le=1)]


@section
class DraftsConfig:
    """What comes of drafts where `serve` has workers speculate. Left out: what was measured of the
    bundled proposers; of `ngram`, half of the drafts kept and drafts in half of the rows."""

    kept: tuple[Share, ...] | None = key(
        "Chances that a draft is kept if all before it were, by its place; the last holds for all "
        "further places.",
        default=None,
        only="simulator",
    )
    offered: Share | None = key(
        "Share of the rows wanting drafts that get some.", default=None, only="simulator"
    )
    token_time_s: Annotated[float, Meta(ge=0)] | None = key(
        "What each place of a step's longest proposal takes; left out: of a `draft` model a tenth, "
        "of `eagle` a twentieth of the model's step for one sequence, of others nothing.",
        default=None,
        only="simulator",
    )

    def __post_init__(self) -> None:
        if self.kept is not None and not self.kept:
            raise InvalidConfiguration("kept: name at least one chance, as [0.7]")


@dataclass(frozen=True, slots=True)
class ProposerQuality:
    """`kept` by place, the share of rows `offered` drafts, and what a place takes as a share of the
    model's step for one sequence (`token_share`)."""

    kept: tuple[float, ...]
    offered: float = 1.0
    token_share: float = 0.0


# Those with weights as training/README.md has them of the bundled ones; what ngram finds depends on
# the task alone.
PROPOSERS: Mapping[str, ProposerQuality] = {
    "ngram": ProposerQuality((0.5,), offered=0.5),
    "draft": ProposerQuality((0.76, 0.86, 0.91, 0.87), token_share=0.1),
    "medusa": ProposerQuality((0.64, 0.78, 0.69, 0.73)),
    "eagle": ProposerQuality((0.84, 0.89, 0.93, 0.94), token_share=0.05),
}
