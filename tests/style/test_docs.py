"""Links in the documentation lead somewhere."""

import re

from tests.style.source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "training/README.md"]


def test_relative_links_lead_to_files():
    lost = [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not lost
