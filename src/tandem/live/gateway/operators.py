"""An operator client: requests of an operator (status, audit, drain, undrain) to one gateway
(`OperatorClient`, which blocks), or to all gateways of a cluster (`Operators`, for an event
loop)."""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import zmq

from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration, TandemError, nearest
from tandem.facts.fleet import Role
from tandem.live.channels.keys import KeyPair
from tandem.live.channels.sockets import OPERATOR_PREFIX, ChannelLimits, NodeKeys, node_socket
from tandem.live.clock import NS_PER_S, now_ns
from tandem.messages.checks import BadMessage
from tandem.messages.cluster import Drain
from tandem.messages.codec import OPERATOR
from tandem.messages.gateway import ClusterStatus
from tandem.messages.operator import (
    Answer,
    AskAudit,
    AskConfigure,
    AskDrain,
    AskExplain,
    AskStatus,
    AskUndrain,
    AuditReported,
    Done,
    Explained,
    Question,
    ReportStartFailed,
    StatusReported,
)

T = TypeVar("T")
# A gateway that works answers within milliseconds.
PATIENCE_S = 3.0


A = TypeVar("A", StatusReported, AuditReported, Done, Explained)


class OperatorFailed(TandemError):
    """The gateway did not answer, or refused what was asked for."""


class NoAnswer(OperatorFailed):
    """The gateway did not answer in time."""


class OperatorClient:
    """Use it from one thread, in a `with` block or up to `close`. An answer may take `timeout_s`.

    Every question goes over a connection of its own, so that a gateway that comes back is found,
    and no late answer is taken for that of another question.
    """

    def __init__(self, endpoint: str, keys: NodeKeys, timeout_s: float = 5.0) -> None:
        self._endpoint = endpoint
        self._keys = keys
        self._timeout_s = timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._serial = 0

    def __enter__(self) -> "OperatorClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._context.term()

    def status(self) -> ClusterStatus:
        """All that the gateway knows. Raises `OperatorFailed`, as everything here does."""
        return self._ask(AskStatus(self._next()), StatusReported).status

    def drain(
        self,
        worker: str,
        *,
        then_role: Role | None = None,
        leave: bool = False,
        again: bool = False,
    ) -> None:
        """Returns when the worker is empty and has taken `then_role` or left, to be started anew
        with `again`. After the time-out it goes on draining all the same."""
        question = AskDrain(self._next(), worker, Drain(then_role, leave, again))
        self._done(question)

    def undrain(self, worker: str) -> None:
        """Returns when the worker takes requests again."""
        self._done(AskUndrain(self._next(), worker))

    def report_start_failed(self, worker: str, reason: str) -> None:
        """A worker that the planner wants cannot be started, or is given up."""
        self._done(ReportStartFailed(self._next(), worker, reason))

    def configure(self, number: int, configuration: bytes, *, check_only: bool) -> None:
        """Returns when the gateway decides by the configuration of this number, or with
        `check_only` could."""
        self._done(AskConfigure(self._next(), number, configuration, check_only))

    def audit(self) -> AuditReported:
        """What every worker holds."""
        return self._ask(AskAudit(self._next()), AuditReported)

    def explain(self, request_id: str) -> Explained:
        """What became of this request, or of all choices of an answer."""
        return self._ask(AskExplain(self._next(), request_id), Explained)

    def _done(self, question: Question) -> None:
        if problem := self._ask(question, Done).problem:
            raise OperatorFailed(problem)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _ask(self, question: Question, kind: type[A]) -> A:
        identity = f"{OPERATOR_PREFIX}{os.getpid():x}-{now_ns():x}".encode()
        socket = node_socket(self._context, self._keys, ChannelLimits(), identity)
        # A gateway that is just starting is waited for.
        socket.reconnect_ivl = 100
        deadline_ns = now_ns() + int(self._timeout_s * NS_PER_S)
        try:
            socket.connect(self._endpoint)
            socket.send(OPERATOR.encode(question))
            while (left_ms := (deadline_ns - now_ns()) // 1_000_000) > 0:
                if not socket.poll(left_ms):
                    break
                frame = socket.recv()
                # An empty message only asks whether somebody is still here.
                answer = OPERATOR.decode(frame) if frame else None
                if isinstance(answer, Answer):
                    return _expected(answer, kind)
        except BadMessage as error:
            raise OperatorFailed(f"what the gateway at {self._endpoint} says {error}") from error
        finally:
            socket.close(0)
        raise NoAnswer(
            f"the gateway at {self._endpoint} has not answered within {self._timeout_s:g} s"
        )


def _expected(answer: Answer, kind: type[A]) -> A:
    if isinstance(answer, kind):
        return answer
    problem = answer.problem if isinstance(answer, Done) else ""
    raise OperatorFailed(problem or "the gateway answered another question")


class NobodyAnswers(TandemError):
    """No gateway answers."""


class Operators:
    """An operator client of all gateways of a cluster, in their order. Answers may take
    `timeout_s`."""

    def __init__(
        self, endpoints: Sequence[str], keys: CurveKeys, timeout_s: float = PATIENCE_S
    ) -> None:
        pair = KeyPair(keys.operator_public, keys.operator_secret)
        if not keys.operator_secret:
            # A worker's may ask, which is all that one needs that joins.
            pair = KeyPair(keys.worker_public, keys.worker_secret)
        own = NodeKeys(pair, keys.gateway_public)
        self._lines = [(endpoint, own, timeout_s) for endpoint in endpoints]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Of the gateways."""
        return tuple(endpoint for endpoint, _, _ in self._lines)

    async def statuses(self) -> list[ClusterStatus]:
        """What each gateway knows that answers."""
        return await self._of_all(lambda client: client.status())

    async def audits(self) -> list[AuditReported]:
        """What the workers hold, as each gateway that answers knows it."""
        return await self._of_all(lambda client: client.audit())

    async def explanations(self, request_id: str) -> list[Explained]:
        """What each gateway that answers knows of this request."""
        return await self._of_all(lambda client: client.explain(request_id))

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

    async def configure(
        self, number: int, configurations: Sequence[bytes], *, check_only: bool
    ) -> list[str | None]:
        """Have each gateway take its configuration, or with `check_only` say whether it could: for
        each, in their order, why it cannot, empty if it can, and None where it does not answer."""

        async def one(line: tuple[str, NodeKeys, float], configuration: bytes) -> str | None:
            try:
                await _asked(
                    line,
                    lambda each: each.configure(number, configuration, check_only=check_only),
                )
            except NoAnswer:
                return None
            except TandemError as error:
                return str(error)
            return ""

        pairs = zip(self._lines, configurations, strict=True)
        return await asyncio.gather(*(one(line, each) for line, each in pairs))

    async def report_start_failed(self, worker: str, reason: str) -> int:
        """To all gateways, for one of them plans: how many answered."""

        def report(client: OperatorClient) -> bool:
            client.report_start_failed(worker, reason)
            return True

        return len(await self._of_all(report))

    async def _of_all(self, question: Callable[[OperatorClient], T]) -> list[T]:
        answers = await asyncio.gather(
            *(_asked(line, question) for line in self._lines), return_exceptions=True
        )
        reached = []
        for answer in answers:
            if isinstance(answer, TandemError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            reached.append(answer)
        return reached

    async def _line_to(self, worker: str) -> tuple[str, NodeKeys, float]:
        """To a gateway that knows the worker; every gateway learns what it asks of it."""
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
