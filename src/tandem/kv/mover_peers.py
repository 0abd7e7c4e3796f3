"""Which peers a connector has reached, and which it could not reach just now."""

from tandem.kv.connector import Connector, ConnectorError


class Peers:
    """Peers are connected when first needed. One that could not be reached is not tried again for
    a while: trying may take long."""

    def __init__(self, connector: Connector, retry_ns: int) -> None:
        self._connector = connector
        self._retry_ns = retry_ns
        self._reached: set[str] = set()
        self._refused: dict[str, tuple[int, str]] = {}

    def reach(self, peer: str, description: bytes, now_ns: int) -> str:
        """Why it cannot be reached; empty when it is connected."""
        if peer in self._reached:
            return ""
        until_ns, problem = self._refused.get(peer, (0, ""))
        if problem and now_ns < until_ns:
            return problem
        try:
            self._connector.connect(peer, description)
        except ConnectorError as error:
            self._refused[peer] = (now_ns + self._retry_ns, str(error))
            return str(error)
        self._refused.pop(peer, None)
        self._reached.add(peer)
        return ""

    def leave(self, peer: str) -> None:
        """Its open tickets end with a problem."""
        self._refused.pop(peer, None)
        if peer in self._reached:
            self._reached.remove(peer)
            self._connector.disconnect(peer)
