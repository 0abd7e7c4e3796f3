"""`tandem hits`: how much of a trace's prompts a prefix cache would hold, by size and eviction."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import plain_table, print_title
from tandem.commands.workloads import read_workload
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.facts.units import COUNT, SECONDS
from tandem.policy.eviction.policies import EVICTIONS
from tandem.report.documents import load_plotter, require_folder, save_chart, write_json
from tandem.report.plots.chart import COLOURS, Chart, Curve, Mark, Panel
from tandem.twin.cache_replay import BoundedCache, CacheHits, ExpiringCache, replay_cache

# Seconds, where nothing else is said.
_TTL = replace(SECONDS, bare="s")
_GREY = len(COLOURS) - 1


@flags
class HitsOptions:
    """Which caches are tried, and where the answers go."""

    capacity: str = flag(
        "Sizes: blocks as 1953,5859, or tokens as 500k,3M. Unbounded is added.",
        default="1M,3M,10M,30M",
    )
    eviction: str = flag(f"Which go when it is full: {','.join(EVICTIONS)}, or all.", default="lru")
    ttl: str | None = flag(
        "Also unbounded caches that forget a block so many seconds after use.", default=None
    )
    json: Path | None = flag("Writes the counts.", default=None)
    plot: Path | None = flag("Draws the curves: .html (plotly) or .png (matplotlib).", default=None)

    def capacities(self, block_tokens: int) -> list[int]:
        """In blocks, smallest first."""
        sizes = {_blocks(part, block_tokens) for part in self.capacity.split(",")}
        return sorted(sizes)

    def evictions(self) -> list[str]:
        """Every name once, as given; an unknown one fails when its cache is made."""
        names = EVICTIONS if self.eviction == "all" else self.eviction.split(",")
        return list(dict.fromkeys(name.strip() for name in names))

    def ttls_s(self) -> list[float]:
        if self.ttl is None:
            return []
        try:
            return sorted({_TTL.read(part) for part in self.ttl.split(",")})
        except ValueError:
            raise InvalidConfiguration(
                f"--ttl must be seconds or a list as 60,600, got {self.ttl!r}"
            ) from None


@dataclass(frozen=True)
class CacheResult:
    """One cache and what it found. `capacity_blocks` is None where nothing bounds it."""

    eviction: str
    capacity_blocks: int | None
    ttl_s: float | None
    hits: CacheHits


@with_options
def hits(
    trace: Annotated[
        Path, typer.Argument(help="A trace with block ids: a file, a journal, or a bundled one.")
    ],
    options: HitsOptions,
) -> None:
    """Replay a trace's prompts against one shared prefix cache, without engine or clock.

    Shows what share of the prompt tokens such a cache would have held, for each size and eviction
    policy. An upper bound for a fleet of workers, whose caches are apart.
    """
    if options.plot is not None:
        load_plotter(options.plot)
    require_folder(options.json, "--json")
    rows = read_workload(trace, flag="TRACE")
    if not any(row.block_ids for row in rows):
        raise InvalidConfiguration(f"TRACE {trace} names no blocks, so nothing says what is shared")
    results = _replay(rows, options)
    _print(Console(), trace, rows, results)
    if options.json is not None:
        document = {"trace": trace.name, "caches": [_figures_of(result) for result in results]}
        write_json(options.json, document, "--json")
    if options.plot is not None:
        save_chart(_chart(trace, rows, results), options.plot)


def _replay(rows: Sequence[TraceRow], options: HitsOptions) -> list[CacheResult]:
    bounded = [
        (eviction, blocks, BoundedCache(blocks, eviction))
        for eviction in options.evictions()
        for blocks in options.capacities(rows[0].block_tokens)
    ]
    expiring = [(ttl_s, ExpiringCache(ttl_s)) for ttl_s in options.ttls_s()]
    return [
        *(CacheResult(name, blocks, None, replay_cache(rows, c)) for name, blocks, c in bounded),
        *(CacheResult("ttl", None, ttl_s, replay_cache(rows, c)) for ttl_s, c in expiring),
        CacheResult("unbounded", None, None, replay_cache(rows, BoundedCache(None))),
    ]


def _print(
    console: Console, trace: Path, rows: Sequence[TraceRow], results: Sequence[CacheResult]
) -> None:
    total, block_tokens = results[-1].hits, rows[0].block_tokens
    print_title(
        console,
        trace.name,
        f"{total.requests:,} requests, {total.prompt_tokens:,} prompt tokens, {total.blocks:,} "
        f"blocks of {block_tokens} tokens, {total.unique_blocks:,} of them different",
    )
    figures = ("blocks", "tokens", "hit tokens", "hit blocks", "mean of requests")
    table = plain_table("eviction", *figures, right=figures)
    table.columns[0].style = "bold"
    for result in results:
        blocks = result.capacity_blocks
        table.add_row(
            _name(result),
            "any" if blocks is None else f"{blocks:,}",
            "any" if blocks is None else f"{blocks * block_tokens:,}",
            f"{result.hits.token_share:.3%}",
            f"{result.hits.block_share:.3%}",
            f"{result.hits.mean_request_share:.3%}",
        )
    console.print(table)


def _figures_of(result: CacheResult) -> dict[str, object]:
    counts = asdict(result.hits)
    shares = {"token_share": result.hits.token_share, "block_share": result.hits.block_share}
    cache = {key: value for key, value in asdict(result).items() if key != "hits"}
    return cache | counts | shares


def _chart(trace: Path, rows: Sequence[TraceRow], results: Sequence[CacheResult]) -> Chart:
    block_tokens, unbounded = rows[0].block_tokens, results[-1].hits
    panels = (
        _panel("All prompt tokens together", "token_share", results, block_tokens),
        _panel("Mean of each request's own share", "mean_request_share", results, block_tokens),
    )
    return Chart(
        f"A prefix cache can hold {unbounded.token_share:.1%} of the prompt tokens of {trace.name}",
        f"{unbounded.requests:,} requests in the order recorded, one shared cache, "
        f"blocks of {block_tokens} tokens",
        panels,
    )


def _panel(title: str, share: str, results: Sequence[CacheResult], block_tokens: int) -> Panel:
    curves = []
    bounded = [result for result in results if result.capacity_blocks is not None]
    for colour, name in enumerate(dict.fromkeys(result.eviction for result in bounded)):
        mine = [result for result in bounded if result.eviction == name]
        x = tuple((result.capacity_blocks or 0) * block_tokens / 1e6 for result in mine)
        y = tuple(getattr(result.hits, share) * 100 for result in mine)
        curves.append(Curve(name, x, y, Mark.LINE_AND_POINTS, colour, label=name))
    largest = max(x for curve in curves for x in curve.x)
    for result in results:
        if result.capacity_blocks is None:
            level, name = getattr(result.hits, share) * 100, _name(result)
            line = Curve(name, (0.0, largest), (level, level), Mark.DASHED, _GREY, label=name)
            curves.append(line)
    return Panel(title, "cache size (million tokens)", "found (%)", tuple(curves))


def _name(result: CacheResult) -> str:
    return result.eviction if result.ttl_s is None else f"ttl {result.ttl_s:g} s"


def _blocks(text: str, block_tokens: int) -> int:
    try:
        number, unit = COUNT.read_unit(text)
    except ValueError:
        number, unit = 0.0, ""
    blocks = int(number / block_tokens) if unit else int(number)
    if blocks < 1 or (not unit and blocks != number):
        raise InvalidConfiguration(
            "--capacity must be whole blocks as 1953,5859 or tokens as 500k,3M, of at least one "
            f"block of {block_tokens} tokens each, got {text!r}"
        )
    return blocks
