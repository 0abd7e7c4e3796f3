"""Both ends of a channel on one loop, over a real socket, and the patience to wait for news."""

import asyncio
from collections.abc import Callable

from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, PeerRole, make_keys
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import ChannelLimits, GatewayKeys, NodeKeys
from tandem.messages.node import GatewayConnected

PATIENCE_S = 20.0
GATEWAY_PAIR, WORKER_PAIR = make_keys()
# One pair plays both parts here.
ADMITTED = AdmittedKeys([Admitted(role, WORKER_PAIR.public) for role in PeerRole])
GATEWAY_KEYS = GatewayKeys(GATEWAY_PAIR, ADMITTED)
NODE_KEYS = NodeKeys(WORKER_PAIR, GATEWAY_PAIR.public)


# Of the test that runs: what it leaves open when it fails would keep the process from ending.
_opened: list[GatewayChannel | NodeChannel] = []


async def close_ends() -> None:
    """All that are still open."""
    while _opened:
        await _opened.pop().close(0.0)


class News:
    """All that was told, in order."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self._came = asyncio.Event()

    def __call__(self, news: object) -> None:
        self.told.append(news)
        self._came.set()

    def of(self, kind: type) -> list:
        return [news for news in self.told if isinstance(news, kind)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for news that make it true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._came.clear()
                await self._came.wait()

    async def first(self, kind: type, number: int = 1):
        """The n-th news of a kind, once it is there."""
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)[number - 1]


def gateway_end(
    news: News, listen: str = "tcp://127.0.0.1:0", limits: ChannelLimits | None = None
) -> tuple[GatewayChannel, str]:
    """An open channel, and where it listens."""
    channel = GatewayChannel(listen, GATEWAY_KEYS, news, limits)
    _opened.append(channel)
    return channel, channel.open()


def node_end(
    endpoint: str,
    news: News,
    *,
    name: str = "w0/a",
    keys: NodeKeys = NODE_KEYS,
    limits: ChannelLimits | None = None,
) -> NodeChannel:
    """An open channel; a refusal is told as its text."""
    channel = NodeChannel(endpoint, name, keys, on_news=news, refused=news, limits=limits)
    _opened.append(channel)
    channel.open()
    return channel


async def connected_ends() -> tuple[GatewayChannel, NodeChannel, News, News]:
    """A gateway's end and a node's that has reached it, and the news of either."""
    at_gateway, at_node = News(), News()
    gateway, endpoint = gateway_end(at_gateway)
    node = node_end(endpoint, at_node)
    await at_node.first(GatewayConnected)
    return gateway, node, at_gateway, at_node
