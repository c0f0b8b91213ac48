"""Accepting: many connections in a turn of the event loop, and then it is the others' turn."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints

from mq.doors.listeners import MOST_ACCEPTED, PromptListener, listen


async def accept(listener: PromptListener) -> None:
    """Let somebody in, who may speak."""
    stream = await listener.accept()
    stream.socket.close()


async def test_those_who_wait_are_let_in_together_and_others_get_their_turns() -> None:
    [listening] = await listen("127.0.0.1", 0)
    with ExitStack() as clients:
        for _ in range(2 * MOST_ACCEPTED):
            clients.enter_context(socket.create_connection(("127.0.0.1", listening.socket.getsockname()[1])))
        async with PromptListener(listening) as listener:
            for _ in range(2):
                with assert_no_checkpoints():
                    for _ in range(MOST_ACCEPTED - 1):
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
