"""Requests of ServeGen's clients: every client has its own rates, gap laws and lengths.

Xiang et al., "ServeGen: workload characterization and generation of large language model serving in
production". An archive (tar.xz) holds `data/CATEGORY/WORKLOAD/chunk-N-trace.csv`, one row a window,
and mostly `chunk-N-dataset.json`, histograms of lengths for every six hours.
"""

import re
import tarfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from tandem.bench.laws import draw_pairs
from tandem.bench.traces.rates import (
    WINDOW_S,
    RateDraw,
    RateWindow,
    choose_workload,
    draw_instants,
    lengths_missing,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

_MEMBER = re.compile(r"(?:.*/)?([^/]+)/([^/]+)/chunk-(\d+)-(trace\.csv|dataset\.json)")
_XZ_MAGIC = b"\xfd7zXZ\x00"
# What a multimodal prompt is made of; each is the total of a request.
_PROMPT_PARTS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Token counts and their cumulated weights."""

    tokens: tuple[int, ...]
    cumulated: tuple[float, ...]

    def draw(self, rng: np.random.Generator) -> int:
        weight = rng.random() * self.cumulated[-1]
        return self.tokens[bisect_right(self.cumulated, weight, hi=len(self.tokens) - 1)]


@dataclass(slots=True)
class Client:
    """One client. `lengths` maps the start of a span, in seconds, to the histograms of what makes
    up a prompt and that of the answer; empty where the archive holds none."""

    workload: str
    number: int
    windows: list[RateWindow] = field(default_factory=list)
    lengths: dict[float, tuple[list[Histogram], Histogram]] = field(default_factory=dict)


def is_archive(path: Path) -> bool:
    """Whether the file is compressed with xz; False where it cannot be read at all."""
    try:
        with path.open("rb") as file:
            return file.read(len(_XZ_MAGIC)) == _XZ_MAGIC
    except OSError:
        return False


def read_clients(path: Path, draw: RateDraw) -> list[Client]:
    """The clients of the drawn workload by number, with the windows that `draw` covers. Raises
    `InvalidConfiguration` for an archive of something else."""
    clients: dict[tuple[str, int], Client] = {}
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                match = _MEMBER.fullmatch(member.name)
                content = archive.extractfile(member) if match else None
                if match is None or content is None:
                    continue
                workload, number = f"{match[1]}_{match[2]}", int(match[3])
                client = clients.setdefault((workload, number), Client(workload, number))
                if match[4] == "trace.csv":
                    client.windows = _parse_windows(workload, content.read().decode(), draw)
                else:
                    client.lengths = _parse_lengths(content.read())
    except (tarfile.TarError, ValueError, IndexError, msgspec.MsgspecError) as error:
        raise InvalidConfiguration(f"trace {path}: not ServeGen's clients: {error}") from error
    if not clients:
        raise InvalidConfiguration(f"trace {path} holds no chunk-N-trace.csv of ServeGen")
    workload = choose_workload(sorted({name for name, _ in clients}), draw)
    return [clients[key] for key in sorted(clients) if key[0] == workload]


def draw_clients(clients: Sequence[Client], draw: RateDraw) -> list[TraceRow]:
    """Every client's requests, each client a tenant of its own; unordered."""
    rows: list[TraceRow] = []
    for client in clients:
        # A stream of its own: one client more or less does not change what the others ask.
        rng = np.random.default_rng([draw.seed, client.number])
        tenant = f"{client.workload}/{client.number}"
        instants_s = list(draw_instants(client.windows, draw, rng))
        for instant_s, (prompt, output) in zip(
            instants_s, _draw_lengths(client, instants_s, draw, rng), strict=True
        ):
            rows.append(TraceRow(instant_s, prompt, output, tenant=tenant))
    return rows


def _draw_lengths(
    client: Client, instants_s: Sequence[float], draw: RateDraw, rng: np.random.Generator
) -> list[tuple[int, int]]:
    if draw.length_pairs is not None:
        pairs = draw_pairs(draw.length_pairs, len(instants_s), rng).tolist()
        return [(prompt, output) for prompt, output in pairs]
    if instants_s and not client.lengths:
        raise lengths_missing(client.workload)
    starts_s = sorted(client.lengths)
    drawn = []
    for instant_s in instants_s:
        span = max(0, bisect_right(starts_s, instant_s) - 1)
        parts, output = client.lengths[starts_s[span]]
        drawn.append((sum(part.draw(rng) for part in parts), output.draw(rng)))
    return drawn


def _parse_windows(workload: str, text: str, draw: RateDraw) -> list[RateWindow]:
    windows = []
    for line in text.splitlines():
        start_s, rate_rps, _variation, family, shape = line.split(",")[:5]
        if draw.first_s < float(start_s) + WINDOW_S and float(start_s) < draw.end_s:
            windows.append(
                RateWindow(workload, float(start_s), float(rate_rps), family, float(shape))
            )
    return windows


def _parse_lengths(content: bytes) -> dict[float, tuple[list[Histogram], Histogram]]:
    lengths = {}
    for start_s, span in msgspec.json.decode(content, type=dict[str, dict[str, str]]).items():
        parts = [_parse_histogram(span[name]) for name in _PROMPT_PARTS if name in span]
        prompt = [part for part in parts if part is not None]
        output = _parse_histogram(span["output_tokens"])
        # A span in which the client asked nothing has empty histograms.
        if prompt and output is not None:
            lengths[float(start_s)] = (prompt, output)
    return lengths


def _parse_histogram(text: str) -> Histogram | None:
    """A Python dictionary written as text, {tokens: share, ...}; None for an empty one."""
    if text.strip() == "{}":
        return None
    pairs = [pair.split(":") for pair in text.strip("{} ").split(",")]
    tokens = tuple(int(float(pair[0])) for pair in pairs)
    return Histogram(tokens, tuple(accumulate(float(pair[1]) for pair in pairs)))
