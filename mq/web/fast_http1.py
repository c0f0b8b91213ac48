"""The fast lane: plain HTTP/1.1 requests, served straight on the stream.

One regular expression says what is plain, and its matches can be read in one way only. At the first other request
(codings, upgrades, expectations, a repeated header) the connection goes on to Hypercorn, with all that was read of that
request. So odd requests have one answer, and this module need not know them. Both lanes answer alike, byte for byte;
tests/web/test_lanes.py holds them to that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from time import time
from typing import Any, Final

import trio
from hypercorn.typing import ASGIReceiveEvent, HTTPDisconnectEvent, HTTPRequestEvent

from mq.doors.budget import UNCOUNTED_BYTES, ClientMemory, Use
from mq.doors.readers import REQUEST, Reader
from mq.errors import BodyIncomplete, CorruptMessage, MQError, NoMemory, StorageError
from mq.log_lines import REQUESTS
from mq.message import MESSAGE_ID_PATTERN, MessageId
from mq.turns import BYTE
from mq.web.exchange import (
    BUG,
    DISCARD_SECONDS,
    NO_LENGTH,
    Abandon,
    Answer,
    BodyTooSlow,
    Handler,
    Later,
    OutgoingBody,
    Reply,
    Request,
    RequestHead,
    SharedHeaders,
)
from mq.web.http_connection import HangUps, WatchedStream
from mq.web.proxies import NO_BASE_PATH, BasePath
from mq.web.refusals import (
    AMBIGUOUS_LINE,
    EMPTY_LINES,
    MOST_EMPTY_LINES,
    MOST_LINES,
    refusal_of,
    refusal_of_amqp,
    refusal_of_body,
    refusal_of_head,
)
from mq.web.replies import without_body
from mq.web.request_body import ArrivingBody

logger = logging.getLogger(__name__)

LARGEST_HEAD: Final = 32 * 1024
LARGEST_READ: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are sent at once, at the most."""
LONGEST_REMEMBERED: Final = 1024
"""Bytes of the longest head that is remembered."""
_REMEMBERED: Final = 512
_MOST_WAITS: Final = 16
"""How often bytes are waited for at once, after looks in vain. To look after a checkpoint saves the wait where they are
there by then, as under load, and costs a system call and a pass of the event loop elsewhere."""
_PARSED: Final = 4
"""How much memory a byte of a head may take once it is parsed."""

_EMPTY: Final = b"\r\n"
_AMQP: Final = b"AMQP"
"""The beginning of a connection of AMQP."""
_END: Final = 2 * _EMPTY
_ODD: Final = frozenset({"transfer-encoding", "upgrade", "expect", "http2-settings", "te", "trailer"})
_LENGTH: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_OF_A_MESSAGE: Final = re.compile(rf"[A-Z]+ /[^ ?]+/messages/({MESSAGE_ID_PATTERN})[ ?]".encode())
_ANY_ID: Final = b"00000000-0000-1000-8000-000000000000"
"""Stands for the id of a message in heads that are remembered."""
_NO_CONTENT: Final = int(HTTPStatus.NO_CONTENT)
_PLAIN: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE) /[\x21-\x7e]* HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)+\r\n"
)
"""RFC 9112, sections 3 and 5, without what is optional or obsolete there."""


def parse_head(head: bytes) -> RequestHead | None:
    """A whole head, up to and with its empty line; None when it is not plain."""
    if head.count(b"\n") > MOST_LINES or _PLAIN.fullmatch(head) is None:
        return None
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers: dict[str, str] = {}
    for each in lines:
        name, _, value = each.partition(":")
        headers[name.lower()] = value.strip(" \t")
    length, connection = headers.get("content-length"), headers.get("connection", "").lower()
    if (
        len(headers) != len(lines)
        or "host" not in headers
        or not _ODD.isdisjoint(headers)
        or connection not in ("", "keep-alive", "close")
        or (length is not None and _LENGTH.fullmatch(length) is None)
    ):
        return None
    path, _, query = target.encode("latin-1").partition(b"?")
    return RequestHead(method, path, query, headers, None if length is None else int(length), connection == "close")


def head_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The head of a request over HTTP/2, as it would be over HTTP/1.1; None if it cannot be written so."""
    pseudo: dict[bytes, bytes] = {}
    lines = [b""]
    for name, value in headers:
        if name.startswith(b":"):
            pseudo[name] = value
        elif name != b"host" or b":authority" not in pseudo:
            lines.append(b"%b: %b" % (name, value))
    if b":authority" in pseudo:
        lines[0] = b"host: " + pseudo[b":authority"]
    else:
        del lines[0]
    line = b"%b %b HTTP/1.1" % (pseudo.get(b":method", b""), pseudo.get(b":path", b""))
    head = b"\r\n".join((line, *lines, _EMPTY))
    return head if head.count(b"\n") == len(lines) + 2 else None


class Heads:
    """Finds out who answers a head, and remembers the last heads: a client's next request mostly begins alike."""

    def __init__(self, handler: Handler, base_path: BasePath = NO_BASE_PATH) -> None:
        self._handler = handler
        self._base_path = base_path
        self._recall = lru_cache(_REMEMBERED)(self._find)

    def find(self, head: bytes) -> tuple[RequestHead, Handler] | None:
        """A whole head, up to and with its empty line, and what answers it; None when it is not plain."""
        # Operators switch the request log on and off, which changes who answers.
        level = REQUESTS.level
        if len(head) > LONGEST_REMEMBERED:
            return self._find(head, level)
        named = _OF_A_MESSAGE.match(head)
        return self._recall(head, level) if named is None else self._find_for_message(head, level, *named.span(1))

    def _find_for_message(self, head: bytes, level: int, start: int, end: int) -> tuple[RequestHead, Handler] | None:
        """What :meth:`find` returns for a head with a message's id there: each id is met once, the rest of the head
        again and again."""
        found = self._recall(head[:start] + _ANY_ID + head[end:], level)
        if found is None:
            return None
        parsed, handler = found
        if not handler.takes_id:
            return self._find(head, level)
        id = head[start:end]
        method, path, query, headers, length, is_last, _ = parsed
        path = path[: -len(id)] + id
        checked = str.__new__(MessageId, id.decode("ascii"))  # the pattern has checked it
        return RequestHead(method, path, query, headers, length, is_last, checked), handler

    def _find(self, head: bytes, _: int) -> tuple[RequestHead, Handler] | None:
        parsed = parse_head(head)
        if parsed is None:
            return None
        path = self._base_path.strip(parsed.method, parsed.path)
        parsed = parsed._replace(path=path, headers=SharedHeaders(parsed.headers))
        try:
            return parsed, self._handler.for_head(parsed)
        except Exception:  # noqa: BLE001 - a bug of ours, which is met again, logged and answered where requests are
            return parsed, self._handler


class DirectSocket:
    """A connection's socket, which is read and written without Trio's stream around it: that costs half as much. Under
    TLS it passes everything to the stream. Only a task that is alone with the connection may read.

    Attributes:
        sends_now: whether :meth:`send_now` sends: not under TLS.
    """

    __slots__ = ("_is_readable", "_next_waits", "_now", "_plain", "_stream", "_waits", "sends_now")

    def __init__(self, stream: WatchedStream) -> None:
        self._stream = stream
        self._plain = stream.plain
        self.sends_now = stream.plain is not None
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self._waits = 0  # so many times, before the next look whether bytes are there after a checkpoint already
        self._next_waits = 1  # after the next look in vain
        self._is_readable = False  # it was waited for what comes next

    async def until_readable(self) -> None:
        """Wait until there are bytes to receive, or the end, for which the next :meth:`receive` does not wait then."""
        assert self._plain is not None, "a stream that sends now"
        if self._plain.fileno() < 0:
            return
        try:
            await trio.lowlevel.wait_readable(self._plain)
        except trio.ClosedResourceError:
            return
        self._is_readable = True

    def wake(self) -> None:
        """End :meth:`until_readable`."""
        if self._plain is not None and self._plain.fileno() >= 0:
            trio.lowlevel.notify_closing(self._plain)  # Trio has no other way to end a wait without a scope around it

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes; none at the end, or when the connection is broken or was closed here."""
        plain = self._plain
        try:
            if plain is None:
                return bytes(await self._stream.receive_some(max_bytes))
            while True:
                waits = self._waits
                if self._is_readable:
                    waits, self._is_readable = 1, False
                elif waits:
                    self._waits = waits - 1
                    file = plain.fileno()
                    if file < 0:
                        return b""
                    await trio.lowlevel.wait_readable(file)
                else:
                    await trio.lowlevel.checkpoint()
                try:
                    data = plain.recv(max_bytes)
                except BlockingIOError:
                    self._waits = self._next_waits
                    self._next_waits = min(2 * self._next_waits, _MOST_WAITS)
                    continue
                except OSError:
                    return b""
                if not waits:
                    self._next_waits = 1
                self._stream.last_used = self._now()
                return data
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Not a checkpoint where there is room for it.

        Raises:
            trio.BrokenResourceError: the connection is broken, or was closed here.
        """
        rest = self.send_now(data)
        if rest:
            await self._stream.send_slowly(rest)

    def send_now(self, data: bytes | memoryview) -> bytes | memoryview:
        """Send what the kernel has room for. Returns the rest; under TLS all of it.

        Raises:
            trio.BrokenResourceError: the connection is broken.
        """
        if self._plain is None:
            return data
        try:
            sent = self._plain.send(data)
        except BlockingIOError:
            return data
        except OSError as error:
            raise trio.BrokenResourceError from error
        if sent == len(data):
            self._stream.last_used = self._now()
        return data[sent:]


class FastHttp1:
    """Serves one connection for as long as its requests are plain.

    Args:
        hang_ups: reports clients that hang up while they wait.
    """

    def __init__(
        self, stream: WatchedStream, heads: Heads, hang_ups: HangUps, reader: Reader, memory: ClientMemory
    ) -> None:
        self._stream = stream
        self._socket = DirectSocket(stream)
        self._on_hang_up = partial(hang_ups.watch, stream.socket)
        self._heads = heads
        self._reader = reader
        self._memory = memory
        self._input = memory.reserve(Use.INPUT)
        self._patience = stream.patience
        self._has_served = False
        self._received = b""
        self._has_ended = False
        self._is_stopping = False
        self._idle = stream.idle = trio.CancelScope()

    def stop(self) -> None:
        """Serve no further request."""
        self._is_stopping = True
        self._stream.leave_if_idle()

    async def run(self) -> bytes | None:
        """Serve. Returns what is left for another server, from the beginning of a request on; None at the end."""
        try:
            with self._idle:
                return await self._serve_requests()
            is_begun = len(self._received) > self._after_empty_lines(0)
            if is_begun and not self._is_stopping:  # a head that did not come to its end in time
                await self._send_refusal(_refusal(refusal_of_head(408)))
                await self._end()
        except NoMemory as error:
            reply = refusal_of(error)
            assert isinstance(reply.body, bytes)
            start = _start(reply, is_our_last=True, is_their_last=False)
            await self._send_refusal(start + reply.body)
            await self._end()
        finally:
            self._memory.close()
        return None

    async def _serve_requests(self) -> bytes | None:
        """As :meth:`run`, until a head does not come to its end in time."""
        while (head := await self._next_head()) is not None:
            size = len(head)
            work = REQUEST + size * BYTE
            if not self._reader.pay_at_once(work):
                await self._reader.pay(work)
            found = self._heads.find(head)
            if found is None:
                if head.count(b"\n") <= MOST_LINES:
                    return head + self._received
                # The full path would parse each line first, and take twenty times as long.
                await self._send_refusal(_refusal(refusal_of_head(431)))
                break
            if size > UNCOUNTED_BYTES:
                self._input.cover(size + len(self._received) + _PARSED * size)
            self._has_served = True
            goes_on = await self._serve(*found)
            if self._memory.rooms:
                self._give_back()
            if not goes_on:
                break
            if self._received:  # requests without end must not keep other connections waiting
                await trio.lowlevel.checkpoint()
        else:
            return None
        await self._end()
        return None

    def _give_back(self) -> None:
        """Give back the memory of a request that is answered; what has come of the next ones is still counted."""
        self._memory.close(keep=self._input)
        self._input.shrink(len(self._received) if len(self._received) > UNCOUNTED_BYTES else 0)

    async def _end(self) -> None:
        """End the connection after its last answer, in a way that lets the client receive it."""
        if not self._has_ended:
            await self._stream.linger(self._reader)

    async def _next_head(self) -> bytes | None:
        """The next head, whole; None at the end of the connection. What came behind it stays in :attr:`_received`.

        Where another server has to look at it, because the head is not plain, is not whole when the client has ended,
        or has too many empty lines before it: all that was read."""
        stream = self._stream
        start = looked_at = 0  # where the head begins, and where its end is looked for
        # A request that was answered by its completion is followed by the wait for the next one.
        waits_for_first_byte = stream.idle_until is not None
        while True:
            received = self._received
            has_begun = False
            if received:
                if received.startswith(_EMPTY, start):
                    start = looked_at = self._after_empty_lines(start)
                    if start > MOST_EMPTY_LINES * len(_EMPTY):
                        break
                end = received.find(_END, looked_at)
                if end >= 0:
                    end += len(_END)
                    stream.idle_until = None  # from now on silence does not cancel the scope
                    self._received = received[end:]
                    return received[start:end]
                has_begun = len(received) > start
                if has_begun and received.startswith(_AMQP) and not self._has_served:
                    await self._send_refusal(_refusal(refusal_of_amqp()))
                    await self._end()
                    return None
            if self._is_stopping or (self._has_ended and not has_begun):
                return None
            if has_begun:
                if self._has_ended or self._cannot_be_plain(looked_at):
                    break
                looked_at = max(start, len(received) - 3)
            if stream.idle_until is None or (has_begun and waits_for_first_byte):
                waits_for_first_byte = self._has_served and not has_begun
                seconds = self._patience.keep_alive if waits_for_first_byte else self._patience.head
                stream.idle_until = stream.last_used + seconds
            self._take_in(await self._socket.receive(LARGEST_READ))
            if stream.is_left:  # a request came as the idle time ended: it was not begun, so nothing is lost
                await trio.lowlevel.checkpoint_if_cancelled()
        stream.idle_until = None  # what answers it has a limit of its own: its wait for a turn must not end it
        self._received = b""
        return received

    def _after_empty_lines(self, start: int) -> int:
        """Where the first line begins that is not empty."""
        found = EMPTY_LINES.match(self._received, start)
        return start if found is None else found.end()

    def _cannot_be_plain(self, looked_at: int) -> bool:
        too_long = len(self._received) > LARGEST_HEAD
        return too_long or AMBIGUOUS_LINE.search(self._received, looked_at) is not None

    def _take_in(self, data: bytes) -> None:
        """Note what was received; nothing at the end."""
        if not data:
            self._has_ended = True
        self._received += data
        if len(self._received) > UNCOUNTED_BYTES:
            self._input.cover(len(self._received))

    async def _serve(self, head: RequestHead, handler: Handler) -> bool:
        """Serve one request. False when the connection ends with it."""
        received, stream, length = self._received, self._stream, head.content_length or 0
        if length > len(received):
            return await self._serve_arriving(head, handler, _BodyEvents(self, length))
        self._received = received[length:]
        request = self._request(head, received[:length])
        begun = _BegunRequest(self, head)
        if begun.begin(handler, request):
            return begun.goes_on if begun.is_sent else await begun.end()
        stream.at_work += 1
        try:
            reply = await handler.handle(request)
        except Exception as error:
            logger.error("internal error", exc_info=error)
            reply = _bug(head)
        finally:
            stream.at_work -= 1
        return await self._send(head, reply)

    async def _serve_arriving(self, head: RequestHead, handler: Handler, incoming: _BodyEvents) -> bool:
        """Serve a request whose body is still arriving."""
        arriving = incoming.arriving
        try:
            reply = await handler.handle(self._request(head, arriving))
        except Exception as error:
            logger.error("internal error", exc_info=error)
            reply = _bug(head)
        finally:
            incoming.work.end()
        if arriving.is_complete:
            return await self._send(head, reply)
        if arriving.is_gone:
            await without_body(reply)
            await self._send_refusal(_refusal(refusal_of_body()))
            return False
        async with trio.open_nursery() as nursery:  # a client may listen only when it has said everything
            has_ended = trio.Event()
            nursery.start_soon(incoming.discard, has_ended)
            goes_on = await self._send(head, reply)
            with trio.move_on_after(DISCARD_SECONDS):
                await has_ended.wait()
            nursery.cancel_scope.cancel()
        return goes_on and arriving.is_complete

    def _request(self, head: RequestHead, body: bytes | AsyncIterable[bytes]) -> Request:
        method, path, query, headers, length, _, id = head
        stream, memory, hang_up = self._stream, self._memory, self._on_hang_up
        return Request(method, path, query, headers, body, length, id, hang_up, stream.address, stream.scheme, memory)

    async def _send(self, head: RequestHead, reply: Reply) -> bool:
        """Send the answer. False when the connection ends with it."""
        body, is_our_last = reply.body, reply.is_last or self._is_stopping
        start = _start(reply, is_our_last=is_our_last, is_their_last=head.is_last)
        try:
            if not isinstance(body, bytes):
                is_whole = await self._send_pieces(start, body, is_chunked=_is_chunked(reply))
            elif len(body) > PIECE_BYTES:
                await self._send_large(start, body)
                is_whole = True
            else:
                rest = self._socket.send_now(start + body)
                is_whole = not rest or await self._send_rest(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return is_whole and not is_our_last and not head.is_last

    async def _send_large(self, start: bytes, body: bytes) -> None:
        """Send bytes that many answers share: they must not be copied for each."""
        pieces = memoryview(body)
        await self._socket.send(start)
        for at in range(0, len(body), PIECE_BYTES):
            await self._socket.send(pieces[at : at + PIECE_BYTES])

    async def _send_rest(self, rest: bytes | memoryview) -> bool:
        """Send what the kernel has no room for now. False if there is no memory for it."""
        try:
            with self._memory.reserve(Use.ANSWER, len(rest)):
                await self._socket.send(rest)
        except MQError:
            return False
        return True

    async def _send_pieces(self, start: bytes, body: OutgoingBody, *, is_chunked: bool) -> bool:
        """Send a body piece by piece. False when it was broken off."""
        chunks = aiter(body)
        try:
            await self._socket.send(start)
            async for chunk in chunks:
                await self._socket.send(b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk)
            if is_chunked:
                await self._socket.send(b"0\r\n\r\n")
        except (CorruptMessage, StorageError) as error:
            logger.error("aborted an HTTP response: %s", error)
            return False
        finally:
            with trio.CancelScope(shield=True):
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()
                await body.aclose()
        return True

    async def _send_refusal(self, data: bytes) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(DISCARD_SECONDS):
            await self._socket.send(data)


def begin_request(handler: Handler, request: Request, answer: Answer) -> Reply | Abandon | None:
    """As :meth:`mq.web.exchange.Handler.begin`, but with a reply to each error."""
    try:
        return handler.begin(request, answer)
    except MQError as error:
        return refusal_of(error)
    except Exception as error:
        logger.error("internal error", exc_info=error)
        return BUG


def made_reply(make: Callable[..., Reply | Later], *values: Any) -> Reply | Later:
    """The reply that a completion makes, or that to its error: it raises nothing, as a batch answers others, too."""
    try:
        return make(*values)
    except MQError as error:
        return refusal_of(error)
    except Exception as error:
        logger.error("internal error", exc_info=error)
        return BUG


class _BegunRequest:
    """A request that was begun in the step that read it, up to its answer. That goes straight to the socket, from the
    same step or from a completion, while the connection's task waits for the next request.

    Attributes:
        goes_on: whether the connection stays open after the answer.
        is_sent: whether all of the answer is sent. If not, the connection's task must await :meth:`end`.
    """

    __slots__ = (
        "_abandon",
        "_connection",
        "_head",
        "_is_over",
        "_is_reading",
        "_parked",
        "_reply",
        "_rest",
        "goes_on",
        "is_sent",
    )

    def __init__(self, connection: FastHttp1, head: RequestHead) -> None:
        self._connection = connection
        self._head = head
        self._abandon: Abandon | None = None  # while a completion is to answer
        self._reply: Reply | Later | None = None  # the answer, while the task has to send it
        self._rest: bytes | memoryview = b""  # of an answer for which the kernel had no room
        self.goes_on = True
        self.is_sent = False
        self._is_over = False  # the answer was given, or the connection has ended
        self._is_reading = False  # the task waits for the next request
        self._parked: trio.lowlevel.Task | None = None  # the task, while it waits for the answer

    def begin(self, handler: Handler, request: Request) -> bool:
        """Begin it. False where that is not possible."""
        begun = begin_request(handler, request, self._answer)
        if self._is_over:  # it was answered in this step, and is not again, even if the handler failed afterwards
            return True
        if begun is None:
            return False
        if isinstance(begun, Reply):
            self._end_with(begun)
        else:
            self._abandon = begun
        return True

    async def end(self) -> bool:
        """Wait for the answer, and send it unless its completion does. False when the connection ends with it."""
        if self._abandon is not None:
            await self._answered()
        connection, reply = self._connection, self._reply
        if reply is not None:
            return await connection._send(self._head, reply if isinstance(reply, Reply) else await self._waited(reply))
        if self._rest:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                return await connection._send_rest(self._rest) and self.goes_on
            return False
        return self.goes_on

    async def _answered(self) -> None:
        connection = self._connection
        stream = connection._stream
        stream.at_work += 1
        try:
            # What has come already is the next request: until the answer to this one it has to wait.
            if connection._socket.sends_now and not self._head.is_last and not connection._received:
                self._is_reading = True
                await connection._socket.until_readable()
                self._is_reading = False
            if not self._is_over:
                self._parked = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._leave)
        except trio.Cancelled:
            if self._reply is not None and not isinstance(self._reply, Reply):
                with trio.CancelScope(shield=True):
                    await without_body(await self._waited(self._reply))
            raise
        finally:
            if not self._is_over:
                self._is_over = True
                stream.at_work -= 1
                if self._abandon is not None:
                    self._abandon()

    def _leave(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _waited(self, later: Later) -> Reply:
        try:
            return await later()
        except MQError as error:
            return refusal_of(error)
        except Exception as error:
            logger.error("internal error", exc_info=error)
            return _bug(self._head)

    def _answer(self, make: Callable[..., Reply | Later], *values: Any) -> None:
        """As :data:`mq.web.exchange.Answer`. It raises nothing: a batch has answers to others, too."""
        if self._is_over:
            return
        self._end_with(made_reply(make, *values))
        if self._abandon is None:  # in the step that began the request
            return
        connection = self._connection
        stream = connection._stream
        stream.at_work -= 1
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None
        elif self._is_reading and self.is_sent and self.goes_on:
            stream.idle_until = stream.last_used + connection._patience.keep_alive
            if connection._memory.rooms:
                connection._give_back()
        elif self._is_reading:
            connection._socket.wake()

    def _end_with(self, reply: Reply | Later) -> None:
        """Send the answer now, as far as that goes; the task sends the rest."""
        self._is_over = True
        connection = self._connection
        socket = connection._socket
        if not socket.sends_now or not isinstance(reply, Reply) or not isinstance(reply.body, bytes):
            self._reply = reply
            return
        is_our_last, is_their_last = reply.is_last or connection._is_stopping, self._head.is_last
        self.goes_on = not (is_our_last or is_their_last)
        start = _start(reply, is_our_last=is_our_last, is_their_last=is_their_last)
        try:
            self._rest = socket.send_now(start + reply.body)
            self.is_sent = not self._rest
        except trio.BrokenResourceError:
            self.goes_on, self.is_sent = False, True


class _BodyEvents:
    """The events of ASGI for a body that is still arriving."""

    def __init__(self, lane: FastHttp1, length: int) -> None:
        self._lane = lane
        self._left = length
        self.arriving = ArrivingBody(self._receive)
        self.work = lane._stream.work()

    async def _receive(self) -> ASGIReceiveEvent:
        """The next piece, or the event that the client is gone."""
        lane = self._lane
        if not lane._received:
            lane._take_in(await lane._socket.receive(LARGEST_READ))
        chunk = lane._received[: self._left]
        if not chunk:
            return HTTPDisconnectEvent(type="http.disconnect")
        lane._received = lane._received[len(chunk) :]
        self._left -= len(chunk)
        if not self._left:
            self.work.begin()
        return HTTPRequestEvent(type="http.request", body=chunk, more_body=self._left > 0)

    async def discard(self, has_ended: trio.Event) -> None:
        """Take and drop what is left. Then, or when no more will come, set the event."""
        with suppress(BodyIncomplete, BodyTooSlow, NoMemory):
            async for _ in self.arriving:
                pass
        has_ended.set()


def _bug(head: RequestHead) -> Reply:
    """The answer to a request that met an unforeseen error."""
    return BUG._replace(body=b"") if head.method == "HEAD" else BUG


def _is_chunked(reply: Reply) -> bool:
    """Whether an answer says no length, and is not known to have all of its body."""
    if (isinstance(reply.body, bytes) and reply.body) or NO_LENGTH in reply.headers or reply.status == _NO_CONTENT:
        return False
    return all(name != "content-length" for name, _ in reply.headers)


def _start(reply: Reply, *, is_our_last: bool, is_their_last: bool) -> bytes:
    """An answer up to its body, as h11 writes it."""
    lines = [f"HTTP/1.1 {reply.status} ", *map(": ".join, reply.headers)]
    if is_our_last and not is_their_last:
        lines.append("connection: close")
    lines.append(_date(int(time())))
    if _is_chunked(reply):
        lines.append("Transfer-Encoding: chunked")
    if is_their_last:
        lines.append("Connection: close")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"date: {formatdate(second, usegmt=True)}"


def _refusal(reply: Reply) -> bytes:
    assert isinstance(reply.body, bytes)
    return "\r\n".join((f"HTTP/1.1 {reply.status} ", *map(": ".join, reply.headers), "", "")).encode() + reply.body
