"""Authentication of the peers of a gateway socket: the key guard lets only known keys connect (the
server side of ZAP, RFC 27), and `Senders` knows which key each message came with and what that key
is for.

A peer chooses its name itself, but not the key that its connection came in with.
"""

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils import z85

from tandem.live.channels.keys import AdmittedKeys, PeerRole
from tandem.live.channels.sockets import OPERATOR_PREFIX, SocketPump
from tandem.messages.codec import OPERATOR
from tandem.messages.operator import AskStatus, Done, Question

logger = logging.getLogger(__name__)

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
CURVE_REQUEST_FRAMES = 7
KEY_BYTES = 32
# What ZeroMQ calls the one whom the guard has let in.
USER_ID = "User-Id"
# So soon a key that was revoked is noticed.
REVIEW_S = 1.0
NO_OPERATOR = "this key is a worker's: it may ask for the status, and nothing else"


class Senders:
    """From `watch` to `close` `leave` gets, on the event loop, peers whose key is revoked."""

    def __init__(self, admitted: AdmittedKeys, leave: Callable[[str], None]) -> None:
        self._admitted = admitted
        self._reviewed = admitted.version
        self._leave = leave
        self._keys: dict[str, str] = {}
        self._sender: zmq.Frame | None = None
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Look at the keys from now on."""
        self._timer = asyncio.get_running_loop().call_later(REVIEW_S, self.review)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def receive(self, socket: "zmq.Socket[bytes]") -> list[bytes]:
        """The frames of the next message. Raises `zmq.Again` when there is none."""
        self._sender = socket.recv(zmq.NOBLOCK, copy=False)
        rest = socket.recv_multipart(zmq.NOBLOCK) if self._sender.more else []
        return [self._sender.bytes, *rest]

    def refused(self, peer: str, body: bytes) -> Done | bool:
        """Whether `peer`, which sent what was received last, must not send this; for an operator
        the answer that it gets instead. Raises `BadMessage`."""
        operates = peer.startswith(OPERATOR_PREFIX)
        if self._may(peer, PeerRole.OPERATOR if operates else PeerRole.WORKER):
            return False
        if operates and self._may(peer, PeerRole.WORKER):
            question = OPERATOR.decode(body)
            # One that joins must know which names are taken, and whether it is in.
            if isinstance(question, AskStatus):
                return False
            if isinstance(question, Question):
                return Done(question.question, NO_OPERATOR)
        # Its key may have been revoked since it came in; one that never was in is nobody.
        self._leave(peer)
        self.forget(peer)
        return True

    def forget(self, peer: str) -> None:
        self._keys.pop(peer, None)

    def review(self) -> None:
        """Have those leave whose key is no longer for what they are."""
        self.watch()
        self._admitted.look()
        # Whoever knocks has the file read as well.
        if self._admitted.version != self._reviewed:
            self._reviewed = self._admitted.version
            for peer, key in list(self._keys.items()):
                operates = peer.startswith(OPERATOR_PREFIX)
                roles = PeerRole if operates else (PeerRole.WORKER,)
                if not any(self._admitted.may(key, role) for role in roles):
                    self._leave(peer)

    def _may(self, peer: str, role: PeerRole) -> bool:
        if peer not in self._keys:
            assert self._sender is not None
            self._keys[peer] = str(self._sender.get(USER_ID))
        return self._admitted.may(self._keys[peer], role)


class KeyGuard:
    """Answers for every connection to a socket of `context`: those with an `admitted` key may come
    in, and messages that come over them carry it as `User-Id`. Open it before that socket is
    bound."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", admitted: AdmittedKeys) -> None:
        self._known = admitted
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self._pump = SocketPump(self._socket, self._answer)

    def close(self) -> None:
        self._pump.close()
        self._socket.close()

    def _answer(self, frames: list[bytes]) -> None:
        admitted = (
            len(frames) == CURVE_REQUEST_FRAMES
            and frames[0] == ZAP_VERSION
            and frames[5] == b"CURVE"
            and len(frames[6]) == KEY_BYTES
            # The key has proved itself before libzmq asks; a public key is no secret to compare.
            and self._known.admits(z85.encode(frames[6]).decode())
        )
        user = z85.encode(frames[6]) if admitted else b""
        status, text = (b"200", b"OK") if admitted else (b"400", b"not a key of this cluster")
        if not admitted:
            address = frames[3].decode(errors="replace") if len(frames) > 3 else "?"
            logger.warning("refused a connection from %s: not a key of this cluster", address)
        number = frames[1] if len(frames) > 1 else b""
        self._socket.send_multipart([ZAP_VERSION, number, status, text, user, b""])
        self._pump.look()
