"""The blocks of code that the pages show, by their language."""

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"(?ms)^```(\w+)\n(.*?)^```")


@dataclass(frozen=True)
class Block:
    """`line` is that of its first line of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2])
        for found in _BLOCK.finditer(text)
    ]
