"""What Sphinx reads: the pages of docs/, docs/README.md as the page that holds them together, and
those that are made of the code.

All of it is laid out in a folder of its own, so nothing that is made lies beside what is written.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from docs.site.commands import command_pages
from docs.site.endpoints import endpoints_page
from docs.site.papers import papers_page

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
# Pages elsewhere that pages here lead to, and what they are called on the site.
ELSEWHERE = {"../training/README.md": "training.md"}
# Where the pages that are made belong among those of docs/README.md.
MADE = {"Reference": ("reference/commands", "reference/endpoints", "reference/papers", "training")}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
_PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")


def lay_out(folder: Path) -> None:
    """Write everything into `folder`, and only what changed: Sphinx has read the rest."""
    wanted = dict(_sources())
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        if str(file.relative_to(folder)) not in wanted:
            file.unlink()
    for name, content in wanted.items():
        file = folder / name
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def _sources() -> Iterator[tuple[str, bytes]]:
    """The content of each file, by its path in the folder."""
    pages = {str(file.relative_to(DOCS)): file for file in written_pages()}
    pages |= {name: DOCS / source for source, name in ELSEWHERE.items()}
    for name, file in pages.items():
        text = for_the_site(file.read_text(), file.parent)
        if name == "README.md":
            yield "index.md", (text + "".join(_tables_of_contents(text))).encode()
        else:
            yield name, text.encode()
    for file in (*DOCS.glob("*.svg"), *DOCS.glob("*.png")):
        yield file.name, file.read_bytes()
    made = [("endpoints", endpoints_page()), ("papers", papers_page())]
    for name, text in chain(command_pages(), made):
        yield f"reference/{name}.md", text.encode()


def written_pages() -> list[Path]:
    """The pages of docs/, without what is built there."""
    return [file for file in sorted(DOCS.rglob("*.md")) if "_build" not in file.parts]


def for_the_site(text: str, folder: Path) -> str:
    """A page whose links leave docs/ only for pages that the site has: of other files it names the
    path. Links to the index lead to the site's; a page that is called by its file gets its title.
    """

    def lead(link: re.Match[str]) -> str:
        shown, target, anchor = link[1], link[2], link[3] or ""
        path = (folder / target).resolve()
        if path == DOCS / "README.md":
            return f"[{shown}]({target.removesuffix('README.md')}index.md{anchor})"
        if path.is_relative_to(DOCS) or not path.exists():
            is_title = shown.endswith(".md") and not anchor
            return f"[]({target})" if is_title else link[0]
        if name := ELSEWHERE.get(f"../{path.relative_to(ROOT)}"):
            return f"[{shown}]({name}{anchor})"
        place = f"`{path.relative_to(ROOT)}`"
        return place if shown.strip("`") in place else f"{shown} ({place})"

    return _LINK.sub(lead, text)


def _tables_of_contents(index: str) -> Iterator[str]:
    """One for each section of the index, of the pages that it links to, in its order."""
    for section in re.split(r"(?m)^## ", index)[1:]:
        title, _, body = section.partition("\n")
        pages = dict.fromkeys((*_PAGE.findall(body), *MADE.get(title, ())))
        if pages:
            lines = "\n".join(pages)
            yield f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n"
