"""The commands that README.md and the pages of docs/ show, as a shell would take them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Without what is built of them.
_WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
PAGES = (ROOT / "README.md", *_WRITTEN, ROOT / "training/README.md")
_BLOCK = re.compile(r"(?ms)^```(console|bash)\n(.*?)^```")
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


@dataclass(frozen=True)
class Command:
    """One command of a page: its words, without what stands before and after it in a pipe."""

    page: Path
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return Path(self.words[0]).name

    @property
    def text(self) -> str:
        return " ".join(self.words)


def commands_of(page: Path) -> list[Command]:
    """In console blocks what stands behind a `$`, in others every line."""
    found: list[Command] = []
    for kind, block in _BLOCK.findall(page.read_text()):
        for line in _lines(block, prompted=kind == "console"):
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, "#"
            words: list[str] = []
            for word in [*lexer, ";"]:
                if not set(word) <= set("|&;"):
                    words.append(word)
                elif words:
                    found.append(Command(page, _plain(words)))
                    words = []
    return [command for command in found if command.words]


def _lines(block: str, *, prompted: bool) -> list[str]:
    """Whole commands: a line that ends within quotes, or in a backslash, goes on in the next."""
    lines: list[str] = []
    is_open = False
    for line in block.splitlines():
        if is_open:
            lines[-1] += "\n" + line
        elif not prompted or line.startswith("$ "):
            lines.append(line.removeprefix("$ "))
        else:
            continue
        is_open = _goes_on(lines[-1])
    return [line.replace("\\\n", " ") for line in lines]


def _goes_on(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return line.endswith("\\")


def _plain(words: list[str]) -> tuple[str, ...]:
    """Without variables that are set for it, and without where its output goes."""
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    cut = next((at for at, word in enumerate(words) if word[0] in "<>()"), len(words))
    return tuple(words[:cut])


ALL = [command for page in PAGES for command in commands_of(page)]
