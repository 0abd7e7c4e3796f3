"""The results file of a benchmark, and the records file that can be replayed as a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from tandem.bench.metrics import Summary
from tandem.bench.record import RequestRecord
from tandem.bench.sweep import LoadPoint
from tandem.facts.errors import InvalidConfiguration

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunResult:
    """One load point: its summary and its requests."""

    load: LoadPoint
    summary: Summary
    records: Sequence[RequestRecord]


@dataclass(frozen=True)
class Results:
    """A whole benchmark: enough to run it again and to compare it. Never holds the API key."""

    settings: Mapping[str, Any]
    server: Mapping[str, Any]
    started_utc: str
    runs: Sequence[RunResult]

    def write(self, path: Path) -> None:
        """JSON; durations in seconds. Raises `InvalidConfiguration` where it cannot be written."""
        document = {
            "format": FORMAT_VERSION,
            "started_utc": self.started_utc,
            "server": self.server,
            "settings": self.settings,
            "runs": [
                {
                    "load": {"rate_rps": _finite(run.load), "concurrency": run.load.concurrency},
                    "summary": asdict(run.summary),
                    "requests": [request_row(record) for record in run.records],
                }
                for run in self.runs
            ],
        }
        encoded = msgspec.json.encode(document, enc_hook=str)
        write_bytes(path, msgspec.json.format(encoded, indent=1), "--output")


def write_records(path: Path, runs: Sequence[RunResult]) -> None:
    """One JSON line a request. The names are those of our own traces: the file can be replayed."""
    encode = msgspec.json.encode
    lines = [encode(request_row(record)) for run in runs for record in run.records]
    write_bytes(path, b"".join(line + b"\n" for line in lines), "--records")


def request_row(record: RequestRecord) -> dict[str, Any]:
    """One request as the files tell it, times to the microsecond."""
    return {
        "index": record.index,
        "arrival_s": round(record.due_s, 6),
        "sent_s": round(record.sent_s, 6),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "ttft_s": _rounded(record.ttft_s),
        "tpot_s": _rounded(record.tpot_s),
        "latency_s": _rounded(record.latency_s),
        "gaps_s": [round(gap_s, 6) for gap_s in record.gaps_s],
        "finish_reason": record.finish_reason,
        "error": record.error,
    }


def write_bytes(path: Path, content: bytes, flag: str) -> None:
    """Writes a file that a flag named; failing to is the caller's mistake."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot write {path}: {error.strerror}") from error


def _finite(load: LoadPoint) -> float | str | None:
    # JSON knows no infinity.
    return "inf" if load.rate_rps == float("inf") else load.rate_rps


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)
