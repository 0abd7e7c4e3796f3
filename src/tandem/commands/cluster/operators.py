"""Questions and wishes of an operator, put to the gateways of one cluster."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration, TandemError, nearest
from tandem.facts.fleet import Role
from tandem.live.channels.curve import KeyPair
from tandem.live.channels.sockets import NodeKeys
from tandem.live.gateway.operator import OperatorClient
from tandem.messages.gateway import ClusterStatus
from tandem.messages.operator import AuditTold

T = TypeVar("T")
# A gateway that works answers within milliseconds.
PATIENCE_S = 3.0


class NobodyAnswers(TandemError):
    """No gateway answers."""


class Operators:
    """A terminal's, or a supervisor's, lines to all gateways of a cluster, in their order. Answers
    may take `timeout_s`."""

    def __init__(
        self, endpoints: Sequence[str], keys: CurveKeys, timeout_s: float = PATIENCE_S
    ) -> None:
        pair = KeyPair(keys.operator_public, keys.operator_secret)
        if not keys.operator_secret:
            # A worker's may ask, which is all that one needs that joins.
            pair = KeyPair(keys.worker_public, keys.worker_secret)
        own = NodeKeys(pair, keys.gateway_public)
        self._lines = [(endpoint, own, timeout_s) for endpoint in endpoints]

    async def statuses(self) -> list[ClusterStatus]:
        """What each gateway knows that answers."""
        return await self._of_all(lambda client: client.status())

    async def audits(self) -> list[AuditTold]:
        """What the workers hold, as each gateway that answers is told."""
        return await self._of_all(lambda client: client.audit())

    async def drain(self, worker: str, then_role: Role | None, leave: bool) -> None:
        """Until it is done. Raises `TandemError` when it cannot be or takes too long."""
        line = await self._line_to(worker)
        await _asked(line, lambda client: client.drain(worker, then_role=then_role, leave=leave))

    async def restart(self, worker: str) -> None:
        """Until its process has left, empty, to be started anew. Raises as `drain`."""
        line = await self._line_to(worker)
        await _asked(line, lambda client: client.drain(worker, leave=True, again=True))

    async def undrain(self, worker: str) -> None:
        """Until it takes requests again. Raises as `drain`."""
        line = await self._line_to(worker)
        await _asked(line, lambda client: client.undrain(worker))

    async def _of_all(self, question: Callable[[OperatorClient], T]) -> list[T]:
        answers = await asyncio.gather(
            *(_asked(line, question) for line in self._lines), return_exceptions=True
        )
        told = []
        for answer in answers:
            if isinstance(answer, TandemError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            told.append(answer)
        return told

    async def _line_to(self, worker: str) -> tuple[str, NodeKeys, float]:
        """To a gateway that knows the worker; what it asks of it, every gateway hears."""
        known: set[str] = set()
        for endpoint, keys, timeout_s in self._lines:
            try:
                status = await _asked((endpoint, keys, PATIENCE_S), lambda client: client.status())
            except TandemError:
                continue
            names = {each.worker for each in status.workers}
            if worker in names:
                return endpoint, keys, timeout_s
            known |= names
        if not known:
            raise NobodyAnswers("no gateway that knows a worker answers")
        raise InvalidConfiguration(f"there is no worker {worker}{nearest(worker, known)}")


async def _asked(line: tuple[str, NodeKeys, float], question: Callable[[OperatorClient], T]) -> T:
    """Asks in a thread, which the question blocks."""
    endpoint, keys, timeout_s = line

    def ask() -> T:
        with OperatorClient(endpoint, keys, timeout_s) as client:
            return question(client)

    return await asyncio.to_thread(ask)
