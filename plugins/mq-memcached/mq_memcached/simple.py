"""SimpleMessageQueue: a queue on a memcached server, for programs that want no broker. Synchronous.

    NAME:head         where the next message goes; what is there already belongs to a put that is not finished
    NAME:tail         where the next message comes from
    NAME:NUMBER       a message
    NAME:uniq:SHA256  the number of the message with that body, in a unique queue
    NAME:lock         one put or get at a time
    NAME:roo0 to 3    room for the lock and the tail on a server that has no other, so that a full queue can be emptied

A put stores its message first and then moves the head over it, so that an empty slot is never before the head. One that
dies in between leaves a whole message at the head, and the next put lets it in.

A lock expires, and its holder may only have slept. So nothing rests on it: a slot is *added*, a message is taken and
the head and the tail are moved by comparing, and of many that try one wins. The text's holder deletes the lock if less
than five seconds passed, by a look at the clock and then a delete, with time to lose it in between; here the lock holds
a token, and is ended by comparing, too.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError, MemcacheServerError

from mq.errors import BodyTooLarge, StorageError, StorageFull
from mq.message import QueueName
from mq_memcached.protocol import Malformed, parse_statistics
from mq_memcached.server import Limits, limits_of, parse_address

LOCK_SECONDS: Final = 5
"""How long a lock lasts whose holder has died."""
_LONGEST_NAP_SECONDS: Final = 0.02
_SOCKET_SECONDS: Final = 5.0
_GONE: Final = -1
_TEXT, _BYTES = b"t", b"b"
_TOKEN_LENGTH: Final = 16
_SMALL: Final = 24
"""Bytes. Head, tail, lock and spare room are equally long, keys included: what one gives free another can have."""
_ROOMS: Final = ("roo0", "roo1", "roo2", "roo3")


class QueueLocked(StorageError):
    """Others held the lock all the time. It does not mean that the queue is empty."""


class _Item(NamedTuple):
    value: bytes
    version: bytes


class SimpleMessageQueue:
    """A queue of strings or bytes. Use one object in each thread.

    A message that was put is not lost while its server runs. It is got **at most once**: a client that dies after it
    got one takes it along. A program that needs more uses the broker, whose messages come back.

    Args:
        name: the queue's name, as mq's are.
        servers: ``HOST:PORT`` of one memcached, or of several: then the name says which one has this queue.
        unique: keep a message once, as a set does. All who use the queue say the same.
        lock_seconds: how long a lock lasts whose holder has died; whole seconds.
        patience_seconds: how long to wait for the lock.

    Raises:
        InvalidName: that is not a queue's name.
        StorageUnusable: that is not a server's address; from the first use on, the server is not fit for a queue.
        StorageFull: from any method: no room, or no server. It may pass; what was asked for may have been done.
        QueueLocked: from any method that takes the lock.
    """

    def __init__(
        self,
        name: str,
        servers: str | Sequence[str] = ("127.0.0.1:11211",),
        *,
        unique: bool = False,
        lock_seconds: int = LOCK_SECONDS,
        patience_seconds: float = 2.0 * LOCK_SECONDS,
    ) -> None:
        self.name = QueueName(name)
        self.unique = unique
        servers = [servers] if isinstance(servers, str) else list(servers)
        self._address = parse_address(servers[zlib.crc32(name.encode()) % len(servers)])
        self._client = Client(
            (self._address.host, self._address.port),
            connect_timeout=_SOCKET_SECONDS,
            timeout=_SOCKET_SECONDS,
            no_delay=True,
            default_noreply=False,
        )
        self._lock_seconds = lock_seconds
        self._patience_seconds = patience_seconds
        self._limits: Limits | None = None
        self._locked = 0
        self._has_room = False

    def put(self, message: str | bytes) -> bool:
        """Put a message into the queue. False when the queue is unique and has it already.

        Raises:
            BodyTooLarge: it does not fit one item of the server.
        """
        value = _encode(message)
        with self._translated(), self.lock():
            most = self._known_limits().value
            if len(value) > most:
                raise BodyTooLarge(f"the message exceeds the server's limit of {most} bytes")
            while True:
                at = self._number("head")
                number = int(at.value)
                if self.unique and not self._claim(_body(value), number):
                    return False
                if not self._client.add(self._slot(number), value):
                    self._advance("head", at)  # a put that died left a whole message there: let it in
                elif self._advance("head", at) or self._is_in_line(number, value):
                    return True

    def get(self) -> str | bytes | None:
        """Take a message out of the queue; None when it is empty. In no promised order, and at most once."""
        with self._translated(), self._locking(with_room=True):
            while True:
                at = self._number("tail")
                if int(at.value) >= int(self._number("head").value):
                    return None
                value = self._take_out(int(at.value))
                with suppress(MemcacheServerError):  # no room for a tail: the next one goes over what is gone
                    self._with_room(partial(self._advance, "tail", at))
                if value is not None:
                    return _decode(value)

    def size(self) -> int:
        """How many messages there are; a few less where clients died while they got one."""
        with self._translated():
            return max(0, int(self._number("head").value) - int(self._number("tail").value))

    def contains(self, message: str | bytes) -> bool:
        """Whether a unique queue has that message. One that is still being put is not there yet.

        Raises:
            ValueError: the queue is not unique.
        """
        if not self.unique:
            raise ValueError(
                f"queue {self.name} does not detect duplicates, so it cannot check whether it contains a "
                "given message. Open it with unique=True"
            )
        with self._translated():
            number = self._listed(_body(_encode(message)))
            return number is not None and int(self._number("tail").value) <= number < int(self._number("head").value)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the queue's lock for the length of the block; put and get inside the block share it.

        It lasts `lock_seconds`, whatever happens. A holder that takes longer than that is no longer alone, and loses
        nothing.
        """
        with self._locking(with_room=False):
            yield

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def __enter__(self) -> SimpleMessageQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the lock

    @contextmanager
    def _locking(self, *, with_room: bool) -> Iterator[None]:
        if self._locked:
            yield
            return
        token = secrets.token_hex(_SMALL // 2).encode()
        with self._translated():
            self._acquire(token, with_room=with_room)
        self._locked += 1
        try:
            yield
        finally:
            self._locked -= 1
            with suppress(MemcacheError, OSError):  # what was asked for is done; the lock expires
                self._release(token)
                self._keep_room()

    def _acquire(self, token: bytes, *, with_room: bool) -> None:
        self._known_limits()

        def add() -> bool:
            return bool(self._client.add(self._key("lock"), token, expire=self._lock_seconds))

        ends = time.monotonic() + self._patience_seconds
        while not (self._with_room(add) if with_room else add()):
            if time.monotonic() > ends:
                raise QueueLocked(
                    f"could not lock queue {self.name} within {self._patience_seconds} s. Try again later"
                )
            time.sleep(random.uniform(0, _LONGEST_NAP_SECONDS))

    def _release(self, token: bytes) -> None:
        """Only if it is still ours: one that expired meanwhile is another client's."""
        item = self._item(self._key("lock"))
        if item is not None and item.value == token:
            with suppress(MemcacheServerError):  # no room even for that: then it expires
                self._end(self._key("lock"), item)

    # -- messages that are kept once

    def _claim(self, body: bytes, number: int) -> bool:
        """Note that the message with that body will have that number. False when there is one already."""
        key = self._uniq(body)
        while True:
            item = self._item(key)
            if item is None:
                if self._client.add(key, b"%d" % number):
                    return True
                continue
            listed = self._listed(body)
            if listed is not None and listed >= int(self._number("tail").value):
                if listed == number:  # a put that died left it at the head: let it in
                    self._advance("head", self._number("head"))
                return False
            if self._client.cas(key, b"%d" % number, item.version):
                return True

    def _listed(self, body: bytes) -> int | None:
        """The number of the message that has that body; None when it is not there, or its number is an old one."""
        item = self._item(self._uniq(body))
        if item is None:
            return None
        slot = self._item(self._slot(int(item.value)))
        return int(item.value) if slot is not None and _body(slot.value) == body else None

    def _forget(self, body: bytes, number: int) -> None:
        item = self._item(self._uniq(body))
        if item is not None and int(item.value) == number:
            self._take(self._uniq(body), item)

    # -- head, tail and slots

    def _take_out(self, number: int) -> bytes | None:
        """The message in that slot, if it is there and no other client gets it."""
        item = self._item(self._slot(number))
        if item is None or not self._take(self._slot(number), item):
            return None
        if self.unique:
            self._forget(_body(item.value), number)
        return item.value

    def _is_in_line(self, number: int, value: bytes) -> bool:
        """Our lock has expired and others have moved the head: is our message before it, or was its slot an old one?"""
        item = self._item(self._slot(number))
        if item is None or item.value != value or int(self._number("tail").value) <= number:
            return True  # a client got it, or one will
        return not self._take(self._slot(number), item)

    def _number(self, end: str) -> _Item:
        while True:
            item = self._item(self._key(end))
            if item is not None:
                return item
            self._client.add(self._key(end), _padded(0))

    def _advance(self, end: str, at: _Item) -> bool:
        return bool(self._client.cas(self._key(end), _padded(int(at.value) + 1), at.version))

    def _take(self, key: str, item: _Item) -> bool:
        """Take away exactly this value. Where the server has no room even to end it, plainly."""
        try:
            return self._end(key, item)
        except MemcacheServerError:
            return bool(self._client.delete(key))

    def _end(self, key: str, item: _Item) -> bool:
        """Take away exactly this value: swap it for one that has expired. The look after that gives its room back."""
        ended = bool(self._client.cas(key, b" " * _SMALL, item.version, expire=_GONE))
        self._client.get(key)
        return ended

    def _with_room(self, action: Callable[[], bool]) -> bool:
        """Do it; where the server has no room, with what was kept for that."""
        try:
            return action()
        except MemcacheServerError:
            self._has_room = False
            for room in _ROOMS:
                self._client.delete(self._key(room))
            return action()

    def _keep_room(self) -> None:
        """Take back what was lent. What cannot be had now is tried again, the next time."""
        if not self._has_room:
            with suppress(MemcacheServerError):
                for room in _ROOMS:
                    self._client.add(self._key(room), b" " * _SMALL)
                self._has_room = True

    def _item(self, key: str) -> _Item | None:
        value, version = self._client.gets(key)
        return _Item(value, version) if value is not None else None

    def _key(self, what: str) -> str:
        return f"{self._address.prefix}{self.name}:{what}"

    def _slot(self, number: int) -> str:
        return self._key(str(number))

    def _uniq(self, body: bytes) -> str:
        return self._key(f"uniq:{hashlib.sha256(body).hexdigest()}")

    # -- the server

    def _known_limits(self) -> Limits:
        if self._limits is None:
            answer = self._client.raw_command(b"stats settings", b"END\r\n")
            self._limits = limits_of(parse_statistics(answer), self._address)
        return self._limits

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (MemcacheError, OSError, Malformed) as error:
            self._limits = None  # it may be another server by then
            raise StorageFull(f"the memcached server at {self._address} failed: {error}. Try again later") from error


def _padded(number: int) -> bytes:
    return b"%*d" % (_SMALL, number)


def _encode(message: str | bytes) -> bytes:
    kind, body = (_TEXT, message.encode()) if isinstance(message, str) else (_BYTES, bytes(message))
    return kind + secrets.token_hex(_TOKEN_LENGTH // 2).encode() + body


def _decode(value: bytes) -> str | bytes:
    body = value[1 + _TOKEN_LENGTH :]
    return body.decode() if value.startswith(_TEXT) else body


def _body(value: bytes) -> bytes:
    """What tells a message from others: its kind and its bytes, without the token."""
    return value[:1] + value[1 + _TOKEN_LENGTH :]
