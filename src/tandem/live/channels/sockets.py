"""ZeroMQ sockets as the cluster uses them: encrypted, bounded, known by key."""

import asyncio
from typing import NamedTuple

import zmq

from tandem.live.channels.admitted import AdmittedKeys
from tandem.live.channels.curve import KeyPair
from tandem.live.channels.limits import ChannelLimits
from tandem.messages.codec import MESSAGE_LIMIT_BYTES

ZAP_DOMAIN = b"tandem"
OPERATOR_PREFIX = "operator/"


class GatewayKeys(NamedTuple):
    """The gateway's own pair, and the public keys of those who may connect."""

    own: KeyPair
    admitted: AdmittedKeys


class NodeKeys(NamedTuple):
    """The pair of a worker or an operator, and the public key that gateways prove to have."""

    own: KeyPair
    gateways: str


def gateway_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", own: KeyPair, limits: ChannelLimits
) -> "zmq.Socket[bytes]":
    """Unbound."""
    socket = context.socket(zmq.ROUTER)
    _configure(socket, own, limits)
    socket.curve_server = True
    socket.zap_domain = ZAP_DOMAIN
    # Sending to a peer that has gone is an error, not silence.
    socket.router_mandatory = True
    return socket


def node_socket(
    context: "zmq.Context[zmq.Socket[bytes]]",
    keys: NodeKeys,
    limits: ChannelLimits,
    identity: bytes,
) -> "zmq.Socket[bytes]":
    """Unconnected. It connects once: whoever wants another connection takes another socket."""
    socket = context.socket(zmq.DEALER)
    _configure(socket, keys.own, limits)
    socket.curve_serverkey = keys.gateways.encode()
    socket.routing_id = identity
    socket.reconnect_ivl = -1
    socket.connect_timeout = int(limits.handshake_s * 1000)
    return socket


async def close_context(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """After all its sockets: waits, off the loop, until their last words are out."""
    await asyncio.to_thread(context.term)


def _configure(socket: "zmq.Socket[bytes]", own: KeyPair, limits: ChannelLimits) -> None:
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
    socket.sndhwm = socket.rcvhwm = limits.high_water
    socket.maxmsgsize = MESSAGE_LIMIT_BYTES
    socket.linger = 0
    # Never heartbeats of libzmq's own: up to 4.3.5 one that falls due on a connection which broke
    # while it was full aborts the whole process. Whether a process lives is for the machines to
    # know; whether its host does is for TCP.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = max(1, int(limits.dead_after_s / 4))
    socket.tcp_keepalive_cnt = 3
    socket.tcp_maxrt = int(limits.dead_after_s * 1000)
    socket.handshake_ivl = int(limits.handshake_s * 1000)
