"""What plots show, as plain numbers: panels of labelled curves or bars. How they are
drawn, and with which library, the drawing modules know."""

from dataclasses import dataclass
from enum import StrEnum

# Okabe and Ito's colours, told apart by colour-blind readers; yellow, too pale for a line, is left
# out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#000000")
OTHER_BARS = "#9DB7C9"
INK = "#555555"
FAULT = "#B00020"


class Mark(StrEnum):
    """How a curve is drawn. STEPS hold each value until the next."""

    LINE = "line"
    DASHED = "dashed"
    STEPS = "steps"
    POINTS = "points"
    LINE_AND_POINTS = "both"


@dataclass(frozen=True, slots=True)
class Curve:
    """One named curve; `label` stands beside its end, empty for none. `colour` counts in
    `COLOURS`."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    mark: Mark = Mark.LINE
    colour: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Guide:
    """A thin line across a panel with a word beside it: a bound, a fault, the knee."""

    value: float
    text: str = ""
    vertical: bool = False
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. Where `own_names` is true its curves are not those of the other panels;
    `names_inside` lists them within the axes, for curves whose ends lie at one place.
    `bars` names the bars, best first, when the panel shows bars: one for each `y` of its only
    curve."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    guides: tuple[Guide, ...] = ()
    log_y: bool = False
    bars: tuple[str, ...] = ()
    own_names: bool = False
    names_inside: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels in `columns` under one title, which says what is to be seen; `subtitle` holds the
    settings. With one column all panels share their x axis."""

    title: str
    subtitle: str
    panels: tuple[Panel, ...]
    columns: int = 2

    @property
    def rows(self) -> int:
        return -(-len(self.panels) // self.columns)
