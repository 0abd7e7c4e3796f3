"""GET /: the page for people, and the files that it is made of, which need no key and load nothing
from anywhere else. What it shows comes from the endpoints in `observed.py`, which do."""

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent / "files"
_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
PAGE_PATHS = frozenset(
    {"/", *(f"/page/{file.name}" for file in _FOLDER.iterdir() if file.name != _INDEX)}
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    headers: dict[str, str]


def page_routes() -> list[Route]:
    """All of them."""
    return [Route(path, _show) for path in sorted(PAGE_PATHS)]


async def _show(request: Request) -> Response:
    file = _read(request.url.path.rpartition("/")[2] or _INDEX)
    if request.headers.get("If-None-Match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)


@cache
def _read(name: str) -> _File:
    file = _FOLDER / name
    content = file.read_bytes()
    headers = {
        "Content-Type": _TYPES[file.suffix],
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # A new version is seen at once, and an old one costs no bytes.
        "Cache-Control": "no-cache",
        "ETag": f'"{blake2b(content, digest_size=12).hexdigest()}"',
    }
    return _File(content, headers)
