"""Builds the site into docs/_build/html, and checks it: python -m docs.site

With `--links` it asks the network whether the pages of others that ours lead to are there; nothing
is built.
"""

import sys

from docs.site.checks import problems
from docs.site.sources import DOCS, lay_out
from sphinx.cmd.build import main as sphinx

BUILT = DOCS / "_build"


def main(arguments: list[str]) -> int:
    """The exit status: 0 where nothing is wrong."""
    builder = "linkcheck" if "--links" in arguments else "html"
    lay_out(BUILT / "source")
    # Every warning is told, and any of them fails the build.
    options = [
        "-b",
        builder,
        "-c",
        str(DOCS),
        "-d",
        str(BUILT / "cache"),
        "--fail-on-warning",
        "-q",
    ]
    status = sphinx([*options, str(BUILT / "source"), str(BUILT / builder)])
    if status or builder != "html":
        return status
    found = problems(BUILT / "html")
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{BUILT / 'html' / 'index.html'}: {len(found) or 'no'} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
