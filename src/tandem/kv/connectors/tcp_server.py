"""Serves the memory of a process to those who know the secret.

Whatever comes over the port, nothing beyond the region is ever touched.
"""

import socket
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors import tcp_frames as frames
from tandem.kv.connectors.tcp_door import TcpDoor, TcpLimits
from tandem.kv.connectors.tcp_stream import Stream


class TcpServer:
    """Listens from its making on, at `port`."""

    def __init__(
        self,
        listening: socket.socket,
        memory: memoryview,
        credentials: frames.Credentials,
        *,
        entropy: Callable[[int], bytes],
        limits: TcpLimits,
    ) -> None:
        self._memory = memory
        self._limits = limits
        self._door = TcpDoor(listening, credentials, self._serve, entropy=entropy, limits=limits)
        self.port = self._door.port

    def close(self, patience_s: float) -> None:
        """When it returns nobody reads or writes the memory any more."""
        self._door.close(patience_s)

    def _serve(self, stream: Stream) -> None:
        while True:
            self._answer(stream)

    def _answer(self, stream: Stream) -> None:
        silence_s = self._limits.silence_s
        head = bytearray(frames.HEAD_BYTES)
        stream.receive([memoryview(head)[:1]], self._limits.idle_s)
        stream.receive([memoryview(head)[1:]], silence_s)
        kind, table_bytes = frames.parse_head(bytes(head))
        if kind is frames.Kind.WRITE and not self._limits.writable:
            raise frames.BadFrame("a write into memory that is only to be read")
        table = bytearray(table_bytes)
        stream.receive([memoryview(table)], silence_s)
        offsets, lengths = frames.parse_table(bytes(head), bytes(table), len(self._memory))
        reply = memoryview(frames.reply(int(lengths.sum())))
        pieces = pieces_of(self._memory, offsets, lengths)
        if kind is frames.Kind.READ:
            stream.send([reply, *pieces], silence_s)
        else:
            stream.receive(pieces, silence_s)
            stream.send([reply], silence_s)


def pieces_of(
    memory: memoryview, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[memoryview]:
    pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    return [memory[offset : offset + length] for offset, length in pairs]
