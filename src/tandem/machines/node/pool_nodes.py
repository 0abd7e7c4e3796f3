"""Which processes of the shared pool a worker, or another of them, may use, as gateways tell it."""

from collections.abc import Iterator

from tandem.facts.cluster_messages import PoolNodeJoined
from tandem.facts.node_messages import ConnectPoolNode, ForgetPoolNode

Effect = ConnectPoolNode | ForgetPoolNode


class PoolNodes:
    """By name: the starts of a process that somebody speaks for, each with those gateways, the one
    heard of last at the end. That one is connected."""

    def __init__(self) -> None:
        self._starts: dict[str, dict[PoolNodeJoined, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._starts)

    def joined(self, gateway: str, message: PoolNodeJoined) -> Iterator[Effect]:
        """A gateway knows this start of it, and so none before it."""
        starts = self._starts.setdefault(message.node, {})
        before = next(reversed(starts), None)
        told_by = starts.pop(message, {})
        for start in list(starts):
            starts[start].pop(gateway, None)
            if not starts[start]:
                del starts[start]
        starts[message] = told_by | {gateway: None}
        yield from _instead(before, message)

    def gone(self, gateway: str, node: str, incarnation: str) -> Iterator[Effect]:
        """A gateway has lost this start of it."""
        starts = self._starts.get(node, {})
        for start in list(starts):
            if start.incarnation == incarnation:
                yield from self._unsay(gateway, start)

    def gateway_gone(self, gateway: str) -> Iterator[Effect]:
        """This gateway speaks for nobody any more."""
        for starts in list(self._starts.values()):
            for start in list(starts):
                yield from self._unsay(gateway, start)

    def _unsay(self, gateway: str, start: PoolNodeJoined) -> Iterator[Effect]:
        starts = self._starts[start.node]
        before = next(reversed(starts))
        told_by = starts[start]
        told_by.pop(gateway, None)
        if told_by:
            return
        del starts[start]
        if not starts:
            del self._starts[start.node]
        if start == before:
            yield from _instead(before, next(reversed(starts), None))


def _instead(before: PoolNodeJoined | None, after: PoolNodeJoined | None) -> Iterator[Effect]:
    if before == after:
        return
    if before is not None:
        yield ForgetPoolNode(before.node, before.incarnation)
    if after is not None:
        yield ConnectPoolNode(after.node, after.incarnation, after.address)
