"""Accepting: as many connections in a pass of the event loop as readers have room for."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from mq.doors.listeners import PromptListener, listen
from mq.doors.readers import CONNECTION, SHARE


async def accept(listener: PromptListener) -> None:
    """Let somebody in, who may speak."""
    stream = await listener.accept()
    stream.socket.close()


async def test_waiting_connections_are_accepted_together_as_far_as_a_pass_has_room() -> None:
    [listening] = await listen("127.0.0.1", 0)
    together = SHARE // CONNECTION
    with ExitStack() as clients:
        for _ in range(2 * together):
            clients.enter_context(socket.create_connection(("127.0.0.1", listening.socket.getsockname()[1])))
        async with PromptListener(listening) as listener:
            await trio.lowlevel.checkpoint()  # a new pass of the event loop
            for _ in range(together):
                with assert_no_checkpoints():
                    await accept(listener)
            with assert_checkpoints():
                await accept(listener)


async def test_who_comes_is_waited_for_and_heard() -> None:
    [listening] = await listen("127.0.0.1", 0)
    async with PromptListener(listening) as listener, trio.open_nursery() as nursery:

        async def greet() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", listening.socket.getsockname()[1]) as client:
                await client.send_all(b"hello")

        for _ in range(3):
            nursery.start_soon(greet)
            async with await listener.accept() as stream:
                assert b"".join([data async for data in stream]) == b"hello"


async def test_nobody_is_let_in_once_it_is_closed() -> None:
    [listening] = await listen("127.0.0.1", 0)
    listener = PromptListener(listening)
    await listener.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
