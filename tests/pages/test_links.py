"""README.md and the pages of docs/ as a code host shows them: links and their anchors lead
somewhere, headings come in order, pictures say what they show. `make docs` asks the same of the
site."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.pages.commands import PAGES, ROOT

# All pages of the index's tables, which the site's navigation is made of.
INDEX = ROOT / "docs/README.md"


@cache
def tokens_of(page: Path):
    """Of blocks, each with its inline tokens as children."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def headings(page: Path) -> list[tuple[int, str]]:
    """Level and text, without marks."""
    tokens = tokens_of(page)
    return [
        (int(token.tag[1]), "".join(child.content for child in inline.children))
        for token, inline in pairwise(tokens)
        if token.type == "heading_open"
    ]


@cache
def anchors(page: Path) -> frozenset[str]:
    """As code hosts make them of headings: letters, digits, `-`, `_`; a second one is numbered."""
    found: list[str] = []
    for _, text in headings(page):
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def inline(page: Path, kind: str):
    for token in tokens_of(page):
        yield from (child for child in token.children or () if child.type == kind)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_anchors_lead_somewhere(page):
    targets = [link.attrs["href"] for link in inline(page, "link_open")]
    targets += [image.attrs["src"] for image in inline(page, "image")]
    for target in targets:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_come_in_order(page):
    levels = [level for level, _ in headings(page)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_say_what_they_show(page):
    for image in inline(page, "image"):
        assert len(image.content.split()) > 2, image.attrs["src"]


def test_every_page_stands_in_the_index():
    listed = {
        (INDEX.parent / link.attrs["href"].partition("#")[0]).resolve()
        for link in inline(INDEX, "link_open")
    }
    assert {page for page in PAGES if page.is_relative_to(INDEX.parent)} - {INDEX} <= listed


def test_anchors_are_those_of_code_hosts():
    assert {"what-is-refused-and-why", "mlperfs-loadgen"} <= anchors(
        ROOT / "docs/api.md"
    ) | anchors(ROOT / "docs/measuring.md")
