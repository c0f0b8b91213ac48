"""`mq receive --to`: each message is posted to a webhook, here a small server of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mq.client import Client
from tests.cli.conftest import Mq


class Hook(ThreadingHTTPServer):
    """Notes what is posted to it; answers with the statuses that a test has written down, then with 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?of=q"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        said = {name.lower(): value for name, value in self.headers.items()}
        self.server.got.append((said | {"of": str(self.client_address)}, body))
        assert self.path == "/hook?of=q"
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("location", "/hook?of=q")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        thread = threading.Thread(target=hook.serve_forever, args=(0.01,))
        thread.start()
        yield hook
        hook.shutdown()
        thread.join()


def test_a_message_that_is_taken_is_removed(client: Client, mq: Mq, hook: Hook) -> None:
    sent = client.publish("q", b"hello\xff", content_type="x/y", attributes={"colour": "grün"})
    assert mq("receive", "q", "--to", hook.url).status == 0
    [(headers, body)] = hook.got
    assert body == b"hello\xff"
    assert headers["content-type"] == "x/y"
    assert (headers["x-message-queue"], headers["x-message-id"]) == ("q", sent.id)
    assert headers["x-message-receives"] == "1"
    assert headers["x-message-attribute-colour"].encode("latin-1").decode() == "grün"
    assert client.queue("q").ready == client.queue("q").leased == 0


def test_the_trace_of_a_message_goes_on(client: Client, mq: Mq, hook: Hook) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client.publish("q", b"x", attributes={"traceparent": parent})
    assert mq("receive", "q", "--to", hook.url).status == 0
    [(headers, _)] = hook.got
    assert headers["traceparent"] == parent
    assert "tracestate" not in headers


@pytest.mark.parametrize("status", [302, 400, 404, 500, 503])
def test_all_but_2xx_gives_it_back_after_what_the_queue_says(client: Client, mq: Mq, hook: Hook, status: int) -> None:
    client.configure("q", retry_delay=600)
    client.publish("q", b"hello")
    hook.statuses = [status]
    done = mq("receive", "q", "--to", hook.url)
    assert done.status == 1
    assert f"the webhook returned status {status}" in done.error
    assert client.queue("q").delayed == 1
    assert len(hook.got) == 1


def test_the_reason_is_told_among_the_dead(client: Client, mq: Mq, hook: Hook) -> None:
    client.create_queue("dead")
    client.configure("q", max_receives=2, dead_letter_queue="dead")
    client.publish("q", b"hello")
    hook.statuses = [500, 507]
    assert mq("receive", "q", "--max", 2, "--wait", 5, "--to", hook.url, "--retry-delay", 0).status == 1
    [dead] = client.browse("dead")
    assert dead.dead_letter_history[0].error == "the webhook returned status 507"


def test_an_answer_without_end_is_not_waited_for(client: Client, mq: Mq) -> None:
    """Its status says that the message is taken; what follows is of no interest."""
    client.publish("q", b"hello")

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(bytes(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        assert mq("receive", "q", "--to", f"http://127.0.0.1:{server.getsockname()[1]}").status == 0
        thread.join()
    assert client.queue("q").ready == 0


def test_connections_are_used_again(client: Client, mq: Mq, hook: Hook) -> None:
    for _ in range(3):
        client.publish("q", b"hello")
    assert mq("receive", "q", "-n", 3, "--to", hook.url).status == 0
    assert len({headers["of"] for headers, _ in hook.got}) == 1


def test_a_webhook_that_never_answers_gives_it_back(client: Client, mq: Mq) -> None:
    client.publish("q", b"hello")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = mq("receive", "q", "--to", url, "--max-handling", 0.5, "--retry-delay", 0)
    assert done.status == 1
    assert client.queue("q").ready == 1


def test_a_webhook_that_is_away_gives_it_back(client: Client, mq: Mq, free_port: int) -> None:
    client.publish("q", b"hello")
    done = mq("receive", "q", "--to", f"http://127.0.0.1:{free_port}", "--retry-delay", 0)
    assert (done.status, "no response" in done.error) == (1, True)
    assert client.queue("q").ready == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--to", "ftp://x"],
        ["--to", "//x"],
        ["--to", "http://me:secret@x/"],
        ["--to", "http://x", "--exec", "true"],
        ["--to", "http://x", "--json"],
        ["--to", "http://x", "--keep"],
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_fetched(client: Client, mq: Mq, flags: list[str]) -> None:
    client.publish("q", b"hello")
    assert mq("receive", "q", *flags).status == 2
    assert client.queue("q").ready == 1
