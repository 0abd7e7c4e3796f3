"""The sampling flags of the commands that talk to a served model."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

_SERVERS = "(default: the server's)"


@dataclass(frozen=True)
class SamplingOptions:
    """What is None is not sent: the server's own default holds."""

    max_tokens: Annotated[int | None, typer.Option(min=1, help=f"Longest answer. {_SERVERS}")] = (
        None
    )
    temperature: Annotated[float | None, typer.Option(min=0.0, help=f"0 is greedy. {_SERVERS}")] = (
        None
    )
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help=f"Nucleus. {_SERVERS}")
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="Same seed, same answer. (default: a new one each)")
    ] = None

    def fields(self) -> dict[str, Any]:
        """The body's fields."""
        return {name: value for name, value in asdict(self).items() if value is not None}
