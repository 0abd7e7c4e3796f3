"""Runs a verb of `tandem` in the process of the test, on a terminal that is wide enough."""

from typer.testing import CliRunner, Result

from tandem.commands.main import app


def tandem(*words: object, text: str | None = None) -> Result:
    """What `tandem WORDS` prints and exits with; `text` is piped into it."""
    return CliRunner().invoke(app, list(map(str, words)), input=text, env={"COLUMNS": "200"})
