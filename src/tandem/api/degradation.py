"""Degradation of a call: what the cluster cut of it so that it could be admitted, as its client is
told in a header and beside the usage."""

DEGRADED_HEADER = "X-Tandem-Degraded"


class Degradation:
    """Grows while a call runs; all of it is known once each choice has its first output or is
    among the `left_out`."""

    def __init__(self, choices: int = 1) -> None:
        self._choices = choices
        self._cut: dict[str, None] = {}
        self.left_out: set[int] = set()

    @property
    def text(self) -> str:
        """As "n=1, max_tokens=256"; empty where nothing was cut."""
        answered = self._choices - len(self.left_out)
        return ", ".join([*([f"n={answered}"] if self.left_out else []), *self._cut])

    def headers(self) -> dict[str, str]:
        """For the head of the answer, as far as it is known by then."""
        return {DEGRADED_HEADER: self.text} if self.text else {}

    def cut(self, degraded: str) -> None:
        """One of the choices is cut so, as "max_tokens=256"."""
        self._cut[degraded] = None
