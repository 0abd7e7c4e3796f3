"""Both ends of a channel on one loop, over a real socket, and the patience to wait for news; the
keys of every cluster in these tests."""

import asyncio
from collections.abc import Callable

import zmq

from tandem.config.processes import CurveKeys
from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, PeerRole, make_pair
from tandem.live.channels.node_channel import NodeChannel
from tandem.live.channels.sockets import ChannelLimits, GatewayKeys, NodeKeys, node_socket
from tandem.messages.node import GatewayConnected
from tests.coroutines import close_at_end

PATIENCE_S = 60.0
GATEWAY_PAIR, WORKER_PAIR = make_pair(), make_pair()
# One pair plays both parts here.
ADMITTED = AdmittedKeys([Admitted(role, WORKER_PAIR.public) for role in PeerRole])
GATEWAY_KEYS = GatewayKeys(GATEWAY_PAIR, ADMITTED)
NODE_KEYS = NodeKeys(WORKER_PAIR, GATEWAY_PAIR.public)
KEYS = CurveKeys(
    gateway_public=GATEWAY_PAIR.public,
    gateway_secret=GATEWAY_PAIR.secret,
    worker_public=WORKER_PAIR.public,
    worker_secret=WORKER_PAIR.secret,
    operator_public=WORKER_PAIR.public,
)


class News:
    """All that a channel reported, in order."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self._came = asyncio.Event()

    def __call__(self, news: object) -> None:
        self.received.append(news)
        self._came.set()

    def of(self, kind: type) -> list:
        return [news for news in self.received if isinstance(news, kind)]

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
    close_at_end(lambda: channel.close(0.0))
    return channel, channel.open()


def node_end(
    endpoint: str,
    news: News,
    *,
    name: str = "w0/a",
    keys: NodeKeys = NODE_KEYS,
    limits: ChannelLimits | None = None,
) -> NodeChannel:
    """An open channel; a refusal is among the news as its text."""
    channel = NodeChannel(endpoint, name, keys, on_news=news, refused=news, limits=limits)
    close_at_end(lambda: channel.close(0.0))
    channel.open()
    return channel


async def connected_end(
    endpoint: str, limits: ChannelLimits | None = None
) -> tuple[NodeChannel, News]:
    """A node's end that has reached the gateway, and its news."""
    news = News()
    node = node_end(endpoint, news, limits=limits)
    await news.first(GatewayConnected)
    return node, news


async def connected_ends(
    limits: ChannelLimits | None = None, node_limits: ChannelLimits | None = None
) -> tuple[GatewayChannel, NodeChannel, News, News]:
    """A gateway's end and a node's that has reached it, and the news of either."""
    at_gateway = News()
    gateway, endpoint = gateway_end(at_gateway, limits=limits)
    node, at_node = await connected_end(endpoint, node_limits)
    return gateway, node, at_gateway, at_node


def raw_node(endpoint: str, name: str, limits: ChannelLimits | None = None) -> zmq.Socket:
    """The socket of a worker or an operator, without a channel around it."""
    socket = node_socket(zmq.Context(), NODE_KEYS, limits or ChannelLimits(), name.encode())

    async def close() -> None:
        socket.close(0)
        socket.context.term()

    close_at_end(close)
    socket.connect(endpoint)
    return socket
