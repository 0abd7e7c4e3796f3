"""The runtime that processes of workers and of the shared pool share: exit codes, signals, channels
to the gateways."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol

from tandem.api.clock_and_entropy import fresh_chance
from tandem.config.processes import CurveKeys, PoolNodeSetup, WorkerSetup
from tandem.facts.errors import EngineFailed, InvalidConfiguration, TandemError
from tandem.live.channels.keys import KeyPair
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import NodeKeys
from tandem.live.launching.supervisor import AGAIN
from tandem.live.processes.lifecycle import end_within
from tandem.messages.cluster import Register, RegisterPoolNode
from tandem.messages.node import (
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
)

logger = logging.getLogger(__name__)

# Exit codes beside 0 and `AGAIN`, which are what was wanted. A new start may cure the first only.
FAILED: Final = 1
MISCONFIGURED: Final = 2
UNWELCOME: Final = 3
# When the process ends, what it said last may take so long to leave, and everything so long.
LAST_WORD_S: Final = 2.0
SHUTDOWN_S: Final = 10.0


class MemberInbox(Protocol):
    """What channels and signals tell; as `live.driver.EventInbox`."""

    def enqueue(
        self, event: GatewayConnected | MessageFromGateway | GatewayGone | LeaveRequested, /
    ) -> None: ...

    def fail(self, failure: Exception) -> None: ...


def end_as(name: str, work: Callable[[], Leave]) -> None:
    """Do the `work` of the process. Raises `SystemExit` with one of the codes above, or `AGAIN`,
    unless it was told to leave."""
    try:
        left = work()
    except InvalidConfiguration as error:
        logger.error("%s cannot start: %s", name, error)
        raise SystemExit(MISCONFIGURED) from error
    except TandemError as error:
        logger.error("%s failed: %s", name, error)
        raise SystemExit(FAILED) from error
    if left.reason:
        logger.error("%s ends: %s", name, left.reason)
    else:
        logger.info("%s has left", name)
    if code := exit_code(left):
        raise SystemExit(code)


def exit_code(left: Leave) -> int:
    return UNWELCOME if left.reason else AGAIN if left.again else 0


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
    code = FAILED
    try:
        left = await run(channels)
        code = exit_code(left)
        return left
    finally:
        end_within(SHUTDOWN_S, code)
        await asyncio.gather(*(channel.close(LAST_WORD_S) for channel in channels.values()))


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
