"""How several gateways share the places at the workers."""

from collections.abc import Iterable


def fair_places(places: int, others: Iterable[int]) -> int:
    """How many of the `places` one gateway may take where the `others` want so many each, by
    max-min fairness: whoever wants less than an equal part gets what it wants, and what it leaves
    is shared among the rest. At least 1, so that nobody waits for ever."""
    wanted = sorted(others)
    left = places
    for index, each in enumerate(wanted):
        left -= min(each, left // (len(wanted) + 1 - index))
    return max(1, left)
