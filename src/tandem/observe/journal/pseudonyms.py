"""Names that stand in a journal instead of those of requests, tenants and sessions."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from tandem.facts.rate_limits import background_account, owner_of_account
from tandem.facts.request import Request
from tandem.observe.journal.records import UNKNOWN, Name

_BASE = 16


@dataclass(slots=True)
class _OpenRequest:
    number: int
    prompt: int
    wire_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Prompt:
    """`tokens` are kept so that nobody else gets their identity."""

    tokens: object
    number: int
    requests: int = 0


class RequestNumbers:
    """Requests by number while they are open. What workers call an attempt of request 12 is
    "12~1"."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRequest] = {}
        self._names: dict[str, Name] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._serial = self._prompt_serial = 0

    def submitted(self, request: Request) -> tuple[int, int]:
        """One more. Gives its number, and that of its prompt: requests that hold the very same
        object have one."""
        key = id(request.prompt_tokens)
        prompt = self._prompts.get(key)
        if prompt is None:
            prompt = self._prompts[key] = _Prompt(request.prompt_tokens, self._prompt_serial)
            self._prompt_serial += 1
        prompt.requests += 1
        number, self._serial = self._serial, self._serial + 1
        request_id = request.request_id
        self._open[request_id] = _OpenRequest(number, key, [request_id])
        self._names[request_id] = number
        return number, prompt.number

    def name(self, wire_id: str) -> Name:
        """Of a request or an attempt; `UNKNOWN` once the request has ended."""
        name = self._names.get(wire_id)
        if name is not None:
            return name
        request_id, _, attempt = wire_id.rpartition("~")
        request = self._open.get(request_id)
        if request is None:
            return UNKNOWN
        name = f"{request.number}~{attempt}"
        self._names[wire_id] = name
        request.wire_ids.append(wire_id)
        return name

    def ended(self, request_id: str) -> None:
        """Nobody asks for it any more; nothing happens where it is not open."""
        request = self._open.pop(request_id, None)
        if request is None:
            return
        for wire_id in request.wire_ids:
            del self._names[wire_id]
        prompt = self._prompts[request.prompt]
        prompt.requests -= 1
        if not prompt.requests:
            del self._prompts[request.prompt]


class TenantNames:
    """Pseudonyms that sort as the names do, because a fair queue breaks ties by name. With `plain`
    they are the names. Nobody (empty) stays nobody."""

    def __init__(self, configured: Iterable[str] = (), *, plain: bool = False) -> None:
        self._plain = plain
        self._names: list[str] = []
        self._labels: list[str] = []
        for name in sorted(set(configured)):
            self.label(name)

    def label(self, name: str) -> str:
        """The same for every call with this name."""
        if self._plain or not name:
            return name
        if (owner := owner_of_account(name)) != name:
            # A replay must know whose limits it has.
            return background_account(self.label(owner))
        place = bisect_left(self._names, name)
        if place < len(self._names) and self._names[place] == name:
            return self._labels[place]
        low = self._labels[place - 1] if place else ""
        high = self._labels[place] if place < len(self._labels) else ""
        self._names.insert(place, name)
        self._labels.insert(place, _between(low, high))
        return self._labels[place]


def _between(low: str, high: str) -> str:
    """A hexadecimal fraction between two others; an empty one is 0 as `low`, and 1 as `high`."""
    digits = max(len(low), len(high)) + 1
    first = int(low.ljust(digits, "0"), _BASE)
    last = int(high.ljust(digits, "0"), _BASE) if high else _BASE**digits
    # Where only the last digit is left between them, there are sixteen places in it.
    middle = (first + last) // 2
    return f"{middle:0{digits}x}".rstrip("0")


class SessionNames:
    """Digests under a `key` that is written nowhere; with `plain` the names themselves."""

    def __init__(self, key: bytes, *, plain: bool = False) -> None:
        self._key = key
        self._plain = plain

    def label(self, session: str) -> str:
        """The same for every call with this session."""
        # What a client wrote may hold halves of surrogate pairs, which no file takes.
        written = session.encode("utf-8", "surrogatepass")
        if self._plain or not session:
            return written.decode("utf-8", "replace")
        return blake2b(written, key=self._key, digest_size=8).hexdigest()
