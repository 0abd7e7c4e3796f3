"""Writes constraints.txt and docs/licences.md from what is installed: python -m tests.supply"""

from tests.supply.packages import ROOT, project
from tests.supply.pages import constraints, licences


def main() -> None:
    (ROOT / "constraints.txt").write_text(constraints(project()))
    (ROOT / "docs" / "licences.md").write_text(licences(project()))


if __name__ == "__main__":
    main()
