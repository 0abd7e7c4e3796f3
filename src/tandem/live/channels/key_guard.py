"""Lets only holders of a known key into a ZeroMQ context (the server's side of ZAP, RFC 27)."""

import logging

import zmq
from zmq.utils import z85

from tandem.live.channels.admitted import AdmittedKeys
from tandem.live.channels.pump import SocketPump

logger = logging.getLogger(__name__)

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
CURVE_REQUEST_FRAMES = 7
KEY_BYTES = 32


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
        self.refused = 0

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
            self.refused += 1
            address = frames[3].decode(errors="replace") if len(frames) > 3 else "?"
            logger.warning("refused a connection from %s: not a key of this cluster", address)
        number = frames[1] if len(frames) > 1 else b""
        self._socket.send_multipart([ZAP_VERSION, number, status, text, user, b""])
        self._pump.look()
