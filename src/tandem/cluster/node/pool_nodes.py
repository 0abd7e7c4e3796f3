"""The processes of the shared pool that a worker or another pool process may use, as gateways
report them."""

from tandem.messages.cluster import PoolNodeJoined
from tandem.messages.node import ConnectPoolNode, ForgetPoolNode

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

    def joined(self, gateway: str, message: PoolNodeJoined) -> list[Effect]:
        """A gateway knows this start of it, and so none before it."""
        starts = self._starts.setdefault(message.node, {})
        before = next(reversed(starts), None)
        told_by = starts.pop(message, {})
        for start in list(starts):
            starts[start].pop(gateway, None)
            if not starts[start]:
                del starts[start]
        starts[message] = told_by | {gateway: None}
        return _instead(before, message)

    def gone(self, gateway: str, node: str, incarnation: str) -> list[Effect]:
        """A gateway has lost this start of it."""
        effects: list[Effect] = []
        starts = self._starts.get(node, {})
        for start in list(starts):
            if start.incarnation == incarnation:
                effects += self._unsay(gateway, start)
        return effects

    def gateway_gone(self, gateway: str) -> list[Effect]:
        """This gateway speaks for nobody any more."""
        effects: list[Effect] = []
        for starts in list(self._starts.values()):
            for start in list(starts):
                effects += self._unsay(gateway, start)
        return effects

    def _unsay(self, gateway: str, start: PoolNodeJoined) -> list[Effect]:
        starts = self._starts[start.node]
        before = next(reversed(starts))
        told_by = starts[start]
        told_by.pop(gateway, None)
        if told_by:
            return []
        del starts[start]
        if not starts:
            del self._starts[start.node]
        if start != before:
            return []
        return _instead(before, next(reversed(starts), None))


def _instead(before: PoolNodeJoined | None, after: PoolNodeJoined | None) -> list[Effect]:
    effects: list[Effect] = []
    if before == after:
        return effects
    if before is not None:
        effects.append(ForgetPoolNode(before.node, before.incarnation))
    if after is not None:
        effects.append(ConnectPoolNode(after.node, after.incarnation, after.address))
    return effects
