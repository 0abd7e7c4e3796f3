"""One NIXL agent over UCX, with the few verbs that a connector needs and errors of our own.

The one module that knows NIXL's bindings. They are used directly, not through NIXL's wrapper: that
one cannot set how long the progress thread sleeps, and with its value the thread burns a core.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.region import Region

# One for each version of CUDA; without a GPU either will do.
PACKAGES = ("nixl_cu12", "nixl_cu13")
_ERRORS = (
    "Backend", "Cancelled", "InvalidParam", "Mismatch", "NotAllowed", "NotFound", "NotPosted",
    "NotSupported", "RemoteDisconnect", "RepostActive", "Unknown",
)  # fmt: skip
# The progress thread wakes when something comes; this is how long it sleeps otherwise.
_PROGRESS_US = 10_000


def bindings(packages: Sequence[str] = PACKAGES) -> Any:
    """NIXL's own module. Raises `ConnectorError` where it is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is not None:
            return importlib.import_module(f"{package}._bindings")
    raise ConnectorError("connector nixl needs NIXL: pip install 'tandem[nixl]'")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Parts of a memory: `lengths[i]` bytes at `offsets[i]`."""

    memory: Region
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def rows(self) -> NDArray[np.uint64]:
        """uint64[n, 3]: address, length, number of the device."""
        rows = np.empty((len(self.lengths), 3), dtype=np.uint64)
        rows[:, 0] = self.offsets
        rows[:, 0] += np.uint64(self.memory.address)
        rows[:, 1] = self.lengths
        rows[:, 2] = device_number(self.memory.device)
        return rows


def device_number(device: str) -> int:
    """3 of "cuda:3", and 0 of what has no number."""
    number = device.partition(":")[2]
    return int(number) if number.isdigit() else 0


class NixlAgent:
    """Owns a UCX context, its connections and a progress thread, until `close_agent`. Every method
    may raise `ConnectorError`. Use from one thread at a time."""

    def __init__(self, name: str) -> None:
        self._nixl = bindings()
        self._errors = tuple(getattr(self._nixl, f"nixl{error}Error") for error in _ERRORS)
        self._name = name
        config = self._nixl.nixlAgentConfig()
        # Without the thread nobody answers peers where UCX has no one-sided reads (plain TCP).
        config.useProgThread = True
        config.pthrDelay = _PROGRESS_US
        with self._saying("start its UCX backend"):
            self._agent: Any = self._nixl.nixlAgent(name, config)
            self._backends = [self._agent.createBackend("UCX", {})]

    def register(self, region: Region) -> None:
        rows = [(region.address, region.bytes, device_number(region.device), "")]
        with self._saying(f"register {region.bytes} bytes of {region.device}"):
            self._agent.registerMem(
                self._nixl.nixlRegDList(self._segment(region.device), rows), self._backends
            )

    def metadata(self) -> bytes:
        """What another agent needs for `load`: addresses and keys in NIXL's own format."""
        with self._saying("describe itself"):
            return bytes(self._agent.getLocalMD())

    def load(self, metadata: bytes, peer: str) -> None:
        """Gets ready to reach the agent `peer`, which described itself so."""
        with self._saying(f"reach {peer}"):
            name = self._agent.loadRemoteMD(metadata)
        if name != peer.encode():
            raise ConnectorError(f"NIXL agent {self._name} found {name!r} in the place of {peer}")

    def begin(self, peer: str, own: Pieces, theirs: Pieces) -> int:
        """Begins to copy the peer's pieces into own ones; gives a handle. Where UCX copies in the
        calling thread (processes of one host), all is done on return; the interpreter's lock is not
        held."""
        operation = self._nixl.NIXL_READ
        with self._saying("begin to copy"):
            handle = self._agent.createXferReq(
                operation, self._rows(own), self._rows(theirs), peer, "", self._backends
            )
            self._agent.postXferReq(handle, "")
        return int(handle)

    def done(self, handle: int) -> bool:
        """Whether all bytes are there. Raises `ConnectorError` when they will never be."""
        with self._saying("copy"):
            status = self._agent.getXferStatus(handle)
        if status == self._nixl.NIXL_IN_PROG:
            return False
        if status != self._nixl.NIXL_SUCCESS:
            raise ConnectorError(f"NIXL agent {self._name} could not copy: {status}")
        return True

    def release(self, handle: int) -> None:
        """For copies that are done, and before `close_agent`: UCX lets go of others, but goes on to
        write what comes for them."""
        with self._saying("release a copy"):
            self._agent.releaseXferReq(handle)

    def close_agent(self, handles: Iterable[int] = ()) -> None:
        """Ends connections and copies. Afterwards nothing is written on their behalf, whatever
        peers still send: the agent's last reference goes, and takes UCX's sockets and queues."""
        for handle in handles:
            # What cannot be released goes with the agent.
            with suppress(ConnectorError):
                self.release(handle)
        self._agent = None

    def _segment(self, device: str) -> Any:
        return self._nixl.DRAM_SEG if device == "cpu" else self._nixl.VRAM_SEG

    def _rows(self, pieces: Pieces) -> Any:
        return self._nixl.nixlXferDList(self._segment(pieces.memory.device), pieces.rows())

    @contextmanager
    def _saying(self, task: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise ConnectorError(f"NIXL agent {self._name} could not {task}: {error}") from error
