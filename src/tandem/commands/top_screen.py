"""The screen of `tandem top`, of one overview and the one before it. Readable in 80 columns."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.commands.terminal import plain_table, seconds_text
from tandem.facts.overview import Overview, Percentiles, TimeBin, WorkerOverview

# What rates and medians at the top are of.
LATELY_S = 60.0
BARS = " ▁▂▃▄▅▆▇█"
LINE_CELLS = 48
KV_CELLS = 12
EVENTS = 4
_STATES = {"ready": "green", "draining": "yellow", "spare": "cyan"}


def top_screen(overview: Overview, before: Overview | None) -> RenderableType:
    """`before` is what was seen a moment ago, for the rates of workers (None: nothing was)."""
    if before is not None and before.server != overview.server:
        # Counts are those of the gateways that answered.
        before = None
    parts: list[RenderableType] = [
        Text.assemble(
            (overview.model, "bold"),
            f"  {overview.server}, up {seconds_text(overview.up_s)}",
        ),
        *_silent(overview),
        *map(Text, _figures(overview)),
        Text(""),
        *_lines(overview),
        Text(""),
        _workers(overview, before),
        *_queues(overview),
        *_rejections(overview),
        *_planner(overview),
        *_news(overview),
    ]
    return Group(*parts)


def _silent(overview: Overview) -> Iterator[Text]:
    if overview.silent:
        yield Text(f"{', '.join(overview.silent)} did not answer", "red")


def _figures(overview: Overview) -> Iterator[str]:
    recent = _lately(overview)
    lasted_s = max(overview.bin_s, min(LATELY_S, overview.up_s))
    kept = sum(each.kept for each in recent)
    ended = sum(each.finished + each.failed + sum(each.rejected.values()) for each in recent)
    prompt_tokens = sum(each.prompt_tokens for each in recent)
    cached_tokens = sum(each.cached_tokens for each in recent)
    tokens = sum(each.output_tokens for each in recent)
    share = f" ({kept / ended:.0%})" if ended else ""
    yield (
        f"{overview.running} running, {overview.waiting} waiting  "
        f"{tokens / lasted_s:,.1f} tokens/s  goodput {kept / lasted_s:.2f}/s{share}"
    )
    hits = f"hits {cached_tokens / prompt_tokens:.0%}" if prompt_tokens else "no prompts"
    yield f"{hits}, {overview.finished:,} finished, {overview.takeovers:,} taken over"


def _lately(overview: Overview) -> list[TimeBin]:
    first = overview.current_bin - round(LATELY_S / overview.bin_s)
    return [each for each in overview.bins if each.number > first]


def _lines(overview: Overview) -> Iterator[Text]:
    """What changed over the last minutes, oldest left, with the latest value."""
    by_number = {each.number: each for each in overview.bins}
    # The bin that is being counted would look like a drop.
    numbers = range(overview.current_bin - LINE_CELLS, overview.current_bin)
    bins = [by_number.get(number) for number in numbers]

    def median_ms(of: Callable[[TimeBin], Percentiles | None]) -> list[float | None]:
        found = [None if each is None else of(each) for each in bins]
        return [None if each is None else each.p50_s * 1e3 for each in found]

    tokens = [0.0 if each is None else each.output_tokens / overview.bin_s for each in bins]
    for name, values, unit in (
        ("tokens/s", tokens, ""),
        ("TTFT", median_ms(lambda each: each.ttft), " ms"),
        ("TPOT", median_ms(lambda each: each.tpot), " ms"),
    ):
        known = [each for each in values if each is not None]
        latest = f"{known[-1]:,.1f}{unit}" if known else "-"
        yield Text.assemble((f"{name:<9}", "dim"), (spark_line(values), "cyan"), f" {latest}")


def spark_line(values: Sequence[float | None]) -> str:
    """A bar for each value, as high as it is beside the highest; blank where there is none."""
    highest = max((each for each in values if each is not None), default=0.0)
    return "".join(
        BARS[0] if each is None or not highest else BARS[round(each / highest * (len(BARS) - 1))]
        for each in values
    )


def _workers(overview: Overview, before: Overview | None) -> Table:
    figures = ("runs", "waits", "tokens/s")
    table = plain_table("worker", "role", "state", *figures, "KV", right=figures)
    earlier = {each.worker: each for each in before.workers} if before else {}
    passed_s = overview.up_s - before.up_s if before else 0.0
    for worker in overview.workers:
        old = earlier.get(worker.worker)
        drawn = worker.output_tokens - old.output_tokens if old else 0
        table.add_row(
            worker.worker,
            worker.role,
            Text(worker.state, _STATES.get(worker.state, "")),
            str(worker.running),
            str(worker.waiting),
            f"{max(0, drawn) / passed_s:,.0f}" if passed_s > 0 and old else "-",
            _kv_bar(worker),
        )
    return table


def _kv_bar(worker: WorkerOverview) -> Text:
    used = worker.used_blocks / max(1, worker.total_blocks)
    cells = round(used * KV_CELLS)
    style = "red" if used > 0.9 else "cyan"
    bar = ("█" * cells, style), ("░" * (KV_CELLS - cells), "dim")
    return Text.assemble(*bar, f" {used:>4.0%}")


def _queues(overview: Overview) -> Iterator[Text]:
    named = [each for each in overview.queues if each.service_class or each.tenant]
    for each in named[:EVENTS]:
        name = " ".join(word for word in (each.service_class, each.tenant) if word)
        yield Text(f"{name}: {each.running} running, {each.waiting} waiting")


def _rejections(overview: Overview) -> Iterator[Text]:
    counts: dict[str, int] = {}
    for each in overview.bins:
        for by, count in each.rejected.items():
            counts[by] = counts.get(by, 0) + count
    if counts:
        told = ", ".join(f"{count:,} by {by.replace('_', ' ')}" for by, count in counts.items())
        yield Text(f"rejected in the last quarter of an hour: {told}", "yellow")


def _planner(overview: Overview) -> Iterator[Text]:
    planner = overview.planner
    if planner is None:
        return
    if planner.decisions:
        last = planner.decisions[-1]
        yield Text(f"planned {seconds_text(last.ago_s)} ago: {last.text}")
    elif planner.reason:
        yield Text(f"planner: {planner.reason}")


def _news(overview: Overview) -> Iterator[Text]:
    for each in overview.events[-EVENTS:]:
        style = "red" if each.kind in ("lost", "failed") else "dim"
        yield Text(f"{seconds_text(each.ago_s)} ago: {each.text}", style)
