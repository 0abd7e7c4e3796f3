"""A trace that nobody recorded: chats of people and sessions of agents, drawn from a seed.

Sessions of a kind share their system prompt, and each call of a session begins with all that came
before it. All numbers are made from uniform ones with the functions of `math`, so that no version
of numpy draws another trace.
"""

import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import count
from pathlib import Path

import msgspec
import numpy as np

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

BLOCK_TOKENS = 32
# What an answer is taken to need: later calls of a session are recorded as if they had waited for
# it. A replay waits for its own.
_FIRST_TOKEN_S = 0.3
_TOKEN_S = 0.02


@dataclass(frozen=True, slots=True)
class Spread:
    """A lognormal law: `median` and the standard deviation of its logarithm. At least 1 token, or
    1 ms."""

    median: float
    sigma: float

    def draw(self, rng: np.random.Generator) -> float:
        # Box and Muller's way from two uniform numbers to a normal one.
        length = math.sqrt(-2.0 * math.log1p(-rng.random()))
        normal = length * math.cos(2.0 * math.pi * rng.random())
        return self.median * math.exp(self.sigma * normal)

    def tokens(self, rng: np.random.Generator) -> int:
        return max(1, round(self.draw(rng)))

    def seconds(self, rng: np.random.Generator) -> float:
        return max(0.001, round(self.draw(rng), 3))


@dataclass(frozen=True, slots=True)
class SessionLaw:
    """How sessions of one kind go: which of `systems` system prompts they begin with, what comes
    to the first call and to each later one (a question, a tool's result), what is answered, how
    long until the next call, and how many calls there are on average."""

    tenant: str
    systems: tuple[int, ...]
    opening_tokens: Spread
    added_tokens: Spread
    output_tokens: Spread
    think_s: Spread
    mean_calls: float


CHATS = SessionLaw(
    "chats", (96, 160, 256, 416), Spread(60, 0.9), Spread(40, 0.8), Spread(110, 0.7),
    Spread(14, 0.8), 3.5,
)  # fmt: skip
# Short answers, which are calls of tools, and short pauses, in which these work.
AGENTS = SessionLaw(
    "agents", (640, 896), Spread(140, 0.6), Spread(120, 0.9), Spread(48, 0.6), Spread(2, 0.9), 9.0
)


@dataclass(frozen=True, slots=True)
class MixDraw:
    """So many new sessions a minute of each kind, within the first `seconds`. No prompt with its
    answer is longer than `context_tokens`: the session ends before."""

    seed: int = 0
    seconds: float = 600.0
    chats_per_minute: float = 8.0
    agents_per_minute: float = 2.0
    context_tokens: int = 4096


def draw_mix(draw: MixDraw) -> list[TraceRow]:
    """The rows by arrival. The same draw, the same rows."""
    ids, systems = count(), dict[tuple[str, int], tuple[int, ...]]()
    rows: list[TraceRow] = []
    kinds = ((CHATS, draw.chats_per_minute), (AGENTS, draw.agents_per_minute))
    for number, (law, per_minute) in enumerate(kinds):
        rng = np.random.default_rng([draw.seed, number])
        for session, start_s in enumerate(_poisson(per_minute / 60, draw.seconds, rng)):
            system_tokens = law.systems[int(rng.random() * len(law.systems))]
            blocks = systems.setdefault(
                (law.tenant, system_tokens),
                tuple(next(ids) for _ in range(system_tokens // BLOCK_TOKENS)),
            )
            first = TraceRow(start_s, system_tokens, 0, blocks, BLOCK_TOKENS, tenant=law.tenant)
            named = replace(first, session=f"{law.tenant}-{session}")
            rows += _calls(named, law, draw.context_tokens, ids, rng)
    if not rows:
        raise InvalidConfiguration("no session begins in that time; draw more seconds")
    return sorted(rows, key=lambda row: row.arrival_s)


def _poisson(rate_rps: float, seconds: float, rng: np.random.Generator) -> Iterator[float]:
    """Instants of a Poisson process."""
    instant_s = 0.0
    while rate_rps > 0:
        instant_s += -math.log1p(-rng.random()) / rate_rps
        if instant_s >= seconds:
            return
        yield round(instant_s, 3)


def _calls(
    system: TraceRow,
    law: SessionLaw,
    context_tokens: int,
    ids: Iterator[int],
    rng: np.random.Generator,
) -> Iterator[TraceRow]:
    """The calls of a session that begins with the prompt of `system`."""
    known_tokens, blocks, arrival_s = system.prompt_tokens, system.block_ids, system.arrival_s
    added_tokens, think_s = law.opening_tokens.tokens(rng), 0.0
    while True:
        prompt_tokens, output_tokens = known_tokens + added_tokens, law.output_tokens.tokens(rng)
        if prompt_tokens + output_tokens > context_tokens:
            return
        new_blocks = prompt_tokens // BLOCK_TOKENS - len(blocks)
        blocks += tuple(next(ids) for _ in range(new_blocks))
        yield replace(
            system,
            arrival_s=arrival_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            block_ids=blocks,
            think_s=think_s,
        )
        if rng.random() * law.mean_calls < 1.0:
            return
        known_tokens = prompt_tokens + output_tokens
        added_tokens, think_s = law.added_tokens.tokens(rng), law.think_s.seconds(rng)
        answer_s = _FIRST_TOKEN_S + _TOKEN_S * output_tokens
        arrival_s = round(arrival_s + answer_s + think_s, 3)


_DEFAULTS = {each.name: each.default for each in fields(TraceRow)}


def trace_lines(rows: Iterable[TraceRow]) -> bytes:
    """Our own JSON lines, without what is as it would be anyway."""
    lines = [
        {name: value for name, value in asdict(row).items() if value != _DEFAULTS[name]}
        for row in rows
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def write_trace(rows: Iterable[TraceRow], path: Path, flag: str) -> None:
    """Gzipped where the name ends in .gz; the same rows make the same file. Raises
    `InvalidConfiguration` naming the flag that gave the path."""
    content = trace_lines(rows)
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot write {path}: {error.strerror}") from error
