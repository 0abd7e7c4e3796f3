"""The life of one request, live or simulated: what was decided about it, on which figures, what was
predicted, and what happened when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.facts.errors import InvalidRequest
from tandem.report.record import Decision, RequestRecord, RunRecord

_INSTANTS = (
    ("arrival_ns", "arrived"),
    ("routed_ns", "was routed"),
    ("scheduled_ns", "first step began"),
    ("first_token_ns", "first token"),
    ("last_token_ns", "last token"),
    ("end_ns", "ended"),
)


def find_request(record: RunRecord, name: str) -> RequestRecord:
    """The request of this id or serial number. Raises `InvalidRequest`."""
    for request in record.requests:
        if name in (request.request_id, str(request.serial)):
            return request
    few = ", ".join(request.request_id for request in record.requests[:3])
    raise InvalidRequest("--explain", f"{name}: no such request; ids look like {few}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request: an instant of it (`kind` is empty), or a decision."""

    now_ns: int
    kind: str
    text: str
    figures: tuple[tuple[str, float | str], ...] = ()


def events(request: RequestRecord, decisions: Iterable[Decision]) -> list[Event]:
    """What happened, in order of time; of one instant the arrival first and then the decisions,
    for they caused the rest."""
    instants = [
        Event(instant_ns, "", text)
        for name, text in _INSTANTS
        if (instant_ns := getattr(request, name)) >= 0
    ]
    decided = [
        Event(decision.now_ns, decision.kind, decision.text, decision.figures)
        for decision in decisions
        if decision.request_id == request.request_id
    ]
    return sorted([*instants[:1], *decided, *instants[1:]], key=lambda event: event.now_ns)


def explanation(record: RunRecord, name: str) -> RenderableType:
    """A simulated request's life for the terminal. Raises `InvalidRequest`."""
    request = find_request(record, name)
    reused = ", ".join(f"{count:,} from {tier}" for tier, count in request.reused_tokens.items())
    prompt = (
        f"prompt tokens computed {request.computed_tokens:,}, reused {reused or 'none'}, "
        f"moved {request.moved_tokens:,}"
    )
    arrived = f"arrived at {request.arrival_ns / 1e9:,.3f} s"
    return life(request, record.decisions, arrived=arrived, prompt=prompt)


def life(
    request: RequestRecord, decisions: Iterable[Decision], *, arrived: str, prompt: str
) -> RenderableType:
    """A request's life for the terminal: when it `arrived`, what its `prompt` took, its end, and
    what happened meanwhile."""
    happened = events(request, decisions)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("after", justify="right", style="dim")
    table.add_column("what", style="bold")
    table.add_column("")
    for event in happened:
        after_s = (event.now_ns - request.arrival_ns) / 1e9
        shown = Group(Text(event.text), *_figure_lines(event))
        table.add_row(f"{after_s:,.3f} s", event.kind or "·", shown)
    head = [*_head(request, arrived, prompt), *_predicted(happened, request)]
    return Group(Text("\n".join(head), style="bold"), table)


def _head(request: RequestRecord, arrived: str, prompt: str) -> Iterator[str]:
    yield (
        f"{request.request_id}: {request.prompt_tokens:,} prompt tokens, "
        f"{request.emitted_tokens:,} of {request.output_tokens:,} output tokens, {arrived}"
    )
    owner = [f"{word} {value}" for word, value in _owners(request) if value]
    if owner:
        yield ", ".join(owner)
    reason = f": {request.reason}" if request.reason else ""
    yield f"{request.ending or 'unfinished'}{reason}; {prompt}"


def _predicted(happened: Iterable[Event], request: RequestRecord) -> Iterator[str]:
    """What the last routing decision predicted, beside what was measured. A prediction counts from
    the decision, a measurement from the arrival."""
    routed = [dict(event.figures) for event in happened if event.kind == "routing"]
    if routed:
        pairs = [("TTFT", "ttft_s", request.ttft_s), ("TPOT", "tpot_s", request.tpot_s)]
        yield ", ".join(
            f"{name} predicted {_seconds(routed[-1].get(key))}, measured {_seconds(measured)}"
            for name, key, measured in pairs
        )


def _seconds(value: float | str | None) -> str:
    return "nothing" if value is None or isinstance(value, str) else f"{value:,.4g} s"


def _owners(request: RequestRecord) -> tuple[tuple[str, str], ...]:
    return (
        ("prefill", request.prefill_worker),
        ("decode", request.decode_worker),
        ("tenant", request.tenant),
        ("class", request.service_class),
        ("session", request.session),
    )


def _figure_lines(event: Event) -> Iterator[Text]:
    """Figures whose names begin alike, as a candidate's do, share a line."""
    for owner, figures in groupby(event.figures, lambda figure: figure[0].rpartition(" ")[0]):
        written = [f"{name.rpartition(' ')[2]} {_written(value)}" for name, value in figures]
        yield Text(f"{owner}{': ' if owner else ''}{', '.join(written)}", style="dim")


def _written(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.4g}"
