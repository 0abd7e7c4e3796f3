"""The runtime that processes of workers and of the shared pool share: signals, and channels to the
gateways."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol

from tandem.api.clock_and_entropy import fresh_chance
from tandem.config.processes import CurveKeys, PoolNodeSetup, WorkerSetup
from tandem.facts.errors import EngineFailed
from tandem.live.channels.keys import KeyPair
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import NodeKeys
from tandem.live.launching.launcher import ExitCode
from tandem.live.processes.lifecycle import end_within, exit_code
from tandem.messages.cluster import Register, RegisterPoolNode
from tandem.messages.node import (
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
)

# When the process ends, what it sent last may take so long to leave, and everything so long.
LINGER_S: Final = 2.0
SHUTDOWN_S: Final = 10.0


class MemberInbox(Protocol):
    """Where channels and signals put their events, as `live.driver.EventInbox`."""

    def enqueue(
        self, event: GatewayConnected | MessageFromGateway | GatewayGone | LeaveRequested, /
    ) -> None: ...

    def fail(self, failure: Exception) -> None: ...


async def run_member(
    setup: WorkerSetup | PoolNodeSetup,
    register: Register | RegisterPoolNode,
    inbox: MemberInbox,
    run: Callable[[dict[str, NodeChannel]], Awaitable[Leave]],
) -> Leave:
    """All that the process does once it is loaded: `run` its machine, which registers so, on a
    channel to each gateway. What was sent last may still leave, and then the process has to end."""
    heed_signals(inbox)
    identity = f"{register.worker}/{register.incarnation}"
    channels = channels_to(setup.gateways, setup.keys, identity, inbox)
    code: int = ExitCode.FAILED
    try:
        left = await run(channels)
        code = exit_code(left)
        return left
    finally:
        end_within(SHUTDOWN_S, code)
        await asyncio.gather(*(channel.close(LINGER_S) for channel in channels.values()))


def channels_to(
    gateways: Iterable[str], keys: CurveKeys, identity: str, inbox: MemberInbox
) -> dict[str, NodeChannel]:
    """One for each gateway; `identity` is the process's name and incarnation."""
    own = NodeKeys(KeyPair(keys.worker_public, keys.worker_secret), keys.gateway_public)
    return {
        gateway: NodeChannel(
            gateway,
            identity,
            own,
            on_news=inbox.enqueue,
            refused=lambda reason: inbox.fail(EngineFailed(reason)),
            chance=fresh_chance,
        )
        for gateway in gateways
    }


def heed_signals(inbox: MemberInbox) -> None:
    """The first signal asks the process to leave orderly; a second one ends it."""
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def heed(number: int) -> None:
        if signals:
            os._exit(128 + number)
        signals.append(number)
        inbox.enqueue(LeaveRequested())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, partial(heed, number))
