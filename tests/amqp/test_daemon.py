"""pika against the real daemon: what survives restarts and kills, and who gets in."""

from __future__ import annotations

import http.client
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from mq.client import Client
from mq.settings import AMQP_PORT
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(port: int, **given: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **given))


@pytest.fixture
def daemon(tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log", "--amqp-port", str(free_port)) as daemon:
        yield daemon


def test_what_lasts_is_there_after_kill_and_restart(daemon: Daemon, free_port: int) -> None:
    channel = connect(free_port).channel()
    channel.confirm_delivery()
    channel.exchange_declare("lasting", "topic", durable=True)
    channel.exchange_declare("passing", "topic")
    channel.queue_declare("lasting", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("passing")
    channel.queue_bind("lasting", "lasting", "a.#")
    for body, mode in ((b"lasts", 2), (b"passes", 1)):
        properties = pika.BasicProperties(delivery_mode=mode, headers={"n": 1}, app_id="test")
        channel.basic_publish("lasting", "a.b", body, properties, mandatory=True)
    channel.basic_publish("", "passing", b"x", PERSISTENT)
    daemon.kill()
    with pytest.raises(pika.exceptions.AMQPError):
        channel.basic_publish("", "passing", b"x", PERSISTENT)
    daemon.start()
    with connect(free_port) as connection:
        channel = connection.channel()
        assert channel.queue_declare("lasting", durable=True, arguments={"x-max-priority": 3}).method.message_count == 1
        method, properties, body = channel.basic_get("lasting")
        assert (method.exchange, method.routing_key, body) == ("lasting", "a.b", b"lasts")
        assert (properties.headers, properties.app_id, properties.delivery_mode) == ({"n": 1}, "test", 2)
        channel.basic_publish("lasting", "a.c", b"bound")
        assert channel.basic_get("lasting")[2] == b"bound"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            channel.queue_declare("passing", passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            connection.channel().exchange_declare("passing", passive=True)


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.stop])
def test_what_expires_while_no_daemon_runs_goes_through_its_exchange(
    daemon: Daemon, free_port: int, end: Callable[[Daemon], None]
) -> None:
    """A queue that waits, and sends on: most programs try again so. Real time: it goes on without a daemon. On a slow
    machine some go on before."""
    with connect(free_port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("again", "direct", durable=True)
        channel.queue_declare("work", durable=True)
        channel.queue_bind("work", "again", "work")
        arguments = {"x-dead-letter-exchange": "again", "x-dead-letter-routing-key": "work", "x-message-ttl": 2000}
        channel.queue_declare("wait", durable=True, arguments=arguments)
        for n in range(20):
            channel.basic_publish("", "wait", b"%d" % n, PERSISTENT)
    end(daemon)
    time.sleep(2)
    daemon.start()
    with connect(free_port) as connection:
        found: set[bytes] = set()
        for method, _, body in connection.channel().consume("work", auto_ack=True, inactivity_timeout=10):
            found |= {body} if method is not None else set()
            if method is None or len(found) == 20:
                break
        assert found == {b"%d" % n for n in range(20)}


def test_what_is_acknowledged_stays_away_and_the_rest_comes_back(daemon: Daemon, free_port: int) -> None:
    with connect(free_port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for n in range(20):
            channel.basic_publish("", "q", b"%d" % n, PERSISTENT)
        channel.basic_qos(prefetch_count=15)
        for method, _, _ in channel.consume("q", inactivity_timeout=20):
            if method.delivery_tag == 10:
                channel.basic_ack(10, multiple=True)
            if method.delivery_tag == 15:
                break
        assert method.delivery_tag == 15
    daemon.stop()
    daemon.start()
    with connect(free_port) as connection:
        channel = connection.channel()
        bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(10)]
        assert bodies == [b"%d" % n for n in range(10, 20)]


def test_a_queue_made_by_either_is_there_for_both(daemon: Daemon, free_port: int) -> None:
    with connect(free_port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        given = pika.BasicProperties(content_type="text/x", delivery_mode=2, headers=TRACE)
        channel.basic_publish("", "q", b"from amqp", given)
        status, headers, body = _http(daemon.port, "GET", "/q/messages")
        assert (status, headers["content-type"], body) == (200, "text/x", b"from amqp")
        assert headers["traceparent"] == TRACE["traceparent"]
        given = {"x-message-attribute-a": "b", **TRACE}
        status, _, _ = _http(daemon.port, "POST", "/q/messages", b"from http", given)
        assert status == 201
        _, properties, body = channel.basic_get("q", auto_ack=True)
        assert (body, properties.headers) == (b"from http", {"a": "b", **TRACE})


def _http(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_a_busy_port_is_one_line_and_status_2(tmp_path: Path, free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        command = [sys.executable, "-m", "mq", "--storage", "memory:", "--port", "0", "--amqp-port", str(free_port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    said = f"mq: cannot listen on 127.0.0.1 port {free_port}: Address already in use."
    assert (
        ended.stderr.splitlines()[-1]
        == f"{said} Choose another port with --amqp-port, or serve HTTP alone with --amqp-port=0"
    )
    assert "Traceback" not in ended.stderr


def test_where_amqps_own_port_is_busy_http_is_served_all_the_same(tmp_path: Path) -> None:
    address = f"127.{secrets.randbelow(200) + 1}.{secrets.randbelow(250)}.{secrets.randbelow(250) + 1}"  # ours alone
    command = [sys.executable, "-m", "mq", "--root", str(tmp_path / "root"), "--address", address, "--port", "0"]
    with (
        socket.create_server((address, AMQP_PORT)),
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        try:
            said = []
            while not said or " is serving " not in said[-1]:
                said.append(process.stderr.readline())
                assert said[-1], said
            (url,) = re.findall(r"\S+://\S+", said[-1])
            with Client(url) as client:
                client.create_queue("q")
        finally:
            process.kill()
    assert url.startswith(f"http://{address}:")
    assert (
        f"mq: port {AMQP_PORT} is in use by another program, so AMQP is not served. Choose another port with "
        "--amqp-port\n"
    ) in said


def test_many_threads_publish_and_consume_each_message_once(daemon: Daemon, free_port: int) -> None:
    found: list[bytes] = []

    def publish(number: int) -> None:
        with connect(free_port) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for n in range(50):
                channel.basic_publish("", "q", b"%d-%d" % (number, n), PERSISTENT)

    def consume() -> None:
        with connect(free_port) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=7)
            for method, _, body in channel.consume("q", inactivity_timeout=3):
                if method is None:
                    return
                found.append(body)
                channel.basic_ack(method.delivery_tag)

    with connect(free_port) as connection:
        connection.channel().queue_declare("q", durable=True)
    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert sorted(found) == sorted(b"%d-%d" % (number, n) for number in range(4) for n in range(50))
