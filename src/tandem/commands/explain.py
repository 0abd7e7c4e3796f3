"""`tandem explain`: why a request of a running cluster went where it went, what was predicted, and
what came of it."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console, RenderableType

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.errors import InvalidRequest
from tandem.live.gateway.operators import NobodyAnswers, Operators
from tandem.messages.operator import RequestHistory
from tandem.report.explain import life
from tandem.report.record import Decision, Ending, RequestRecord


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
    """Tell the life of a request of the last hour: admission, the best candidates with what was
    predicted for them, where it went, and what happened."""
    operators = find_running(which).operators()
    found = asyncio.run(find_histories(operators, request))
    if options.json:
        told = [{"arrived_s_ago": ago_s} | msgspec.to_builtins(each) for ago_s, each in found]
        typer.echo(msgspec.json.format(msgspec.json.encode(told)))
        return
    print_histories(terminal(), found)


async def find_histories(operators: Operators, request: str) -> list[tuple[float, RequestHistory]]:
    """What the gateways know of a request, each choice of its call for itself, with how many
    seconds ago that arrived. Raises `NobodyAnswers`, or `InvalidRequest` where nobody knows it."""
    answers = await operators.explanations(request)
    if not answers:
        raise NobodyAnswers("no gateway answers")
    found = [
        ((answer.now_ns - history.arrival_ns) / 1e9, history)
        for answer in answers
        for history in answer.histories
    ]
    if not found:
        silent = len(operators.endpoints) - len(answers)
        problem = (
            f"{silent} of the gateways did not answer, and no other knows it"
            if silent
            else "no gateway knows it: it is too long ago, or explain_memory too small"
        )
        raise InvalidRequest("REQUEST", f"{request}: {problem}")
    return found


def print_histories(console: Console, found: Sequence[tuple[float, RequestHistory]]) -> None:
    """The life of each, with how many seconds ago it arrived."""
    for number, (ago_s, history) in enumerate(found):
        if number:
            console.print()
        console.print(_life(history, ago_s))


def _life(history: RequestHistory, ago_s: float) -> RenderableType:
    request = RequestRecord(
        request_id=history.request_id,
        serial=0,
        arrival_ns=0,
        prompt_tokens=history.prompt_tokens,
        output_tokens=history.max_tokens,
        ending=Ending(history.ending) if history.ending else None,
        reason=history.reason,
        first_token_ns=history.first_token_ns,
        last_token_ns=history.last_token_ns,
        end_ns=history.end_ns,
        emitted_tokens=history.emitted_tokens,
        tenant=history.tenant,
        service_class=history.service_class,
        session=history.session,
    )
    decisions = [
        Decision(each.after_ns, history.request_id, each.kind, each.text, each.figures)
        for each in history.events
    ]
    return life(
        request,
        decisions,
        arrived=f"arrived {ago_s:,.1f} s ago",
        prompt=f"{history.cached_tokens:,} prompt tokens were cached",
    )
