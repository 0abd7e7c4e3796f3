"""Token counters of tenants for fair queueing: who got least service goes next.

Virtual token counters (VTC; Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).
"""

from collections.abc import Iterable, Mapping

from tandem.facts.errors import InvalidConfiguration

# A prompt token is computed beside thousands of others, an output token in a step of its own:
# the weights of the paper's evaluation.
INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class TokenCounters:
    """Counters of tenants at each priority, in weighted tokens; they only grow. Priorities are
    those of classes, never what a client chose: there are no more counters than tenants times
    classes.

    Service counts at every priority alike, lifts only where the tenant came back: a lift among
    urgent requests is no reason to wait longer among the others.
    """

    __slots__ = ("_last_left", "_lifts", "_service", "_weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` are shares of tenants against each other, 1 where none is given. Raises
        `InvalidConfiguration`."""
        for tenant, weight in sorted(weights.items()):
            if not weight > 0:
                raise InvalidConfiguration(
                    f"weight of tenant {tenant} is {weight:g}; choose more than 0"
                )
        self._weights = dict(weights)
        self._service: dict[str, float] = {}
        self._lifts: dict[tuple[int, str], float] = {}
        self._last_left: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._service) + len(self._lifts) + len(self._last_left)

    def of(self, tenant: str, priority: int) -> float:
        return self._service.get(tenant, 0.0) + self._lifts.get((priority, tenant), 0.0)

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        tokens = INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens
        weight = self._weights.get(tenant, 1.0)
        self._service[tenant] = self._service.get(tenant, 0.0) + tokens / weight

    def left(self, tenant: str, priority: int) -> None:
        """The tenant has nothing waiting at this priority any more."""
        self._last_left[priority] = tenant

    def lift(self, tenant: str, priority: int, waiting: Iterable[float]) -> None:
        """The tenant comes back (the paper's algorithm 2): it starts no lower than the least
        counter that waits at this priority, or than the last that left when none waits. So nobody
        saves up credit while idle."""
        level = min(waiting, default=None)
        if level is None:
            level = self.of(self._last_left.get(priority, tenant), priority)
        lacking = level - self.of(tenant, priority)
        if lacking > 0:
            self._lifts[priority, tenant] = self._lifts.get((priority, tenant), 0.0) + lacking
