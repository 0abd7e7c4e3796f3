"""Secrets on the command line: every user of a machine can read the words of every process (`ps`).

A command that was given some starts itself anew without them, in the same process, and finds them
in its environment, which only this user can read. For the moment until then they could be seen, and
shells keep them in their history: files and variables are better places.
"""

import json
import re
import sys
from collections.abc import Sequence

from tandem.config.environment import replace_process, taken_variable

HIDDEN = "***"
_OPTIONS = ("--api-key", "--set")
# Of what `--set` changes, that which is kept to oneself: it may also stand within a value.
_SECRET_KEYS = re.compile(r"api.?key|password|redis", re.IGNORECASE)


def hide_secrets() -> None:
    """Does not return, but begins again, where one of the words is a secret that can be seen."""
    if words := taken_variable("TANDEM_WORDS"):
        sys.argv[1:] = json.loads(words)
        return
    given = sys.argv[1:]
    shown = without_secrets(given)
    if shown != given and sys.orig_argv[-len(given) :] == given:
        # The number of the process stays, and tells the words from what a parent left behind.
        command = [*sys.orig_argv[: -len(given)], *shown]
        replace_process(command, TANDEM_WORDS=json.dumps(given))


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words as everybody may see them."""
    shown: list[str] = []
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if option:
            shown.append(_hidden(option, word))
            option = ""
        elif word in _OPTIONS:
            shown.append(word)
            option = word
        elif name in _OPTIONS:
            shown.append(f"{name}{equals}{_hidden(name, value)}")
        else:
            shown.append(word)
    return shown


def _hidden(option: str, value: str) -> str:
    if option == "--api-key":
        return HIDDEN
    if not _SECRET_KEYS.search(value):
        return value
    key, equals, _ = value.partition("=")
    return f"{key}{equals}{HIDDEN}" if equals else HIDDEN
