"""Degradation of a call: what the cluster cut of it so that it could be admitted, and which model
of a cascade answered it, as its client is told in headers and beside the usage."""

from collections import Counter

DEGRADED_HEADER = "X-Tandem-Degraded"
CASCADE_HEADER = "X-Tandem-Cascade"


class Degradation:
    """Grows while a call runs; all of it is known once each choice has its first output or is
    among the `left_out`."""

    def __init__(self, choices: int = 1) -> None:
        self._choices = choices
        self._cut: dict[str, None] = {}
        self.left_out: set[int] = set()
        self._answered: dict[int, str] = {}

    @property
    def text(self) -> str:
        """As "n=1, max_tokens=256"; empty where nothing was cut."""
        answered = self._choices - len(self.left_out)
        return ", ".join([*([f"n={answered}"] if self.left_out else []), *self._cut])

    @property
    def cascade(self) -> str:
        """As "small", or "large=1, small=3" of several answers; empty without a cascade."""
        counts = sorted(Counter(self._answered.values()).items())
        if len(self._answered) == 1:
            return counts[0][0]
        return ", ".join(f"{model}={count}" for model, count in counts)

    def headers(self) -> dict[str, str]:
        """For the head of the answer, as far as it is known by then."""
        said = {DEGRADED_HEADER: self.text, CASCADE_HEADER: self.cascade}
        return {name: text for name, text in said.items() if text}

    def cut(self, degraded: str) -> None:
        """One of the choices is cut so, as "max_tokens=256"."""
        self._cut[degraded] = None

    def answered_by(self, choice: int, model: str) -> None:
        """The choice has tokens of this model of a cascade, `small` or `large`."""
        self._answered[choice] = model
