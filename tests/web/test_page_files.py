"""The page's files: which there are, how they are sent, and what the page is allowed to do."""

from __future__ import annotations

import gzip
import re

import pytest

from mq.broker.settings import PAUSES, QueueSettings
from mq.web.batches import _DRAFT_KEYS
from mq.web.endpoints import Endpoints
from mq.web.page_files import FOLDER, INDEX, page_files
from tests.cases import for_each
from tests.web.talking import ask

MOST_BYTES = 150 * 1024
MARKUP = re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function|DOMParser|srcdoc)\b")
"""Ways in which text could become markup or a program."""


def modules() -> dict[str, str]:
    return {name: file.body.decode() for name, file in page_files().files.items() if name.endswith(".js")}


async def test_the_page_is_there_and_names_files_that_are(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "GET", "/")
    assert reply.status == 200
    assert isinstance(reply.body, bytes)
    html = reply.body.decode()
    named = re.findall(rf'"({FOLDER[1:]}[^"]+)"', html)
    for address in named:
        there = await ask(endpoints, "GET", f"/{address}")
        assert there.status == 200
        assert dict(there.headers)["cache-control"] == "public, max-age=31536000, immutable"
    assert {address.rpartition("/")[2] for address in named} == page_files().files.keys() - {INDEX}
    for line in re.findall(r"<(?:script|style)[^>]*>", html) + re.findall(r"\son\w+=|style=", html):
        assert line.startswith("<script type=")  # with an address of its own: nothing stands inside


@pytest.mark.parametrize("path", ["/-/page/x/page.js", "/-/page/VERSION/nonesuch", "/-/page/VERSION/index.html"])
async def test_what_is_not_there_is_404(endpoints: Endpoints, path: str) -> None:
    reply = await ask(endpoints, "GET", path.replace("VERSION", page_files().version))
    assert reply.status == 404


@pytest.mark.parametrize(
    ("accepts", "is_packed"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("", False), ("br", False), ("gzip;q=0", False), ("x-gzipped", False)],
)
async def test_who_takes_it_gets_it_packed(endpoints: Endpoints, accepts: str, is_packed: bool) -> None:
    path = f"{FOLDER}{page_files().version}/page.js"
    reply = await ask(endpoints, "GET", path, headers={"accept-encoding": accepts})
    headers = dict(reply.headers)
    assert ("content-encoding" in headers) == is_packed
    assert isinstance(reply.body, bytes)
    assert headers["content-length"] == str(len(reply.body))
    assert headers["vary"] == "accept-encoding"
    body = gzip.decompress(reply.body) if is_packed else reply.body
    assert body == page_files().files["page.js"].body


def test_it_is_small() -> None:
    assert sum(len(file.packed) for file in page_files().files.values()) < MOST_BYTES / 2


async def test_it_may_load_its_own_files_and_nothing_else(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "GET", "/", headers={"host": "localhost:8080"})
    policy = dict(part.strip().split(" ", 1) for part in dict(reply.headers)["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["img-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)


@pytest.mark.parametrize("host", ["a; script-src *", "a b", "mq.example:8443", "*"])
async def test_the_policy_is_the_same_whatever_the_host_is(endpoints: Endpoints, host: str) -> None:
    """A proxy may hand on another one than the browser used."""
    plain, named = await ask(endpoints, "GET", "/"), await ask(endpoints, "GET", "/", headers={"host": host})
    assert named == plain


@for_each("name", modules())
def test_every_address_is_relative(name: str) -> None:
    """A proxy may have put mq under a path."""
    assert re.findall(r"""["'`]/(?:-/|\$\{)""", modules()[name]) == []


def test_the_index_names_relative_addresses_alone() -> None:
    html = page_files().files[INDEX].body.decode()
    assert re.findall(r'(?:href|src)="/[^"]*"', html) == []


@for_each("name", modules())
def test_no_module_makes_markup_of_text(name: str) -> None:
    assert MARKUP.findall(modules()[name]) == []


@for_each("name", modules())
def test_a_module_takes_only_our_own(name: str) -> None:
    text = modules()[name]
    for taken in re.findall(r'(?:from|import\()\s*"([^"]+)"', text):
        assert taken.removeprefix("./") in page_files().files
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    assert text.startswith("//")  # what it is there for


def test_every_setting_of_a_queue_can_be_changed() -> None:
    """Those that pause have buttons, the others stand in the form; and a message can be given all that it may have."""
    form, buttons = modules()["settings.js"], modules()["queue.js"]
    for name in QueueSettings.kinds():
        assert f'["{name}",' in (buttons if name in PAUSES else form), name
    for name in _DRAFT_KEYS:
        assert re.search(rf"\b{name}\b", buttons) or name in ("base64", "key"), name


async def test_console_does_not_exist_with_strict(endpoints: Endpoints, broker: object) -> None:
    strict = Endpoints(broker, 100, strict=True)  # type: ignore[arg-type]
    assert (await ask(strict, "GET", "/")).status == 404
    assert (await ask(strict, "GET", "/-/events")).status == 404
