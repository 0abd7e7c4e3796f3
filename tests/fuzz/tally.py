"""What came of the calls: how many, which statuses, and what must never happen."""

import threading
from collections import Counter
from dataclasses import dataclass, field

import requests

# One example of each kind of failure is worth reading.
EXAMPLES = 20
SHOWN_CHARACTERS = 600


@dataclass
class Tally:
    """Filled by several clients. A failure is a status of 500 and more, an answer that does not
    come in time, or a connection that breaks."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, operation: str, answer: requests.Response) -> None:
        with self._lock:
            self.statuses[operation, answer.status_code] += 1
        if answer.status_code >= 500:
            self._failed(operation, f"status {answer.status_code}", answer.request, answer.text)

    def broke(self, operation: str, error: requests.RequestException) -> None:
        """A call without an answer."""
        kind = "no answer in time" if isinstance(error, requests.Timeout) else "connection broke"
        self._failed(operation, kind, error.request, str(error))

    def report(self) -> str:
        calls = sum(self.statuses.values())
        lines = [f"{calls:,} calls, {self.failures.total():,} failures"]
        for operation in sorted({operation for operation, _ in self.statuses}):
            of_it = sorted(
                (code, n) for (name, code), n in self.statuses.items() if name == operation
            )
            lines.append(f"  {operation}: " + ", ".join(f"{n:,} x {code}" for code, n in of_it))
        lines += [f"FAILED {n:,} x {name}: {kind}" for (name, kind), n in self.failures.items()]
        return "\n".join([*lines, *self.examples])

    def _failed(
        self,
        operation: str,
        kind: str,
        request: requests.PreparedRequest | requests.Request | None,
        told: str,
    ) -> None:
        sent = f"{request.method} {request.url}" if request else ""
        body = getattr(request, "body", None)
        with self._lock:
            self.failures[operation, kind] += 1
            if self.failures[operation, kind] == 1 and len(self.examples) < EXAMPLES:
                self.examples.append(
                    f"--- {kind}: {sent}\n{shown(getattr(request, 'headers', ''))}\n"
                    f"{shown(body)}\n-> {shown(told)}"
                )


def shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    half = SHOWN_CHARACTERS // 2
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:half]} ... {len(text):,} characters ... {text[-half:]}"
