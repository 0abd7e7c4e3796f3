"""The other gateways of a cluster: asks them, and answers what they ask.

Gateways have no channel to each other, so a worker relays; a gateway that does not answer through
one is asked once more through another.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.live.channels.sockets import Malformed
from tandem.live.gateway.loop import Channel
from tandem.messages.checks import BadMessage
from tandem.messages.codec import OBSERVATION
from tandem.messages.observation import (
    DetailsReported,
    ObservationAnswer,
    ObservationQuestion,
    OverviewReported,
    RequestsReported,
)
from tandem.messages.sharing import RelayedFromGateway, RelayToGateway

# A gateway that works answers within milliseconds.
PATIENCE_S = 0.5
TRIES = 2

A = TypeVar("A", OverviewReported, RequestsReported, DetailsReported)


class _Round:
    """One question to several gateways, and the answers so far, by name."""

    def __init__(self, asked: tuple[str, ...]) -> None:
        self.answers: dict[str, ObservationAnswer] = {}
        self.complete = asyncio.Event()
        self._asked = asked

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self._asked if name not in self.answers)

    def answered(self, gateway: str, answer: ObservationAnswer) -> None:
        self.answers.setdefault(gateway, answer)
        if not self.missing:
            self.complete.set()


class OtherGateways:
    """Those that this gateway's machine has heard of lately. `answer` answers what they ask. Used
    from one event loop, from `open` on."""

    def __init__(
        self, machine: GatewayMachine, answer: Callable[[ObservationQuestion], ObservationAnswer]
    ) -> None:
        self._machine, self._answer = machine, answer
        self._rounds: dict[int, _Round] = {}
        self._question = 0
        self._relay = 0
        self._malformed = Malformed()
        self._channel: Channel

    def open(self, channel: Channel) -> None:
        """Before the first news: the way to workers."""
        self._channel = channel

    async def ask(
        self, kind: type[A], question: Callable[[int], ObservationQuestion]
    ) -> dict[str, A | None]:
        """What each of them answers to the question of this number, by name; None where nothing
        came in time."""
        sharing = self._machine.sharing
        names = () if sharing is None else tuple(sorted(sharing.others))
        if not names or not any(self._machine.members):
            return dict.fromkeys(names)
        self._question += 1
        number = self._question
        asked = self._rounds[number] = _Round(names)
        content = OBSERVATION.encode(question(number))
        try:
            for _ in range(TRIES):
                self._send_all(asked.missing, content)
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await asked.complete.wait()
                except TimeoutError:
                    continue
                break
        finally:
            del self._rounds[number]
        answers = {name: asked.answers.get(name) for name in names}
        return {name: each if isinstance(each, kind) else None for name, each in answers.items()}

    def received(self, peer: str, message: RelayedFromGateway) -> None:
        """What another gateway has sent, from the worker that relayed it."""
        sharing = self._machine.sharing
        if sharing is None or message.sender not in sharing.others:
            return
        if self._machine.members.of_peer(peer) is None:
            return
        try:
            content = OBSERVATION.decode(message.content)
        except BadMessage as error:
            self._malformed.of(peer, error)
            return
        if isinstance(content, ObservationAnswer):
            if asked := self._rounds.get(content.question):
                asked.answered(message.sender, content)
            return
        answer = OBSERVATION.encode(self._answer(content))
        self._channel.send(peer, RelayToGateway(message.sender, answer))

    def _send_all(self, gateways: tuple[str, ...], content: bytes) -> None:
        """Through the worker whose turn it is."""
        if not (peers := [member.peer for member in self._machine.members]):
            return
        self._relay += 1
        peer = peers[self._relay % len(peers)]
        for gateway in gateways:
            self._channel.send(peer, RelayToGateway(gateway, content))
