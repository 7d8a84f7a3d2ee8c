"""The files of the pages below `/ui/`, which ask the other endpoints for all that they show."""

from importlib.resources import files

from starlette.responses import Response

from penstock.ops.requests import Endpoint, OpsRequest, refused

_KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml",
}  # fmt: skip
_PAGES = {"": "index.html", "map": "map.html"}
_FILES = {
    each.name
    for each in files("penstock.ops").joinpath("ui").iterdir()
    if each.name.rpartition(".")[2] in _KINDS
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip


def page(request: OpsRequest) -> Response:
    """A file."""
    asked = str(request.ids.get("name", ""))
    name = _PAGES.get(asked, asked)
    if name not in _FILES:
        return refused(404, "not_found", f"there is no page {name[:40]}")
    body = files("penstock.ops").joinpath("ui", name).read_bytes()
    kind = _KINDS[name.rpartition(".")[2]]
    return Response(body, media_type=kind, headers=_HEADERS)


PAGES = (Endpoint("/ui/", "GET", page), Endpoint("/ui/{name}", "GET", page))
