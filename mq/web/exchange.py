"""A request and a reply as plain values, the same for every HTTP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from mq.access import User
from mq.doors.budget import ClientMemory
from mq.doors.quotas import Quotas
from mq.errors import CallerError

STALLED_SECONDS: Final = 30
"""How long a client may keep us waiting for its body, all pauses together."""
SLOWEST_BYTES_PER_SECOND: Final = 1024
"""A body that arrives at least this fast is never too slow."""
DISCARD_SECONDS: Final = 2
"""How long a server goes on taking an unwanted body after its reply. If the socket were closed while the client still
sends, the client would lose the reply."""


class BodyTooSlow(CallerError):
    """The body did not arrive in time."""


Tell = Callable[[], None]
OnHangUp = Callable[[Tell], AbstractAsyncContextManager[None]]
"""In this context, what was given is called when the client hangs up or closes its sending side."""


def nobody_hangs_up(tell: Tell) -> AbstractAsyncContextManager[None]:
    """As :data:`OnHangUp`, for a request of no connection."""
    return nullcontext()


class SharedHeaders(dict[str, str]):
    """Headers that many requests share, and that never change: what was read of them once is kept.

    Attributes:
        read: what a reader has made of them; None so far.
    """

    __slots__ = ("read",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.read: Any = None


class RequestHead(NamedTuple):
    """A request's line and headers, which tell who answers it (:meth:`Handler.for_head`).

    Attributes:
        path: as it came: percent-encoded, without the query.
        headers: by name in small letters. Not to be changed: it may be another request's, too.
        content_length: the announced length in bytes, or None.
        is_last: the client wants the connection to end with it.
        id: the message in the path, where what answers it was found for another one (:attr:`Handler.takes_id`); else
            empty.
    """

    method: str
    path: bytes
    query: bytes
    headers: Mapping[str, str]
    content_length: int | None = None
    is_last: bool = False
    id: str = ""


class Request(NamedTuple):
    """A request, as far as it is known before its body is read.

    Attributes:
        path: as it came: percent-encoded, without the query.
        body: the bytes, once they are here; else chunks, in order. Those raise BodyIncomplete when the client ends
            before their end, BodyTooSlow when it pauses for too long. What is not read here, the server discards for
            at most DISCARD_SECONDS.
        content_length: the announced length in bytes, or None.
        id: as :attr:`RequestHead.id`.
        address: the client's, as :class:`mq.doors.connections.Peer` has it; empty where it is unknown.
        scheme: the client's: "https" where it speaks TLS, else "http".
        memory: what its client may reserve; None for a request of no connection.
        user: set by the authorizer; None where there are no users.
        quotas: holds the user to the user's limits; None where there are no users.
        proxied_host: the Host that a trusted proxy sent, where one did; the headers have the client's then.
    """

    method: str
    path: bytes
    query: bytes
    headers: Mapping[str, str]
    body: bytes | AsyncIterable[bytes]
    content_length: int | None
    id: str = ""
    on_hang_up: OnHangUp = nobody_hangs_up
    address: str = ""
    scheme: str = "http"
    memory: ClientMemory | None = None
    user: User | None = None
    quotas: Quotas | None = None
    proxied_host: str | None = None


class OutgoingBody(Protocol):
    """A body that is sent piece by piece: a message's, or one that is made on the way."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Its pieces, none of them empty. CorruptMessage and StorageError break it off."""

    async def aclose(self) -> None:
        """Give back what it holds."""


class Reply(NamedTuple):
    """A reply. Its headers are complete but for those of the connection.

    Attributes:
        status: as in RFC 9110.
        headers: names in small letters, values in Latin-1. Where they say no length, over HTTP/1.1 it goes in chunks.
        body: the sender closes it.
        is_last: the connection should end with it (HTTP/1.1: ``Connection: close``).
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | OutgoingBody = b""
    is_last: bool = False


Later = Callable[[], Awaitable[Reply]]
"""A reply that has to be waited for, as for a body on the disk. It has to be called."""
Answer = Callable[..., None]
"""Called once, with a function and its arguments. The function makes the reply, or raises what :meth:`Handler.handle`
turns into one. It may be called while the caller is being called."""
Abandon = Callable[[], object]
"""Call it when the client has gone before its answer: what would be lost with the answer is taken back."""


def nothing_to_take_back() -> None:
    """The :data:`Abandon` of a publish or a removal: it is done whether or not the client hears of it."""


class Handler(Protocol):
    """Answers requests: the endpoints, or a guard before them.

    Attributes:
        takes_id: whether it answers requests for any other message in the path of its head, too. Those tell which one
            (:attr:`Request.id`).
    """

    takes_id: bool = False

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`. Its body is the caller's to close."""

    def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
        """Begin to answer a request, whose body is here, in the caller's step.

        Returns:
            The reply; or, if `answer` was or will be called with it, what abandons the request. None where the request
            takes longer: then nothing has begun, and :meth:`handle` answers it.

        Raises:
            MQError: the request is refused.
        """
        return None

    def for_head(self, head: RequestHead) -> Handler:
        """What answers all requests with this head, as :meth:`handle` does.

        A guard that has nothing to say to them leaves itself out: servers remember heads, and pass it by.
        """
        return self


NOT_CACHED: Final = ("cache-control", "no-store")
"""A fetch leases: no cache may answer for it."""
NO_LENGTH: Final = ("content-length", "0")
"""The header of a reply without a body."""


def empty(status: int, *headers: tuple[str, str]) -> Reply:
    """A reply without a body."""
    length = () if status == HTTPStatus.NO_CONTENT else (NO_LENGTH,)
    return Reply(status, (*length, *headers))


def document(status: int, value: Mapping[str, Any], *headers: tuple[str, str], type: str = "application/json") -> Reply:
    """A reply whose body is `value` as JSON."""
    body = json.dumps(value).encode() + b"\n"
    return Reply(status, (("content-type", type), ("content-length", str(len(body))), *headers), body)


UNSURE: Final = {"outcome": "unknown"}
"""Stands beside a status where it is unknown whether the request was carried out."""


def problem(status: int, detail: str, *headers: tuple[str, str], is_unsure: bool = False) -> Reply:
    """A refusal as RFC 9457 has it, with `detail` on one line. Where the request may have been carried out all the
    same, its member ``outcome`` is ``unknown``."""
    value: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": " ".join(detail.split()),
        **(UNSURE if is_unsure else {}),
    }
    return document(status, value, *headers, type="application/problem+json")


BUG: Final = problem(500, "internal error in mq; see the mq log")
"""The answer to a request that met an unforeseen error."""
