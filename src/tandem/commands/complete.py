"""`tandem complete`: continues a text with a served model."""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tandem.bench.client import Client, Endpoint, RequestFailed
from tandem.bench.dialogue import Answer, Asked, stream_answer
from tandem.bench.load import COMPLETION_PATH
from tandem.commands.options import SamplingOptions, ServerOptions, flag, flags, with_options
from tandem.commands.terminal import plain_table, print_plain, write_now

# The API's own default is 16, which is the middle of a sentence.
USUAL_TOKENS = 256


@flags
class CompletionOptions:
    """How many continuations, and what is shown of them."""

    ignore_eos: bool = flag(
        "Go on past the model's own end, up to --max-tokens.", "--ignore-eos", default=False
    )
    n: int = flag("Continuations of the text.", default=1, min=1)
    logprobs: int | None = flag(
        "Show each token with so many likely alternatives.", default=None, min=0
    )


@with_options
def complete(
    text: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    server: ServerOptions,
    sampling: SamplingOptions,
    options: CompletionOptions,
) -> None:
    """Continue a text with a served model, to its own end or for 256 tokens (--max-tokens).

    One continuation streams; several, or those with log-probabilities, are shown when complete.
    """
    prompt = sys.stdin.read() if text == "-" else text
    body = {"prompt": prompt, "max_tokens": USUAL_TOKENS, **sampling.fields()}
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.n > 1:
        body["n"] = options.n
    if options.logprobs is not None:
        body["logprobs"] = options.logprobs
    endpoint = Endpoint(server.url, server.api_key, server.timeout_s)
    # Ctrl-C ends a continuation that is long enough.
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_complete(endpoint, server.model, body))


async def _complete(endpoint: Endpoint, name: str | None, body: dict[str, Any]) -> None:
    async with Client(endpoint) as client:
        model = await client.choose_model(name)
        body = {"model": model.id, **body}
        if "n" in body or "logprobs" in body:
            await _show_whole(client, body)
            return
        answer = Answer()
        await stream_answer(client, Asked(COMPLETION_PATH, body), answer, write_now)
        write_now("\n")
        if sys.stdout.isatty():
            print_plain(Console(stderr=True), answer.pace, "dim")


async def _show_whole(client: Client, body: Mapping[str, Any]) -> None:
    answer = await client.complete(COMPLETION_PATH, body)
    if not answer.choices:
        raise RequestFailed("the answer holds no continuation")
    console = Console()
    for choice in sorted(answer.choices, key=lambda choice: choice.index):
        if len(answer.choices) > 1:
            console.print(f"[dim]--- {choice.index} ({choice.finish_reason})[/dim]")
        write_now(choice.shown_text + "\n")
        if choice.logprobs is not None:
            console.print(logprob_table(choice.logprobs))


def logprob_table(logprobs: Mapping[str, Any]) -> Table:
    """Each token, its log-probability and the likeliest tokens of its place."""
    table = plain_table("token", "logprob", "likeliest", right=("logprob",))
    table.columns[-1].style = "dim"
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], tops, strict=False
    ):
        likeliest = sorted((top or {}).items(), key=lambda entry: -entry[1])
        shown = "  ".join(f"{other!r} {logprob:.2f}" for other, logprob in likeliest)
        table.add_row(repr(token), "-" if value is None else f"{value:.3f}", shown)
    return table
