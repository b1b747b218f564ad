"""The page's files. They need no key, since they tell nothing about the server or its model."""

from dataclasses import dataclass
from importlib import resources

_NAMES = (
    "style.css", "page.js", "wire.js", "chat.js", "markdown.js", "tokens.js", "engine.js", "map.js", "plot.js",
    "icon.svg",
)  # fmt: skip
_PATHS = {"/": "index.html"} | {f"/page/{name}": name for name in _NAMES}
PAGE_PATHS = frozenset(_PATHS)
"""The paths of the files. `EVENTS_PATH` is not among them: it needs a key where there is one."""
EVENTS_PATH = "/page/events"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file. `path`: on the server."""

    path: str
    media_type: str
    content: bytes


def page_files() -> list[PageFile]:
    """All files, read from the package."""
    folder = resources.files(__package__) / "web"
    return [
        PageFile(path, _MEDIA_TYPES[name.rpartition(".")[2]], (folder / name).read_bytes())
        for path, name in _PATHS.items()
    ]
