"""Leases: which gateway each request of a worker belongs to, and until when it lives without being
renewed.

A gateway that dies, or forgets a request, never comes to fetch what it left: what is not renewed is
given up. Knows ids and instants only.
"""

from collections.abc import Iterable


class Leases:
    """One lease a request, whatever its stage. Those of one gateway end in the order in which they
    were last renewed."""

    def __init__(self) -> None:
        self._gateway_of: dict[str, str] = {}
        self._ends_ns: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._gateway_of)

    @property
    def request_ids(self) -> set[str]:
        return set(self._gateway_of)

    @property
    def sole_owner(self) -> str | None:
        """The gateway that all requests belong to, if it is one."""
        return next(iter(self._ends_ns)) if len(self._ends_ns) == 1 else None

    def owner(self, request_id: str) -> str | None:
        """The gateway that a request belongs to; None when nobody's."""
        return self._gateway_of.get(request_id)

    def grant(self, request_id: str, gateway: str, end_ns: int) -> None:
        """A request has come. An id that is taken keeps its owner and its end."""
        if request_id not in self._gateway_of:
            self._gateway_of[request_id] = gateway
            self._ends_ns.setdefault(gateway, {})[request_id] = end_ns

    def renew(self, gateway: str, request_ids: Iterable[str], end_ns: int) -> None:
        """The gateway still wants these; those that are not its own, or gone, are left out."""
        ends_ns = self._ends_ns.get(gateway, {})
        for request_id in request_ids:
            if ends_ns.pop(request_id, None) is not None:
                ends_ns[request_id] = end_ns

    def end(self, request_id: str) -> None:
        """The request holds nothing any more. Unknown ids are ignored."""
        gateway = self._gateway_of.pop(request_id, None)
        if gateway is not None:
            ends_ns = self._ends_ns[gateway]
            del ends_ns[request_id]
            if not ends_ns:
                del self._ends_ns[gateway]

    def of(self, gateway: str) -> tuple[str, ...]:
        """All requests of a gateway."""
        return tuple(self._ends_ns.get(gateway, ()))

    def expired(self, now_ns: int) -> dict[str, tuple[str, ...]]:
        """The requests that nobody has renewed in time, by gateway; they are not ended yet."""
        found = {}
        for gateway, ends_ns in self._ends_ns.items():
            late: list[str] = []
            for request_id, end_ns in ends_ns.items():
                if end_ns > now_ns:
                    break
                late.append(request_id)
            if late:
                found[gateway] = tuple(late)
        return found

    def next_wakeup(self) -> int | None:
        """When the next one ends if it is not renewed."""
        firsts = [next(iter(ends_ns.values())) for ends_ns in self._ends_ns.values()]
        return min(firsts, default=None)
