"""The guards before every HTTP handler: the request log, and behind it the browser guard.

The browser guard refuses requests that foreign web pages cause. A browser sends a page's requests from its own machine,
so any page could use a daemon on a loopback address without users: by a request across sites, or by a name that comes
to point here (DNS rebinding). Three headers of a browser say where a request comes from (RFC 9110, section 7.2; Fetch,
sections 3.1 and 4.7; Fetch Metadata). Other clients name the daemon with the first, and leave out the others.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from time import perf_counter
from typing import Final

from mq.doors.audit import RefusalNotes
from mq.log_lines import REQUESTS, write
from mq.message import shorten
from mq.web.endpoints import ROUTER, split_path
from mq.web.exchange import Handler, Reply, Request, RequestHead, problem
from mq.web.http_connection import CONNECTION
from mq.web.login_sessions import CSRF_HEADER
from mq.web.page_files import FOLDER

LONGEST_PATH: Final = 300
"""Bytes of a path that are written down."""


class RequestLog(Handler):
    """Hands on every request, and writes down what became of it, where that is wanted."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        if not REQUESTS.isEnabledFor(logging.INFO):
            return await self._handler.handle(request)
        begun = perf_counter()
        reply = await self._handler.handle(request)
        connection = CONNECTION.get()
        write(
            REQUESTS,
            "request",
            method=request.method,
            path=request.path[:LONGEST_PATH].decode("latin-1"),
            status=reply.status,
            seconds=round(perf_counter() - begun, 6),
            address=request.address,
            user=None if connection is None else connection.user,
        )
        return reply

    def for_head(self, head: RequestHead) -> Handler:
        """Itself, while requests are written down."""
        return self if REQUESTS.isEnabledFor(logging.INFO) else self._handler.for_head(head)


_ABSOLUTE: Final = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
ANY_HOST: Final = "*"
_SAME_ORIGIN: Final = "same-origin"
_OWN_SITES: Final = (_SAME_ORIGIN, "none")
"""Values of ``Sec-Fetch-Site`` in a request of our own page, and of an address that a user typed."""
_RUN: Final = ("script", "style", "worker", "sharedworker", "serviceworker", "audioworklet", "paintworklet", "xslt")
"""Values of ``Sec-Fetch-Dest``: a page is about to run what it asks for."""
_PAGE: Final = FOLDER.encode()
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_BROWSER: Final = "Mozilla/"
"""How every browser begins its name."""
_REMEMBERED: Final = 64


class BrowserGuard(Handler):
    """Hands on the requests that no foreign page can have caused, and refuses the others.

    A browser says nothing of where an image comes from when it asks a daemon without TLS on another machine. So no
    browser leases a message there but by a header that only a page of this daemon's can send.

    Args:
        address: the address or name that the daemon listens on. For any address (0.0.0.0, ::) every literal address is
            allowed: an attacker could choose a name, but not an address.
        hosts: more names under which clients may ask, such as a proxy's; ``*`` is any.
        browsers_lease: whether a browser may lease messages without that header, as the seed has it.
    """

    def __init__(
        self, handler: Handler, address: str, hosts: Iterable[str] = (), *, browsers_lease: bool = False
    ) -> None:
        self._handler = handler
        self._browsers_lease = browsers_lease
        self._notes = RefusalNotes()
        self._names = {"localhost", _folded(address), *map(_folded, hosts)}
        literal = _literal(address)
        self._takes_any_literal = literal is not None and literal.is_unspecified
        self._is_ours = lru_cache(_REMEMBERED)(self._judge_host)

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`: 421, 403, or what the handler says."""
        refused = self._refusal(request)
        if refused is None:
            return await self._handler.handle(request)
        if refused.status == HTTPStatus.FORBIDDEN:
            origin, path = request.headers.get("origin"), request.path[:LONGEST_PATH].decode("latin-1")
            self._notes.refused(
                protocol="http",
                address=request.address,
                operation=f"{request.method} {path}",
                why="page",
                origin=origin,
            )
        return refused._replace(body=b"") if request.method == "HEAD" else refused

    def for_head(self, head: RequestHead) -> Handler:
        """Itself for what it refuses."""
        return self._handler.for_head(head) if self._refusal(head) is None else self

    def _refusal(self, head: RequestHead | Request) -> Reply | None:
        headers = head.headers
        host = headers.get("host", "")  # HTTP/1.0 need not have one, and no browser leaves it out
        target = _ABSOLUTE.match(head.path)  # it goes before Host (RFC 9112, section 3.2.2)
        proxied = head.proxied_host if isinstance(head, Request) else None
        for name in (host, proxied, target[1].decode("latin-1") or "-" if target else ""):
            if name and not self._is_ours(name):
                return problem(
                    421,
                    f"this daemon does not accept the host name {shorten(name)}. Use its address, or "
                    "start mq with --hosts NAME",
                )
        origin = headers.get("origin")
        is_own = headers.get("sec-fetch-site") == _SAME_ORIGIN
        if origin is not None and not _is_origin_of(origin, host, may_lack_port=is_own or proxied is not None):
            return problem(403, f"web pages from {shorten(origin)} may not access this daemon")
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
            return problem(403, "web pages from other sites may not access this daemon")
        if headers.get("sec-fetch-dest") in _RUN and not head.path.startswith(_PAGE):
            return problem(403, "a message cannot be embedded in a web page")
        if not self._browsers_lease and _is_lease_by_a_browser(head):
            return problem(403, _NO_LEASE)
        return None

    def _judge_host(self, host: str) -> bool:
        name = _name_of(host)
        if name in self._names or ANY_HOST in self._names:
            return True
        literal = _literal(name)
        return literal is not None and (self._takes_any_literal or literal.is_loopback)


_NO_LEASE: Final = (
    "browsers cannot fetch messages, because any web page could cause such a request. Use the console at /. "
    f"A program with a browser's User-Agent can send the header {CSRF_HEADER.title()}, which may be empty"
)


def _is_lease_by_a_browser(head: RequestHead | Request) -> bool:
    """Whether a request leases messages, comes from a browser, and perhaps not from a page of this daemon's."""
    headers = head.headers
    if not headers.get("user-agent", "").startswith(_BROWSER):
        return False
    if headers.get("sec-fetch-site") == _SAME_ORIGIN or CSRF_HEADER in headers:
        return False
    found = ROUTER.find(split_path(head.path), head.method)
    return found is not None and found[0].methods[head.method].leases


def _is_origin_of(origin: str, host: str, *, may_lack_port: bool) -> bool:
    """Whether a page comes from the host that was asked.

    Args:
        may_lack_port: a proxy may have left the port out, as nginx's ``$host`` does.
    """
    scheme, _, authority = origin.lower().partition("://")
    host = host.lower()
    if authority == host or f"{authority}:{_DEFAULT_PORTS.get(scheme)}" == host:
        return True
    return may_lack_port and _name_of(authority) == _name_of(host) == _folded(host)


def _name_of(host: str) -> str:
    """What stands before the port."""
    name, colon, port = host.rpartition(":")
    return _folded(name if colon and (port.isdecimal() or not port) else host)


def _folded(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


def _literal(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None
