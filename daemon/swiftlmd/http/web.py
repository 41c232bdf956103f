"""The companion: the web page at `/`, static files that lie beside this package.

The files hold nothing secret and are served without a key, since a browser sends none when it
opens a page; all that the page then asks for goes through the guard like any client's request.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from pathlib import Path

from aiohttp import web

_ROOT = Path(str(resources.files("swiftlmd"))) / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
    ".LICENSE": "text/plain; charset=utf-8",
}
# No inline script and nothing from elsewhere: what a model writes can neither run nor call home.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
# Shows HTML that a model wrote: of no origin, without any network, framed by our page alone.
_PREVIEW = "preview.html"
_PREVIEW_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
_AT_THE_ROOT = ("manifest.webmanifest",)
_VERSION = "X-Page-Version"
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def wants_page(request: web.BaseRequest) -> bool:
    """Whether a browser asks; agents that probe `/` keep getting JSON."""
    return "text/html" in request.headers.get("Accept", "")


def page(request: web.BaseRequest) -> web.Response:
    answer = _answer(request, "index.html")
    answer.headers[_VERSION] = _version()
    return answer


async def static(request: web.Request) -> web.Response:
    return _answer(request, request.match_info["name"])


async def at_the_root(request: web.Request) -> web.Response:
    """The files whose place decides what they govern: a service worker rules its own folder."""
    return _answer(request, request.path.removeprefix("/"))


def _answer(request: web.BaseRequest, name: str) -> web.Response:
    known = _files().get(name)
    if known is None:
        raise web.HTTPNotFound
    body, kind, tag = known
    headers = {**_HEADERS, "ETag": tag, "Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
    if name == _PREVIEW:
        headers["Content-Security-Policy"] = _PREVIEW_POLICY
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=body, headers=headers)
    response.enable_compression()
    return response


@cache
def _version() -> str:
    """Of all files together, for the worker that keeps them."""
    files = (path.read_bytes() for path in sorted(_ROOT.rglob("*")) if path.is_file())
    return _digest(b"".join(files))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _worker(source: bytes) -> bytes:
    """`sw.js`, told which version this is and what belongs to it."""
    names = [path.relative_to(_ROOT).as_posix() for path in sorted(_ROOT.rglob("*.*"))]
    files = [
        name if name in _AT_THE_ROOT else f"web/{name}"
        for name in names
        if name not in ("sw.js", "index.html", _PREVIEW) and not name.endswith((".LICENSE", ".png"))
    ]
    lines = {
        b'const VERSION = "";': f"const VERSION = {json.dumps(_version())};",
        b"const FILES = [];": f"const FILES = {json.dumps(['./', *files])};",
    }
    for line, told in lines.items():
        source = source.replace(line, told.encode())
    return source


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Everything served, read once: no path of a request ever reaches the file system."""
    found = {}
    for path in sorted(_ROOT.rglob("*")):
        if path.is_file() and path.suffix in _TYPES:
            body = path.read_bytes()
            if path.name == "sw.js":
                body = _worker(body)
            tag = f'W/"{_digest(body)}"'
            found[path.relative_to(_ROOT).as_posix()] = (body, _TYPES[path.suffix], tag)
    return found
