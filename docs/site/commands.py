"""A page for each command, with its arguments and options, out of the command line itself."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text
from typer.main import get_command

from tandem.commands.late_imports import VERBS
from tandem.commands.main import app

_ARGUMENTS, _OTHERS = "Arguments", "Options"


def command_pages() -> Iterator[tuple[str, str]]:
    """Name and text of each page: `commands`, which lists all, and `commands/VERB`."""
    group: Any = get_command(app)
    context = typer.Context(group)
    commands = {verb: group.get_command(context, verb) for verb in VERBS}
    rows = "".join(
        f"| [tandem {verb}](commands/{verb}.md) | {_first_sentence(command.help)} |\n"
        for verb, command in commands.items()
    )
    yield (
        "commands",
        f"# Commands\n\n{_plain(group.help)}\n\n| command | |\n|---|---|\n{rows}\n"
        "```{toctree}\n:hidden:\n\n" + "".join(f"commands/{verb}\n" for verb in VERBS) + "```\n",
    )
    for verb, command in commands.items():
        yield f"commands/{verb}", _page(command, typer.Context(command, info_name=f"tandem {verb}"))


def _page(command: Any, context: typer.Context) -> str:
    usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
    text = f"# {context.info_name}\n\n```text\n{usage}\n```\n\n{_plain(command.help)}\n"
    shown = [each for each in command.params if each.get_help_record(context)]
    # Panels of the help: arguments first, then in the order in which options name them.
    for title in dict.fromkeys((_ARGUMENTS, *map(_panel, shown))):
        rows = "".join(_row(each, context) for each in shown if _panel(each) == title)
        if rows:
            text += f"\n## {title}\n\n| name | meaning |\n|---|---|\n{rows}"
    return text


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _ARGUMENTS
    return parameter.rich_help_panel or _OTHERS


def _row(parameter: Any, context: typer.Context) -> str:
    name, text = parameter.get_help_record(context)
    # What it says of defaults and bounds follows the help, which alone has markup.
    meaning, rules = parameter.help or "", text.removeprefix(parameter.help or "").strip()
    cells = (f"`{name}`", " ".join(filter(None, (_plain(meaning), f"`{rules}`" if rules else ""))))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _plain(marked_up: str) -> str:
    """Help without colours; a single line break goes on in the line before. Angle brackets are no
    HTML."""
    text = Text.from_markup(re.sub(r"(?<!\n)\n(?!\n)", " ", marked_up)).plain
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<>*_\[\]])", r"\\\1", part) for part in parts
    )


def _first_sentence(help_text: str) -> str:
    return re.split(r"(?<=\.)\s", _plain(help_text), maxsplit=1)[0].partition("\n")[0]
