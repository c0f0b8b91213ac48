"""Reverse proxies before the daemon: the path under which they serve it, and the client, scheme and host that they
report.

A proxy reports by ``Forwarded`` (RFC 7239) or by ``X-Forwarded-For``, ``-Proto``, ``-Host`` and ``-Port``. Any client
can send these headers, so they count only from the networks that the operator trusts. Each proxy appends the address
that connected to it: read from the right, the first one that is not trusted is the client.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mq.doors.connections import Crowd, uid_of
from mq.web.exchange import Handler, Reply, Request, RequestHead, empty, problem

UNIX: Final = "unix"
"""Among the networks of proxies: those that connect to the Unix socket."""
REPORTS: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port")
"""The headers that are read."""
SECONDS_UNTIL_RETRY: Final = 1

_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_NODE: Final = re.compile(r"(?:([0-9.]{7,15})|\[([0-9A-Fa-f:.]{2,45})\])(?::[0-9]{1,5})?")
_UNREADABLE: Final = "the Forwarded header is malformed (RFC 7239). Configure the proxy to overwrite or remove it"
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR: Final = re.compile(rf'\s*({_TOKEN})=({_TOKEN}|"(?:[^"\\]|\\.)*")\s*(;|,|$)')
"""A pair of an element, and what follows it."""


# The path


class BasePath:
    """The path under which a proxy serves the daemon.

    Args:
        path: such as ``/mq``; empty for none.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path.encode()
        self._below = self._path + b"/"

    def strip(self, method: str, path: bytes) -> bytes:
        """The path below the base path. One that is not below it is the daemon's own: some proxies take the base path
        away themselves, and clients of this machine leave it out. Empty for the base path itself, when it is looked at:
        :class:`BasePathGuard` adds the slash, without which the console's relative addresses lead elsewhere.
        """
        if not self._path or not path.startswith(self._path):
            return path
        if path.startswith(self._below):
            return path[len(self._path) :]
        if path == self._path:
            return b"" if method in ("GET", "HEAD") else b"/"
        return path


NO_BASE_PATH: Final = BasePath()


class BasePathGuard(Handler):
    """Leads clients from the base path to the page below it, and hands on all other requests."""

    def __init__(self, handler: Handler, path: str) -> None:
        self._handler = handler
        self._last = path.rpartition("/")[2]

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        if request.path:
            return await self._handler.handle(request)
        query = f"?{request.query.decode('latin-1')}" if request.query else ""
        return empty(308, ("location", f"{self._last}/{query}"))

    def for_head(self, head: RequestHead) -> Handler:
        """Itself for the base path."""
        return self._handler.for_head(head) if head.path else self


# The client


class TrustedProxies:
    """The proxies whose reports count.

    Args:
        networks: addresses and networks, such as ``10.0.0.0/8``; :data:`UNIX` for those at the Unix socket.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        named = list(networks)
        self._has_unix = UNIX in named
        self._networks = [ipaddress.ip_network(each, strict=False) for each in named if each != UNIX]

    def trusts(self, address: str) -> bool:
        """Whether an address is that of a proxy."""
        if uid_of(address) is not None:
            return self._has_unix
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)


class Hop(NamedTuple):
    """What a proxy reports of the connection that it got.

    Attributes:
        address: who connected; empty if it is hidden or unknown.
        scheme: "http" or "https"; empty if it is not reported.
        host: as the client named it; empty if it is not reported.
    """

    address: str = ""
    scheme: str = ""
    host: str = ""


class ContradictoryReports(Exception):
    """The headers of two kinds name different clients, or cannot be read: one of them is the client's own."""


def hops_of(headers: Mapping[str, str]) -> Sequence[Hop]:
    """The hops that headers report, the nearest proxy's last.

    Raises:
        ContradictoryReports: see there.
    """
    found = [_x_forwarded(headers)] if "x-forwarded-for" in headers else []
    if "forwarded" in headers:
        found.append(_forwarded(headers["forwarded"]))
    if len(found) == 2 and found[0] and found[1] and found[0][-1].address != found[1][-1].address:
        # A proxy adds one of the two and passes on what the client sent as the other.
        raise ContradictoryReports(
            "the headers X-Forwarded-For and Forwarded contain different client addresses. Configure the "
            "proxy to overwrite or remove each of these headers"
        )
    hops = found[0] if found else [Hop()]
    return [_with_rest(hop, headers, len(hops) - at) for at, hop in enumerate(hops)]


def _with_rest(hop: Hop, headers: Mapping[str, str], from_right: int) -> Hop:
    """A hop with its scheme and its host, where headers of their own report these."""
    scheme = hop.scheme or _SCHEMES.get(_entry(headers, "x-forwarded-proto", from_right).lower(), "")
    host = hop.host or _entry(headers, "x-forwarded-host", from_right)
    host = host if _HOST.fullmatch(host) else ""
    return Hop(hop.address, scheme, host)


def _entry(headers: Mapping[str, str], name: str, from_right: int) -> str:
    """The entry of a list, counted from its right end. Some proxies append to these lists, some replace them: a shorter
    list has been replaced, and its first entry is the outermost proxy's."""
    entries = [entry.strip() for entry in headers.get(name, "").split(",")]
    return entries[max(0, len(entries) - from_right)]


def _x_forwarded(headers: Mapping[str, str]) -> list[Hop]:
    return [Hop(_address(entry.strip())) for entry in headers["x-forwarded-for"].split(",")]


def _forwarded(value: str) -> list[Hop]:
    """The elements of the header ``Forwarded`` (RFC 7239, section 4)."""
    hops, at, pairs = [], 0, dict[str, str]()
    while at < len(value):
        matched = _PAIR.match(value, at)
        if matched is None:
            raise ContradictoryReports(_UNREADABLE)
        name, text, then = matched.groups()
        pairs[name.lower()] = re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
        at = matched.end()
        if then != ";":
            scheme = _SCHEMES.get(pairs.get("proto", "").lower(), "")
            hops.append(Hop(_address(pairs.get("for", "")), scheme, pairs.get("host", "")))
            pairs = {}
    if pairs or not hops:
        raise ContradictoryReports(_UNREADABLE)
    return hops


def _address(node: str) -> str:
    """The address of a node, without its port; empty for a name, or for none."""
    matched = _NODE.fullmatch(node)
    text = (matched[1] or matched[2]) if matched else node
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


class ProxyGuard(Handler):
    """Hands on requests as their clients made them, whichever trusted proxies they came by.

    Args:
        crowd: limits the requests at work for one address, as it limits the connections of one.
    """

    def __init__(self, handler: Handler, proxies: TrustedProxies, crowd: Crowd) -> None:
        self._handler = handler
        self._proxies = proxies
        self._crowd = crowd

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        if not self._proxies.trusts(request.address):
            return await self._handler.handle(request)
        try:
            hops = hops_of(request.headers)
        except ContradictoryReports as error:
            return problem(400, str(error))
        seen = self._as_made(request, hops)
        with self._crowd.request(seen.address) as has_room:
            if has_room:
                return await self._handler.handle(seen)
        later = ("retry-after", str(SECONDS_UNTIL_RETRY))
        return problem(503, "too many concurrent requests from this address (--connections-per-address)", later)

    def for_head(self, head: RequestHead) -> Handler:
        """Itself, where a proxy may report something."""
        return self._handler.for_head(head) if head.headers.keys().isdisjoint(REPORTS) else self

    def _as_made(self, request: Request, hops: Sequence[Hop]) -> Request:
        """The request as its client made it."""
        client, outermost = request.address, hops[-1]
        for hop in reversed(hops):
            outermost = hop
            if not hop.address:
                break  # hidden: the proxy that it came to is as far as can be seen
            client = hop.address
            if not self._proxies.trusts(client):
                break
        scheme = outermost.scheme or request.scheme
        proxied = request.headers.get("host", "")
        host = outermost.host or proxied
        port = request.headers.get("x-forwarded-port", "").rpartition(",")[2].strip()
        if _PORT.fullmatch(port) and port != _DEFAULT_PORTS[scheme] and host and not _has_port(host):
            host = f"{host}:{port}"
        headers = {**request.headers, "host": host} if host else request.headers
        return request._replace(address=client, scheme=scheme, headers=headers, proxied_host=proxied)


def _has_port(host: str) -> bool:
    return _PORT.fullmatch(host.rpartition(":")[2]) is not None and (host.count(":") == 1 or host.startswith("["))
