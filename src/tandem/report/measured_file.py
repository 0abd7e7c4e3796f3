"""Reads what `tandem bench --output` wrote (`documents.MeasuredResults`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.measured import LoadPoint, SweepPoint, summarise_measured
from tandem.report.record import Ending, MeasuredRequest


@dataclass(frozen=True, slots=True)
class ReadResults:
    """A benchmark as its file tells it; `settings` are those that were not left at nothing, in
    words."""

    model: str
    url: str
    started_utc: str
    settings: str
    slo: Slo
    runs: Sequence[SweepPoint]


def read_results(path: Path) -> ReadResults:
    """Raises `InvalidConfiguration` for a file that is something else."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        slo = Slo(**document["settings"].pop("slo"))
        return ReadResults(
            model=document["server"]["model"],
            url=document["server"]["url"],
            started_utc=document["started_utc"],
            settings=_in_words(document["settings"]),
            slo=slo,
            runs=[_sweep_point(run, slo) for run in document["runs"]],
        )
    except OSError as error:
        raise InvalidConfiguration(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(
            f"{path} is not what `tandem bench --output` writes: {error!r}"
        ) from error


def _sweep_point(run: Mapping[str, Any], slo: Slo) -> SweepPoint:
    rate = run["load"]["rate_rps"]
    load = LoadPoint(None if rate is None else float(rate), run["load"]["concurrency"])
    requests = [_request(row) for row in run["requests"]]
    return SweepPoint(load, summarise_measured(requests, slo), requests)


def _request(row: Mapping[str, Any]) -> MeasuredRequest:
    """The inverse of `documents.measured_row`, to the microsecond."""
    sent_ns, tokens = _ns(row["sent_s"]), row["output_tokens"]
    first_ns = -1 if row["ttft_s"] is None else sent_ns + _ns(row["ttft_s"])
    decode_ns = _ns((row["tpot_s"] or 0.0) * max(0, tokens - 1))
    return MeasuredRequest(
        request_id=str(row["index"]),
        serial=row["index"],
        arrival_ns=sent_ns,
        prompt_tokens=row["prompt_tokens"],
        output_tokens=tokens,
        ending=Ending.FAILED if row["error"] else Ending.FINISHED,
        reason=row["error"],
        first_token_ns=first_ns,
        last_token_ns=-1 if first_ns < 0 else first_ns + decode_ns,
        end_ns=sent_ns + _ns(row["latency_s"]),
        emitted_tokens=tokens,
        due_ns=_ns(row["arrival_s"]),
        gaps_ns=[_ns(gap_s) for gap_s in row["gaps_s"]],
        cached_tokens=row["cached_tokens"],
        finish_reason=row["finish_reason"],
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _in_words(settings: Mapping[str, Any], within: str = "") -> str:
    words = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            words.append(_in_words(value, f"{within}{name}."))
        elif value not in (None, "", False, [], ()):
            words.append(f"{within}{name} {value}")
    return ", ".join(word for word in words if word)
