"""How errors call the options of a server: as flags of the command that was typed, as keys of the
YAML file that named them, with its line, or as keys of a cluster file."""

import re
from collections.abc import Collection
from pathlib import Path

from tandem.config.cluster.tree import FLAGS
from tandem.config.options import OPTIONS, option_lines

# Names of one word are words of sentences, too; where they stand for options is known at the
# begin of a message, before a colon, and behind two dashes.
_ANY = "|".join(sorted(OPTIONS, key=len, reverse=True))
_LONG = "|".join(name.replace("-", "[-_]") for name in _ANY.split("|") if "-" in name)
_NAMED = re.compile(
    rf"(?<![\w./-])(?:serve\.)?(?:--(?P<flag>{_ANY})|(?P<long>{_LONG}))(?![\w/-])"
    rf"|^(?P<first>{_ANY})(?=: )"
)


def in_options_of(text: str, file: Path | None, given: Collection[str]) -> str:
    """A message for whoever typed a command with these options, some of which were `given` there
    and others in a `file` of options."""
    lines = {} if file is None else option_lines(file)
    in_file = {name: line for name, line in lines.items() if name not in given}
    text = text.removeprefix(f"{FLAGS}: ")
    blamed: list[str] = []

    def renamed(found: re.Match[str]) -> str:
        word = found["flag"] or found["long"] or found["first"]
        name = word.replace("_", "-")
        blamed.append(name)
        return name if name in in_file else f"--{name}"

    if file is not None and text.startswith(str(file)):
        # It says where it is, and calls its keys as they are.
        return text
    said = _NAMED.sub(renamed, text)
    line = in_file.get(blamed[0]) if blamed else None
    return said if line is None else f"{file}, line {line}: {said}"


def in_keys(text: str, own_flags: Collection[str]) -> str:
    """A message for whoever typed a command that has only these flags: options that are none of
    them are keys of a cluster file."""

    def renamed(found: re.Match[str]) -> str:
        return found[0] if found[0] in own_flags else found[1]

    return re.sub(rf"(?<![\w-])--({_ANY})(?![\w-])", renamed, text)
