"""The control socket of a supervisor: an operator's terminal asks, one line of JSON, and gets
answers, a line each. It lies in the cluster's state directory: whoever may come there may ask."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tandem.facts.errors import TandemError
from tandem.messages.supervisor import AskApply, SupervisorAnswer

SOCKET = "control"
# A cluster file is thousands of times smaller.
MOST_BYTES = 16 << 20
# What the kernel takes for the address of a Unix socket.
MOST_ADDRESS_BYTES = 100

Send = Callable[[SupervisorAnswer], Awaitable[None]]

_decode_question = msgspec.json.Decoder(AskApply).decode
_decode_answer = msgspec.json.Decoder(SupervisorAnswer).decode


class ControlFailed(TandemError):
    """The supervisor cannot be reached, or has gone."""


class ControlServer:
    """Answers questions with `answer`, which gets each with what sends to its asker. An asker that
    has left is answered in vain: what it asked for goes on."""

    def __init__(self, folder: Path, answer: Callable[[AskApply, Send], Awaitable[None]]) -> None:
        self._folder, self._answer = folder, answer
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises `OSError`."""
        (self._folder / SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with _address(self._folder) as address:
            listener.bind(address)
        (self._folder / SOCKET).chmod(0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MOST_BYTES)

    def close(self) -> None:
        """Take no more questions."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(answer: SupervisorAnswer) -> None:
            with suppress(ConnectionError):
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()

        try:
            with suppress(ValueError, msgspec.MsgspecError, ConnectionError):
                await self._answer(_decode_question(await reader.readline()), send)
        finally:
            writer.close()


async def ask_supervisor(folder: Path, question: AskApply) -> AsyncIterator[SupervisorAnswer]:
    """The answers of the supervisor whose state directory this is. Raises `ControlFailed` where
    there is none, or it ends."""
    try:
        with _address(folder) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=MOST_BYTES)
    except OSError as error:
        raise ControlFailed(
            f"the supervisor of the cluster in {folder} does not answer "
            f"({error.strerror or error}); is it ready, and of this version?"
        ) from error
    try:
        writer.write(msgspec.json.encode(question) + b"\n")
        while line := await reader.readline():
            yield _decode_answer(line)
    except (ConnectionError, msgspec.MsgspecError) as error:
        raise ControlFailed(f"the supervisor has gone: {error}") from error
    finally:
        writer.close()


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """The socket's address, while the context lasts: by a descriptor where its path is too long."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= MOST_ADDRESS_BYTES:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
