"""A page of the papers that the code names: what it takes from each, and where.

Read from docstrings and comments at the heads of files, so it says what the code says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/tandem"
_VENUES = r"OSDI|SOSP|NSDI|FAST|SIGCOMM|NeurIPS|ICML|ICLR|EMNLP|TACL|VLDB|ISCA|MLSys|SC"
# An author with a year, a number on arXiv, or a conference with its year.
CITATION = re.compile(
    rf"arXiv[: ]\d{{4}}\.\d{{5}}"
    rf"|[A-Z]\w+ (?:et al\.|and (?:others|[A-Z]\w+)),?[^.]{{0,160}}?\d{{4}}"
    rf"|\b(?:{_VENUES}) (?:'\d\d|\d{{4}})"
)
_ARXIV = re.compile(r"arXiv[: ](\d{4}\.\d{5})")
HEAD = """\
# Papers

Which published algorithms, formulas and formats Tandem implements, as the docstrings of the code
say it. What their authors measured, played again in the simulator:
[published results](../published.md).
"""


def papers_page() -> str:
    """One table a room; a row has what cites, and its sentences that do."""
    text, room = HEAD, ""
    for where, said in citations():
        if where.split(".")[0] != room:
            room = where.split(".")[0]
            text += f"\n## {room}\n\n| where | what is taken from whom |\n|---|---|\n"
        text += f"| `{where}` | {_cell(said)} |\n"
    return text


def citations() -> Iterator[tuple[str, str]]:
    """Each docstring that cites, by the dotted name of what it describes."""
    for file in sorted(SOURCE.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for name, docstring in _docstrings(ast.parse(file.read_text()), module):
            sentences = [each for each in _sentences(docstring) if CITATION.search(each)]
            if sentences:
                yield name, " ".join(sentences)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if docstring := ast.get_docstring(node):
            yield name, docstring
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _docstrings(child, f"{name}.{child.name}")


def _sentences(docstring: str) -> Iterator[str]:
    """Those of one paragraph after another; no parenthesis, quotation or code is cut in two, and
    `et al.` ends none."""
    for paragraph in docstring.split("\n\n"):
        sentence = ""
        for part in re.split(
            r"(?<!et al\.)(?<!\d\.)(?<=\.)\s+(?=[A-Z`])", " ".join(paragraph.split())
        ):
            sentence = f"{sentence} {part}".strip()
            is_open = sentence.count("(") > sentence.count(")")
            if not is_open and not sentence.count('"') % 2 and not sentence.count("`") % 2:
                yield sentence
                sentence = ""
        if sentence:
            yield sentence


def _cell(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", _ARXIV.sub(r"<https://arxiv.org/abs/\1>", text))
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") else re.sub(r"([*_\[\]|])", r"\\\1", part)
        for part in parts
    )
