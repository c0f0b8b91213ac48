"""A wire to a member that loses replies, or holds requests back and lets them through much later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

_AT_ONCE: Final = 65_536

Choice = Callable[[bytes], bool]
"""Given a request, with its head: whether it is one of those."""


class Wire:
    """Passes requests to a member and replies back, over one connection for each of the client's.

    Attributes:
        port: where the client connects, on 127.0.0.1.
        loses: the reply to such a request is lost: the member has done it, and the connection ends.
        held: those that are, until :meth:`release`.

    Args:
        member_port: of the member, on 127.0.0.1.
    """

    def __init__(self, member_port: int) -> None:
        self._member_port = member_port
        self.port = 0
        self.loses: Choice = never
        self.holds: Choice = never
        self.held: list[bytes] = []
        self.lost = 0

    @property
    def endpoint(self) -> str:
        """For clients."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled."""
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._pass, [listener])

    async def release(self) -> list[bytes]:
        """Let the member have what was held back; its replies, which no client waits for any more."""
        held, self.held = self.held, []
        replies = []
        for request in held:
            async with await trio.open_tcp_stream("127.0.0.1", self._member_port) as member:
                await member.send_all(request)
                replies.append(bytes(await member.receive_some(_AT_ONCE)))
        return replies

    async def _pass(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", self._member_port) as member:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass_requests, client, member)
                    await _copy(member, client)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # one of the two has hung up

    async def _pass_requests(self, client: trio.SocketStream, member: trio.SocketStream) -> None:
        while request := await _request(client):
            if self.holds(request):
                self.held.append(request)
                await client.receive_some(_AT_ONCE)  # until the client has had enough
                break
            if self.loses(request):
                async with await trio.open_tcp_stream("127.0.0.1", self._member_port) as other:
                    await other.send_all(request)
                    await other.receive_some(_AT_ONCE)
                self.lost += 1
                break
            await member.send_all(request)
        await member.aclose()


@asynccontextmanager
async def wire_to(member_port: int) -> AsyncIterator[Wire]:
    """A :class:`Wire` for the length of the block."""
    wire = Wire(member_port)
    async with trio.open_nursery() as nursery:
        await nursery.start(wire.serve)
        yield wire
        nursery.cancel_scope.cancel()


def never(request: bytes) -> bool:
    """No request is one of those."""
    return False


def is_txn(request: bytes) -> bool:
    """A transaction that changes something."""
    return request.startswith(b"POST /v3/kv/txn ") and b"request_put" in request


def is_look(request: bytes) -> bool:
    """A transaction that changes nothing."""
    return request.startswith(b"POST /v3/kv/txn ") and b"request_put" not in request


class Times:
    """The first so many of those.

    Args:
        count: how many.
        choice: of those.
    """

    def __init__(self, count: int, choice: Choice = is_txn) -> None:
        self.left = count
        self._choice = choice

    def __call__(self, request: bytes) -> bool:
        """Whether it is one of those, and there were not so many yet."""
        if self.left <= 0 or not self._choice(request):
            return False
        self.left -= 1
        return True


async def _request(client: trio.SocketStream) -> bytes:
    """One request as it came; empty when the client has hung up."""
    data = bytearray()
    while (length := _length(data)) is None or len(data) < length:
        more = await client.receive_some(_AT_ONCE)
        if not more:
            return b""
        data += more
    return bytes(data)


def _length(data: bytearray) -> int | None:
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end:
        return None
    _, _, rest = head.lower().partition(b"content-length:")
    return len(head) + 4 + int(rest.split(b"\r\n")[0] or 0)


async def _copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    while data := await source.receive_some(_AT_ONCE):
        await target.send_all(data)
