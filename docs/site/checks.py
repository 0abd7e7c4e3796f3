"""What must hold for the built site: links and their anchors lead somewhere, it asks no network,
pictures say what they show, and headings come in order.

Sphinx checks the links that it makes itself; here all are, of the HTML that a browser gets."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by tag and attribute.
_LOADED = {
    ("link", "href"),
    ("script", "src"),
    ("img", "src"),
    ("source", "src"),
    ("iframe", "src"),
}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}


@dataclass
class Page(HTMLParser):
    """What one page declares."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    silent_pictures: list[str] = field(default_factory=list)
    is_in_english: bool = False
    # Its script writes the headings.
    is_search: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if name := attributes.get("id"):
            self.ids.add(name)
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        self.loaded += [
            value
            for name, value in attributes.items()
            if (tag, name) in _LOADED and attributes.get("rel") not in ("next", "prev", "canonical")
        ]
        if tag in _HEADINGS:
            self.headings.append(_HEADINGS[tag])
        if tag == "img" and len(attributes.get("alt", "").split()) < 2:
            self.silent_pictures.append(attributes.get("src", ""))
        if tag == "html":
            self.is_in_english = attributes.get("lang") == "en"


def problems(site: Path) -> list[str]:
    """One line each; none where all is well."""
    pages: dict[Path, Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file.relative_to(site)] = page = Page(is_search=file.name == "search.html")
        page.feed(file.read_text())
    found = []
    for path, page in pages.items():
        found += [f"{path}: {each}" for each in _of_page(page)]
        found += [f"{path}: {each}" for each in _of_links(site, path, page, pages)]
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text()
        if "url(http" in text or "@import" in text:
            found.append(f"{sheet.relative_to(site)}: loads from a network")
    return found


def _of_page(page: Page) -> list[str]:
    found = [f"a picture without words: {each}" for each in page.silent_pictures]
    if not page.is_in_english:
        found.append("its language is not said")
    if page.headings.count(1) != 1 and not page.is_search:
        found.append(f"{page.headings.count(1)} headings of the first level")
    for above, below in pairwise(page.headings):
        if below > above + 1:
            found.append(f"a heading of level {below} below one of level {above}")
    return found


def _of_links(site: Path, path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    found = []
    for target in (*page.links, *page.loaded):
        parts = urlsplit(target)
        if parts.scheme in ("http", "https") or parts.netloc:
            if target in page.loaded:
                found.append(f"loads from a network: {target}")
            continue
        if parts.scheme:
            continue
        file = (site / path.parent / unquote(parts.path)).resolve() if parts.path else site / path
        if not file.exists():
            found.append(f"leads nowhere: {target}")
            continue
        other = pages.get(file.relative_to(site.resolve()))
        if other and parts.fragment and unquote(parts.fragment) not in other.ids:
            found.append(f"no such anchor: {target}")
    return found
