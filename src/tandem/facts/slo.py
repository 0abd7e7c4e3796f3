"""SLOs: upper bounds in seconds on TTFT, TPOT and the whole answer; and how far a client may shift
its priority."""

from dataclasses import dataclass, field


def _bound(meaning: str) -> float | None:
    """A bound that is also a key of a cluster file."""
    return field(default=None, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective: bounds on the time to the first token, the time of each token after
    it, and the whole answer; none where one is left out."""

    ttft_s: float | None = _bound("Time to the first token.")
    tpot_s: float | None = _bound("Mean time of each token after it.")
    e2e_s: float | None = _bound("Time to the last token.")

    @property
    def empty(self) -> bool:
        return self.ttft_s is None and self.tpot_s is None and self.e2e_s is None

    def kept(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """Whether these measurements keep every bound; what was not measured cannot be missed (an
        answer of one token has no TPOT)."""
        return (
            _within(ttft_s, self.ttft_s)
            and _within(tpot_s, self.tpot_s)
            and _within(e2e_s, self.e2e_s)
        )

    def __str__(self) -> str:
        bounds = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("E2E", self.e2e_s))
        return ", ".join(
            f"{name} <= {_written(bound)}" for name, bound in bounds if bound is not None
        )


# Priorities beyond these are no 32-bit numbers.
MOST_URGENT, LEAST_URGENT = -(2**31), 2**31 - 2
# Of requests that nobody waits for: no client's word makes a request of this one.
IN_BACKGROUND = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ClientPriorities:
    """What a client's own `priority` may add to that of its class; smaller is more urgent. By
    default it may make its requests less urgent, and never goes before anybody by its own word."""

    lowest: int = 0
    highest: int = LEAST_URGENT

    def applied(self, priority: int, wish: int) -> int:
        """The priority of a request whose class has this one."""
        allowed = min(max(wish, self.lowest), self.highest)
        return min(max(priority + allowed, MOST_URGENT), LEAST_URGENT)


LOWER_ONLY = ClientPriorities()
# For servers whose clients trust each other.
AS_THEY_WISH = ClientPriorities(MOST_URGENT, LEAST_URGENT)


def _written(bound_s: float) -> str:
    return f"{bound_s:g} s" if bound_s >= 1 else f"{bound_s * 1e3:g} ms"


def _within(value: float | None, bound: float | None) -> bool:
    return value is None or bound is None or value <= bound
