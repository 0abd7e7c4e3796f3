"""Secrets among the arguments of a command, which every user of a machine can read (`ps`).

A command that was given some starts itself anew without them, in the same process, and finds them
in its environment, which only this user can read. For the moment until then they could be seen, and
shells keep them in their history: files and variables are better places.
"""

import json
import re
import sys
from collections.abc import Sequence

from tandem.config.environment import replace_process, taken_variable

MASK = "***"
_OPTIONS = ("--api-key", "--set")
# Of what `--set` changes, that which is kept to oneself: it may also stand within a value.
_SECRET_KEYS = re.compile(r"api.?key|password|redis", re.IGNORECASE)


def hide_secrets() -> None:
    """Does not return, but begins again, where one of the arguments is a secret."""
    if arguments := taken_variable("TANDEM_ARGUMENTS"):
        sys.argv[1:] = json.loads(arguments)
        return
    given = sys.argv[1:]
    shown = masked(given)
    if shown != given and sys.orig_argv[-len(given) :] == given:
        # The number of the process stays, and tells the arguments from those that a parent left.
        command = [*sys.orig_argv[: -len(given)], *shown]
        replace_process(command, TANDEM_ARGUMENTS=json.dumps(given))


def masked(arguments: Sequence[str]) -> list[str]:
    """The arguments with `***` in place of every secret."""
    shown: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option:
            shown.append(_masked_value(option, argument))
            option = ""
        elif argument in _OPTIONS:
            shown.append(argument)
            option = argument
        elif name in _OPTIONS:
            shown.append(f"{name}{equals}{_masked_value(name, value)}")
        else:
            shown.append(argument)
    return shown


def _masked_value(option: str, value: str) -> str:
    if option == "--api-key":
        return MASK
    if not _SECRET_KEYS.search(value):
        return value
    key, equals, _ = value.partition("=")
    return f"{key}{equals}{MASK}" if equals else MASK
