"""A connection to one server: commands in, replies out, many at once. It is made when it is needed, and made anew."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from mq.errors import StorageFull, StorageUnusable
from mq_memcached import protocol
from mq_memcached.protocol import Command, Malformed, Replies, Reply, Values
from mq_memcached.server import Address, Limits, limits_of

logger = logging.getLogger("mq.memcached")

PATIENCE_SECONDS: Final = 5.0
"""How long a server may be silent."""
_SENT_AT_ONCE: Final = 60_000
"""Bytes. Less than the system buffers, so that a server which waits for us to read has read all that we wrote."""
_RECEIVED_AT_ONCE: Final = 256 * 1024


class Lost(StorageFull):
    """The server cannot be reached, or did not answer. It passes; what was sent may have been done or not."""


class Refused(StorageFull):
    """The server answered with an error of its own, such as having no memory left."""


class Link:
    """Talks to the server at `address`, in one exchange at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stream: trio.SocketStream | None = None
        self._replies = Replies()
        self._turn = trio.Lock()
        self._process = b""
        self.limits = Limits(0, 0)

    async def ask(self, commands: Iterable[Command]) -> list[Reply]:
        """Send them; what the server replied to each, in order. Not cancelled half-way: it ends by itself.

        Raises:
            Lost: the connection broke; some of them may have been done.
            Refused: the server does not serve (any more).
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        replies: list[Reply] = []
        wanted = list(commands)
        if not wanted:
            return replies
        async with self._turn:
            with trio.CancelScope(shield=True):
                if self._stream is None:
                    await self._connect()
                replies = await self._exchange(wanted)
        return replies

    async def values(self, keys: Iterable[bytes]) -> Values:
        """The values of `keys`, where there are any. Asked once more when a connection turns out to be an old one.

        Raises:
            As :meth:`ask`.
        """
        commands, is_connected = list(protocol.get(keys)), self._stream is not None
        try:
            replies = await self.ask(commands)
        except Lost:
            if not is_connected:
                raise
            replies = await self.ask(commands)
        found: Values = {}
        for reply in replies:
            found.update(self.collected(reply))
        return found

    def collected(self, reply: Reply) -> Values:
        """A reply that must be values.

        Raises:
            Refused: it is an error.
        """
        if isinstance(reply, bytes):
            raise Refused(f"the memcached at {self._address} says: {reply.decode(errors='replace')}")
        return reply

    async def aclose(self) -> None:
        """Let go of the connection."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _connect(self) -> None:
        async with self._translated():
            self._stream = await trio.open_tcp_stream(self._address.host, self._address.port)
            self._replies = Replies()
        try:
            told, now = map(self.collected, await self._exchange([protocol.stats(b" settings"), protocol.stats()]))
            self.limits = limits_of({name.decode(): item.value.decode() for name, item in told.items()}, self._address)
        except StorageUnusable as error:
            await self.aclose()
            raise Refused(str(error)) from error
        process = now[b"pid"].value if b"pid" in now else b""
        if self._process not in (b"", process):
            logger.error("the memcached at %s was started anew: all messages and queues on it are lost", self._address)
        self._process = process

    async def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        replies: list[Reply] = []
        while len(replies) < len(commands):
            data, end = bytearray(), len(replies)
            while end < len(commands) and len(data) < _SENT_AT_ONCE:
                data += commands[end].data
                end += 1
            async with self._translated():
                assert self._stream is not None, "asked without a connection"
                await self._stream.send_all(data)
                replies += [await self._receive(command) for command in commands[len(replies) : end]]
        return replies

    async def _receive(self, command: Command) -> Reply:
        assert self._stream is not None, "asked without a connection"
        while (reply := self._replies.next(command.shape)) is None:
            data = await self._stream.receive_some(_RECEIVED_AT_ONCE)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._replies.feed(data)
        return reply

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                yield
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, Malformed) as error:
            await self.aclose()
            why = str(error) or "it does not answer"
            raise Lost(f"no connection to the memcached at {self._address} ({why}). Try again later") from error
