"""Operators' configurations for a gateway that runs: made beside its event loop, checked or taken,
one after the other."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tandem.cluster.gateway.configuration import ConfigurationChanged
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.channels.gateway_channel import ChannelNews, MessageFromOperator
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.loop import Channel
from tandem.live.gateway.terms import GatewayTerms
from tandem.messages.operator import AskConfigure, Done

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewConfiguration:
    """All of a gateway that changes with its configuration: the event for its machine, the terms of
    its clients, and what is to be called once both hold (`taken`). `change` makes the event when it
    is to be taken, in a thread, for it reads files; it raises `InvalidConfiguration`."""

    change: Callable[[], ConfigurationChanged]
    terms: GatewayTerms
    taken: Callable[[], None]


# Reads an operator's configuration, in a thread. Raises `TandemError` for one that cannot be taken.
MakeConfiguration = Callable[[bytes], NewConfiguration]


class Reconfiguration:
    """Takes operators' `AskConfigure` from the news of a gateway's channel, and answers them there.
    Used from one event loop, from `open` to `stop`."""

    def __init__(self, gateway: Gateway, make: MakeConfiguration) -> None:
        self._gateway, self._make = gateway, make
        self._channel: Channel
        self._one_by_one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, channel: Channel) -> None:
        """Before the first news: the way to operators."""
        self._channel = channel

    def on_news(self, news: ChannelNews) -> None:
        """News of the channel: what is no configuration goes on to the gateway."""
        asked = news.message if isinstance(news, MessageFromOperator) else None
        if not isinstance(news, MessageFromOperator) or not isinstance(asked, AskConfigure):
            self._gateway.enqueue(news)
            return
        task = asyncio.create_task(self._check_or_take(asked))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answer(task, news.peer, asked))

    async def stop(self) -> None:
        """Take nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _answer(self, task: asyncio.Task[None], peer: str, asked: AskConfigure) -> None:
        """Answer the operator, whatever has become of what was asked."""
        self._tasks.discard(task)
        if task.cancelled():
            return
        problem, error = "", task.exception()
        if isinstance(error, TandemError):
            problem = str(error)
        elif error is not None:
            logger.error("configuration %d was not taken", asked.number, exc_info=error)
            problem = f"it failed: {type(error).__name__}: {error}; the log says more"
        self._channel.answer(peer, Done(asked.question, problem))

    async def _check_or_take(self, asked: AskConfigure) -> None:
        async with self._one_by_one:
            current = self._gateway.machine.config.configuration
            if asked.number == current:
                # It is asked for again by whoever missed the answer.
                return
            if asked.number < current:
                raise InvalidConfiguration(f"configuration {current} has been taken since")
            # Datasheets, profiles and key files are read: clients' tokens need not wait for that.
            new = await asyncio.to_thread(self._make, asked.configuration)
            if not asked.check_only:
                change = await asyncio.to_thread(new.change)
                await self._gateway.reconfigure(change, new.terms)
                new.taken()
