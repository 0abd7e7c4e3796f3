"""`tandem explain`: why a request of a running cluster went where it went, what was predicted, and
what came of it."""

import asyncio
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.errors import InvalidRequest
from tandem.live.gateway.operators import NobodyAnswers
from tandem.messages.operator import Explained, RequestHistory
from tandem.report.explain import Event, life, predicted

_INSTANTS = (
    ("first_token_ns", "first token"),
    ("last_token_ns", "last token"),
    ("end_ns", "ended"),
)


@flags
class ExplainOptions:
    """What is shown."""

    json: bool = flag("Every figure, for programs.", "--json", default=False)


@with_options
def explain_command(
    request: Annotated[
        str, typer.Argument(help="The `id` of the response, or its `X-Request-Id`.")
    ],
    which: WhichCluster,
    options: ExplainOptions,
) -> None:
    """Tell the life of a request of the last hour: admission, every candidate with what was
    predicted for it, where it went, and what happened."""
    answers = asyncio.run(find_running(which).operators().explanations(request))
    if not answers:
        raise NobodyAnswers("no gateway answers")
    found = [(answer, history) for answer in answers for history in answer.histories]
    if not found:
        problem = "no gateway knows it: it was refused at once, or is too long ago"
        raise InvalidRequest("REQUEST", f"{request}: {problem}")
    if options.json:
        typer.echo(msgspec.json.format(msgspec.json.encode([each for _, each in found])))
        return
    console = terminal()
    for number, (answer, history) in enumerate(found):
        if number:
            console.print()
        console.print(life(_head(answer, history), _events(history), 0))


def _events(history: RequestHistory) -> list[Event]:
    decisions = [
        Event(each.after_ns, each.kind, each.text, each.figures) for each in history.events
    ]
    instants = [
        Event(instant_ns, "", text)
        for name, text in _INSTANTS
        if (instant_ns := getattr(history, name)) >= 0
    ]
    return [Event(0, "", "arrived"), *sorted([*decisions, *instants], key=lambda each: each.now_ns)]


def _head(answer: Explained, history: RequestHistory) -> Iterator[str]:
    ago_s = (answer.now_ns - history.arrival_ns) / 1e9
    yield (
        f"{history.request_id}: {history.prompt_tokens:,} prompt tokens "
        f"({history.cached_tokens:,} cached), {history.emitted_tokens:,} of at most "
        f"{history.max_tokens:,} output tokens, arrived {ago_s:,.1f} s ago"
    )
    owners = (
        ("tenant", history.tenant),
        ("class", history.service_class),
        ("session", history.session),
    )
    if named := [f"{word} {name}" for word, name in owners if name]:
        yield ", ".join(named)
    reason = f": {history.reason}" if history.reason else ""
    yield f"{history.ending or 'running'}{reason}"
    ttft_s = None if history.first_token_ns < 0 else history.first_token_ns / 1e9
    tpot_s = None
    if history.emitted_tokens > 1:
        span_ns = history.last_token_ns - history.first_token_ns
        tpot_s = span_ns / 1e9 / (history.emitted_tokens - 1)
    yield from predicted(_events(history), ttft_s, tpot_s)
