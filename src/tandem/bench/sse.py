"""Server-sent events: bytes in, whole `data` payloads out, however the network cut them.

Owns only the unfinished tail. Comments, event names and ids are dropped: no client here needs them.
"""


class EventParser:
    """The parser of one stream (WHATWG "event stream interpretation", data fields only)."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that `chunk` completes, in order; lines may end in LF, CR LF or CR."""
        if not chunk:
            return []
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_return = False
        if b"\r" in chunk:
            # A CR ends its line at once; its LF may come with the next chunk, then it is skipped.
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif chunk:
            self._after_return = False
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return self._dispatch(lines)

    def _dispatch(self, lines: list[bytes]) -> list[bytes]:
        payloads = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                payloads.append(b"\n".join(self._data))
                self._data.clear()
        return payloads
