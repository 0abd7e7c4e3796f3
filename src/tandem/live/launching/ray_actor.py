"""One process of a cluster on a machine of Ray, started and watched by the actor it belongs to.

Knows nothing of Ray. What the process must keep to itself reaches it through memory, never a file.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from tandem.kv.threads import SupervisedThread, no_harm

# Of the output that nobody has fetched yet, this much is kept: the last.
KEPT_BYTES = 1 << 20
PIECE_BYTES = 1 << 16
# After its end a process's output is waited for so long: its children may hold the other end.
OUTPUT_LINGER_S = 1.0
# Told as the status of a process that cannot be watched any more.
UNWATCHED = 1
# Ray sets it for its own workers; a process of ours sets its threads itself.
UNSET = ("-u", "OMP_NUM_THREADS")


class Followed(msgspec.Struct, frozen=True):
    """Output from `first_byte` on, and the status of the process if there is no more."""

    first_byte: int
    output: bytes
    code: int | None


class Output:
    """What a process printed, the end of it. Filled by one thread, read in the loop."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.dropped_bytes = 0
        self.code: int | None = None
        self.changed = asyncio.Event()

    def add(self, piece: bytes) -> None:
        self.kept += piece
        surplus = len(self.kept) - KEPT_BYTES
        if surplus > 0:
            del self.kept[:surplus]
            self.dropped_bytes += surplus
        self.changed.set()

    def end(self, code: int) -> None:
        self.code = code
        self.changed.set()

    async def after(self, seen_bytes: int) -> Followed:
        """As soon as there is more than was seen."""
        while True:
            first_byte = max(seen_bytes, self.dropped_bytes)
            start = first_byte - self.dropped_bytes
            piece = bytes(self.kept[start : start + PIECE_BYTES])
            is_last = start + len(piece) == len(self.kept)
            if piece or self.code is not None:
                return Followed(first_byte, piece, self.code if is_last else None)
            self.changed.clear()
            await self.changed.wait()


class NodeProcess:
    """An asynchronous actor. The kernel ends the process together with it (`end_with_parent`)."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Output | None = None

    def __repr__(self) -> str:
        # What Ray shows to everybody.
        return f"tandem {self._name}"

    async def begin(
        self, words: Sequence[str], environment: Mapping[str, str], setup: bytes | None
    ) -> int:
        """Run Python with these words, after them the name of a file with the set-up. Gives the
        number of the process."""
        output = self._output = Output()
        changes = [f"{key}={value}" for key, value in environment.items()]
        command = ["env", *UNSET, *changes, sys.executable, *words]
        # Started by the thread of the loop, which lives as long as the actor: the kernel asks for
        # the thread, not for the process.
        if setup is None:
            process = _run(command, ())
        else:
            descriptor = os.memfd_create("tandem-setup")
            try:
                os.write(descriptor, _with_parent(setup))
                process = _run([*command, f"/proc/self/fd/{descriptor}"], (descriptor,))
            finally:
                os.close(descriptor)
        self._process = process
        loop = asyncio.get_running_loop()
        _watching(process, output, loop).start()
        return process.pid

    async def follow(self, seen_bytes: int) -> Followed:
        """What it prints after so many bytes, or its end, as soon as there is either. Asking again
        for the same gives the same."""
        assert self._output is not None, "nothing has begun yet"
        return await self._output.after(seen_bytes)

    async def send(self, number: int) -> None:
        """A signal to the process; nothing happens if it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _run(command: Sequence[str], descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
    )


def _with_parent(setup: bytes) -> bytes:
    """The set-up names the process that it shall not outlive: this one."""
    content = msgspec.json.decode(setup)
    return msgspec.json.encode({**content, "parent": os.getpid()})


def _watching(
    process: "subprocess.Popen[bytes]", output: Output, loop: asyncio.AbstractEventLoop
) -> SupervisedThread:
    """Also one that fails ends the output: nobody would notice the process otherwise."""

    def failed(failure: Exception) -> None:
        del failure
        process.kill()
        # A closed loop raises it: then nobody asks.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(output.end, UNWATCHED)

    return SupervisedThread(
        f"watch of {process.pid}", lambda: _watch(process, output, loop), failed
    )


def _watch(
    process: "subprocess.Popen[bytes]", output: Output, loop: asyncio.AbstractEventLoop
) -> None:
    # Without its output the process goes on.
    reading = SupervisedThread("output", lambda: _read(process, output, loop), no_harm)
    reading.start()
    code = process.wait()
    reading.join(OUTPUT_LINGER_S)
    loop.call_soon_threadsafe(output.end, code)


def _read(
    process: "subprocess.Popen[bytes]", output: Output, loop: asyncio.AbstractEventLoop
) -> None:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    while piece := os.read(descriptor, PIECE_BYTES):
        loop.call_soon_threadsafe(output.add, piece)
