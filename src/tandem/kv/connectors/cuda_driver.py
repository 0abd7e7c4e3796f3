"""The few calls of the CUDA driver that copying between processes takes, and errors of our own.

The driver's library is used because it is the one that is always the same, whatever CUDA runtime
torch brings; nothing of torch's own sharing is, which counts references in files and pickles.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

from tandem.kv.connectors.contract import ConnectorError

LIBRARY: Final = "libcuda.so.1"
HANDLE_BYTES: Final = 64
_NOT_READY: Final = 600
_STREAM_NON_BLOCKING: Final = 1
_EVENT_DISABLE_TIMING: Final = 2
_LAZY_ENABLE_PEER_ACCESS: Final = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


# Device pointers are 64-bit numbers, contexts, streams and events plain pointers.
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuEventDestroy_v2": (c_void_p,),
}


class CudaDriver:
    """One device as torch sees it too (its primary context), and a stream of copies on it. Every
    method may raise `ConnectorError`; from any thread, one at a time."""

    def __init__(self, device: int, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, parameters in _SIGNATURES.items():
                call = getattr(self._library, name)
                call.argtypes, call.restype = parameters, c_int
        except (OSError, AttributeError) as error:
            raise ConnectorError(f"cuda-ipc needs the driver of a GPU: {error}") from error
        self._call("cuInit", 0)
        number = c_int()
        self._call("cuDeviceGet", byref(number), device)
        self._device = number.value
        self._context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._stream = c_void_p()
        with self._current():
            # Otherwise the copies would wait for the engine's work on the default stream.
            self._call("cuStreamCreate", byref(self._stream), _STREAM_NON_BLOCKING)

    def export(self, address: int) -> tuple[bytes, int]:
        """A handle of the allocation that `address` lies in, for other processes, and how far
        into it: allocators hand out parts of what the driver gave them."""
        base, size, handle = c_uint64(), c_size_t(), _Handle()
        with self._current():
            self._call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
            self._call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle), address - base.value

    def open(self, handle: bytes) -> int:
        """Maps another process's allocation; gives its address here."""
        address = c_uint64()
        with self._current():
            self._call(
                "cuIpcOpenMemHandle_v2",
                byref(address),
                _Handle.from_buffer_copy(handle),
                _LAZY_ENABLE_PEER_ACCESS,
            )
        return address.value

    def unmap(self, address: int) -> None:
        with self._current():
            self._call("cuIpcCloseMemHandle", address)

    def copy(self, target: list[int], source: list[int], lengths: list[int]) -> int:
        """Begins to copy pieces between addresses of any device or the host; gives an event that
        `finished` or `wait` takes, exactly once in the end."""
        event = c_void_p()
        with self._current():
            try:
                for to, where, length in zip(target, source, lengths, strict=True):
                    self._call("cuMemcpyAsync", to, where, length, self._stream)
                self._call("cuEventCreate", byref(event), _EVENT_DISABLE_TIMING)
                self._call("cuEventRecord", event, self._stream)
            except ConnectorError:
                # Nobody waits for the pieces that were begun, so they must be over.
                self._library.cuStreamSynchronize(self._stream)
                raise
        assert event.value is not None
        return event.value

    def finished(self, event: int) -> bool:
        """Whether the copies are over. When they are, the event is too."""
        with self._current():
            status = self._library.cuEventQuery(event)
            if status == _NOT_READY:
                return False
            self._check("cuEventQuery", status)
            self._call("cuEventDestroy_v2", event)
        return True

    def wait(self, event: int) -> None:
        with self._current():
            self._call("cuEventSynchronize", event)
            self._call("cuEventDestroy_v2", event)

    def release_context(self) -> None:
        with self._current():
            self._call("cuStreamDestroy_v2", self._stream)
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Whatever thread this is, and whatever context it has now."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = c_char_p()
            self._library.cuGetErrorString(status, byref(text))
            reason = (text.value or b"unknown error").decode()
            raise ConnectorError(f"cuda-ipc: {name} says {reason} ({status})")
