"""GET / and /page/...: a chat page for the browser, from the plain files in page/."""

from __future__ import annotations

import hashlib
from pathlib import Path

import fastapi
from starlette.requests import Request
from starlette.responses import Response

from specdec_serve.http.errors import ApiError
from specdec_serve.http.service import Service

_FOLDER = Path(__file__).parent / "page"
_INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Whatever a model writes, the page loads nothing from other hosts and runs only its own scripts.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes, unless options.page is False. They need no key."""
    if not service.options.page:
        return
    files = {path.name: _File(path) for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}

    @app.get("/", include_in_schema=False)
    async def index(http: Request) -> Response:
        return files[_INDEX].response(http)

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str, http: Request) -> Response:
        if name not in files:
            raise ApiError(404, f"The page has no file {name!r}.")
        return files[name].response(http)


class _File:
    """A file of the page, read once."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        tag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
        self._headers = {**_HEADERS, "etag": tag, "content-type": _MEDIA_TYPES[path.suffix]}

    def response(self, http: Request) -> Response:
        """The file, or 304 if the browser has it."""
        if http.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)
