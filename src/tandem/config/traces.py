"""Traces by name: those that come with Tandem, and where recorded ones of others are to be had."""

from dataclasses import dataclass
from pathlib import Path

from tandem.config.environment import BUNDLED
from tandem.facts.errors import InvalidConfiguration, nearest

_BUNDLED_TRACES = BUNDLED / "traces"
_ENDING = ".jsonl.gz"


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A trace that others recorded and publish: what it is, its licence and its address."""

    what: str
    licence: str
    url: str


_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces"
_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
RECORDED = (
    RecordedTrace(
        "Mooncake's conversations (FAST '25): 12,031 requests in 59 minutes, with blocks",
        "Apache-2.0",
        f"{_MOONCAKE}/conversation_trace.jsonl",
    ),
    RecordedTrace(
        "Mooncake's synthetic trace (FAST '25): 3,993 requests in 17 minutes, with blocks",
        "Apache-2.0",
        f"{_MOONCAKE}/synthetic_trace.jsonl",
    ),
    RecordedTrace(
        "Azure's conversations of 2023 (Splitwise, ISCA '24): 19,366 requests in 58 minutes",
        "CC-BY-4.0",
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
    ),
    RecordedTrace(
        "Azure's code completions of 2023 (Splitwise, ISCA '24): 8,819 requests in 57 minutes",
        "CC-BY-4.0",
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
    ),
)


def bundled_traces() -> list[str]:
    """Names of those that come with Tandem."""
    return sorted(path.name.removesuffix(_ENDING) for path in _BUNDLED_TRACES.glob(f"*{_ENDING}"))


def find_trace(name: Path, flag: str) -> Path:
    """The file, or the folder of a journal, that a user names: a path, or the name of a bundled
    trace. Raises `InvalidConfiguration` naming the flag."""
    if name.exists():
        return name
    bundled = _BUNDLED_TRACES / f"{name}{_ENDING}"
    if len(name.parts) == 1 and bundled.exists():
        return bundled
    remedy = nearest(str(name), bundled_traces())
    raise InvalidConfiguration(
        f"{flag}: there is no file {name}, nor a bundled trace of that name{remedy} "
        "(`tandem traces` says where recorded ones are)"
    )
