"""The page's files: HTML, CSS, ES modules and an icon of our own, as they lie in ``mq/web/page``.

A file's address names the version of all files. So a browser may keep a file for ever, and a page of one version never
gets a module of another.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final, NamedTuple

from mq.web.exchange import NOT_CACHED, Reply, problem

INDEX: Final = "index.html"
FOLDER: Final = "/-/page/"

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_VERSION_DIGITS: Final = 16
_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))|,|$)", re.IGNORECASE)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page loads its own files and nothing else. Not even a body that a client has published here as a script: the
browser guard refuses to serve one as a part of a page."""
_CACHED_FOREVER: Final = ("cache-control", "public, max-age=31536000, immutable")
_GUARDS: Final = (("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"))


class PageFile(NamedTuple):
    """A file as it is sent: its content type, its bytes, and the same ones packed."""

    type: str
    body: bytes
    packed: bytes


class PageFiles(NamedTuple):
    """All of them, by name, and their version: hexadecimal digits that change with any of them."""

    version: str
    files: Mapping[str, PageFile]


@functools.cache
def page_files() -> PageFiles:
    """The files of this mq, read once."""
    folder = resources.files("mq.web") / "page"
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    digest = hashlib.sha256()
    for name, body in sorted(found.items()):
        digest.update(b"%b %d\n%b" % (name.encode(), len(body), body))
    version = digest.hexdigest()[:_VERSION_DIGITS]
    found[INDEX] = found[INDEX].replace(b"VERSION", version.encode())
    return PageFiles(version, {name: _file(name, body) for name, body in found.items()})


def _file(name: str, body: bytes) -> PageFile:
    return PageFile(_TYPES[name.rpartition(".")[2]], body, gzip.compress(body, mtime=0))


def index_reply(headers: Mapping[str, str]) -> Reply:
    """The page itself: its frame, without any data."""
    policy = ("content-security-policy", _POLICY)
    return _reply(page_files().files[INDEX], headers, NOT_CACHED, policy, ("x-frame-options", "DENY"))


def file_reply(path: bytes, name: str, headers: Mapping[str, str]) -> Reply:
    """One of the files that the page names."""
    there = page_files()
    address = f"{FOLDER}{there.version}/{name}".encode()
    if path != address or name not in there.files or name == INDEX:
        return problem(404, "this file is not part of the console. Reload the page", NOT_CACHED)
    return _reply(there.files[name], headers, _CACHED_FOREVER)


def _reply(file: PageFile, headers: Mapping[str, str], *more: tuple[str, str]) -> Reply:
    is_packed = _GZIP.search(headers.get("accept-encoding", "")) is not None
    body = file.packed if is_packed else file.body
    coding = (("content-encoding", "gzip"),) if is_packed else ()
    size = ("content-length", str(len(body)))
    return Reply(200, (("content-type", file.type), size, *coding, ("vary", "accept-encoding"), *_GUARDS, *more), body)
