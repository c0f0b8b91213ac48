"""Programs that publish without confirms and close, or vanish: what was read of them is there.

``pytest tests/amqp/clients/test_closing.py --closes=100`` takes some minutes.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pika
import pytest
import trio
from pamqp import commands

from tests.amqp.clients.servers import MqServer, Server
from tests.amqp.dialling import Client
from tests.amqp.talking import content, words
from tests.e2e.daemon import Daemon, DaemonFailed

pytestmark = pytest.mark.slow

MESSAGES: Final = 20_000
SIZE: Final = 1024
"""Bytes of a message."""
FEW: Final = 2_000
"""Where there is one round only, each four times as long: 8 MB are more than the kernel takes at once, and a busy
machine stores so few before a daemon that stops gives up."""
WAIT_SECONDS: Final = 100
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
GOODBYE: Final = commands.Connection.Close(200, "bye", 0, 0)


def connect(server: Server) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))


def ready(server: Server, queue: str) -> int:
    """How many messages are ready, for a connection that was made just now."""
    with connect(server) as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


def ready_after_goodbye(server: Server, queue: str, wanted: int) -> int:
    """Return how many messages are ready, after a moment: close-ok does not wait long for messages without confirms."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := ready(server, queue)) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def look_at_all(server: Server, queue: str) -> list[int]:
    """The numbers of all messages that are there."""
    with connect(server) as connection:
        channel = connection.channel()
        number = channel.queue_declare(queue, passive=True).method.message_count
        return [int(body) for _, _, body in itertools.islice(channel.consume(queue), number)]


def publishes(queue: str, numbers: range, size: int = SIZE) -> bytes:
    """What a fast client sends: all of it is in the kernel's hands before the first message is stored."""
    method = words(commands.Basic.Publish(routing_key=queue))
    given = commands.Basic.Properties(delivery_mode=2)
    return b"".join(method + content(1, b"%0*d" % (size, number), given) for number in numbers)


async def dial(server: Server) -> Client:
    return await Client(await trio.open_tcp_stream("127.0.0.1", server.port)).open()


async def test_a_goodbye_loses_nothing(server: Server, queue: str, closes: int) -> None:
    """Each message is looked at in the first round of ten; in the others they are counted."""
    count = FEW if closes == 1 else MESSAGES
    data = publishes(queue, range(count), SIZE * 4 if count == FEW else SIZE)
    for number in range(closes):
        client = await dial(server)
        await client.declare(queue, durable=True)
        await client.declare(f"{queue}-own", exclusive=True)
        begin = time.monotonic()
        await client.stream.send_all(data)
        assert (await client.call(GOODBYE, 0)).name == "Connection.CloseOk"
        await client.stream.aclose()
        seconds = time.monotonic() - begin
        again = await dial(server)
        await again.declare(f"{queue}-own", exclusive=True)  # nobody's any more
        missing = count - await trio.to_thread.run_sync(ready_after_goodbye, server, queue, count)
        sys.stdout.write(f"round {number + 1} of {closes}: {seconds:.1f} s, missing {missing}\n")
        assert missing == 0
        if number % 10 == 0:
            assert await trio.to_thread.run_sync(look_at_all, server, queue) == list(range(count))
        await again.call(commands.Queue.Delete(queue=queue))
        await again.close()


def test_a_client_that_vanishes_loses_nothing(server: Server, queue: str) -> None:
    """Its socket is closed by the kernel, as when a program ends without a word."""
    program = """
import os, pika, sys
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
channel = connection.channel()
channel.queue_declare(sys.argv[2], durable=True)
for number in range(2000):
    channel.basic_publish("", sys.argv[2], b"%d" % number, pika.BasicProperties(delivery_mode=2))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program, str(server.port), queue], check=True, timeout=WAIT_SECONDS)
    deadline = time.monotonic() + WAIT_SECONDS
    while ready(server, queue) < 2000:
        assert time.monotonic() < deadline, f"{2000 - ready(server, queue)} are missing"
        time.sleep(0.2)
    assert look_at_all(server, queue) == list(range(2000))


async def test_who_sends_after_a_goodbye_still_hears_the_answer(mq_server: Server, queue: str) -> None:
    """A socket that is closed while there is something to read is reset, and what was said last is lost with it."""
    client = await dial(mq_server)
    await client.declare(queue, durable=True)
    data = publishes(queue, range(2000))
    await client.stream.send_all(data + words(GOODBYE, 0) + data)
    assert (await client.hear()).name == "Connection.CloseOk"
    assert await client.hear() is None
    await client.stream.aclose()
    assert await trio.to_thread.run_sync(ready_after_goodbye, mq_server, queue, 2000) == 2000
    assert await trio.to_thread.run_sync(look_at_all, mq_server, queue) == list(range(2000))


async def test_a_daemon_that_stops_stores_what_it_has_read(tmp_path: Path) -> None:
    with MqServer(tmp_path) as server:
        client = await dial(server)
        await client.declare("q", durable=True)
        sent = trio.Event()

        async def publish() -> None:
            with suppress(trio.BrokenResourceError):
                await client.stream.send_all(publishes("q", range(FEW), SIZE * 4))
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await trio.sleep(0.5)  # the real daemon reads meanwhile
            await trio.to_thread.run_sync(server.stop)  # fails where it does not end well
        server.start()
        found = await trio.to_thread.run_sync(look_at_all, server, "q")
        assert 0 < len(found) <= FEW
        assert found == list(range(len(found)))
        log = server.daemon.log.read_text()
        assert "not stored" not in log
        assert "were stored" not in log
        await client.stream.aclose()


class Hanging(Daemon):
    """A daemon whose disk stops answering once a file is there."""

    def _program(self) -> list[str]:
        return [sys.executable, "-c", HANGING, str(self.root.parent / "hang")]


HANGING: Final = """
import os, sys, time
from mq.cli import programs
from mq.amqp.server import listener
from mq.cli import main
flag = sys.argv.pop(1)
programs.LAST_SECONDS = 3
listener.serve.__kwdefaults__["grace_seconds"] = 2
for name in ("fsync", "fdatasync"):
    def hanging(fd, call=getattr(os, name)):
        while os.path.exists(flag):
            time.sleep(0.1)
        return call(fd)
    setattr(os, name, hanging)
main()
"""


async def test_a_disk_that_hangs_does_not_keep_a_daemon_from_stopping(tmp_path: Path) -> None:
    with MqServer(tmp_path, "MQ_NO_NATIVE=1", daemon=Hanging) as server:
        client = await dial(server)
        await client.declare("q", durable=True)
        (tmp_path / "hang").touch()
        await client.stream.send_all(publishes("q", range(10)))
        await trio.sleep(0.5)  # the real daemon reads meanwhile
        with pytest.raises(DaemonFailed, match="the disk is not responding"):
            await trio.to_thread.run_sync(server.stop)
        assert "cannot confirm that it stored 10 messages published by AMQP client" in server.daemon.log.read_text()
        await client.stream.aclose()
