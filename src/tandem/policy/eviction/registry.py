"""Eviction orders by name."""

from collections.abc import Callable, Hashable
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.eviction.arc import Arc
from tandem.policy.eviction.baselines import Fifo, Lfu, Lru
from tandem.policy.eviction.contract import Eviction
from tandem.policy.eviction.cost_aware import CostAware

Price = Callable[[Any], float]

# From the cache's capacity in keys and the price of a key.
EVICTIONS: dict[str, Callable[[int, Price], Eviction[Any]]] = {
    "lru": lambda _capacity, _price: Lru(),
    "fifo": lambda _capacity, _price: Fifo(),
    "lfu": lambda _capacity, _price: Lfu(),
    "arc": lambda capacity, _price: Arc(capacity),
    "cost": lambda _capacity, price: CostAware(price),
}


def equal_price(_key: Hashable) -> float:
    """Every block is as dear to recompute as any other."""
    return 1.0


def make_eviction(name: str, capacity: int, price: Price = equal_price) -> Eviction[Any]:
    """A new order for one cache of `capacity` keys; `price` as in `CostAware`. Raises
    `InvalidConfiguration` for a name that `EVICTIONS` does not hold."""
    builder = EVICTIONS.get(name)
    if builder is None:
        raise InvalidConfiguration(f"eviction must be one of {', '.join(EVICTIONS)}, got {name!r}")
    return builder(capacity, price)
