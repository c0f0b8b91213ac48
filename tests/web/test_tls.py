"""A served app under TLS: the same as without, hostile clients, and new certificates while it serves."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trio
import trustme
from trio.testing import MockClock

from mq.access.certificates import Certificates, TLSFiles
from mq.doors import listeners
from mq.web.endpoints import Endpoints
from mq.web.http_connection import WatchedStream
from mq.web.serve import GRACE_SECONDS, PROTOCOLS, SILENT_SECONDS
from tests.web.talking import MAX_BODY, Server, checked_detail, http1, parse, publish, read_all, start_server

HOSTILE = 300

TLSStream = trio.SSLStream[trio.SocketStream]


class Authority:
    """Certificates in a folder, and clients that trust their authority."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.files = TLSFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
        self.issue()

    def issue(self) -> None:
        """A new certificate in the old one's place."""
        issued = self.ca.issue_cert("127.0.0.1")
        Path(self.files.key).touch(0o600)
        issued.private_key_pem.write_to_path(self.files.key)
        Path(self.files.certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def client_context(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def certificates(authority: Authority) -> Certificates:
    return Certificates(authority.files, PROTOCOLS)


@pytest.fixture
async def server(endpoints: Endpoints, nursery: trio.Nursery, certificates: Certificates) -> Server:
    return await start_server(nursery, endpoints, certificates=certificates, grace_seconds=0.5)


async def connect(server: Server, context: ssl.SSLContext) -> TLSStream:
    stream = trio.SSLStream(await server.connect(), context, server_hostname="127.0.0.1")
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def is_alive(server: Server, authority: Authority) -> bool:
    """Whether an honest client is served."""
    with trio.fail_after(10):
        async with await connect(server, authority.client_context()) as stream:
            return (await exchange(stream, http1("GET", "/-/live")))[0] == 200


async def exchange(stream: TLSStream, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send, and the response that is read until its announced end."""
    await stream.send_all(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += await receive(stream)
    head, _, body = received.partition(b"\r\n\r\n")
    size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < size:
        body += await receive(stream)
    return parse(head + b"\r\n\r\n" + body)


async def receive(stream: TLSStream) -> bytes:
    data = await stream.receive_some()
    assert data, "closed in the middle of a response"
    return bytes(data)


@pytest.fixture
async def stream(server: Server, authority: Authority) -> AsyncIterator[TLSStream]:
    stream = await connect(server, authority.client_context())
    yield stream
    await trio.aclose_forcefully(stream)


# The same as without


async def test_the_url_says_so(server: Server) -> None:
    assert server.url.startswith("https://127.0.0.1:")


@pytest.mark.parametrize(
    ("offered", "spoken"), [((), None), (("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), (("x",), None)]
)
async def test_alpn(server: Server, authority: Authority, offered: tuple[str, ...], spoken: str | None) -> None:
    async with await connect(server, authority.client_context(*offered)) as stream:
        assert stream.selected_alpn_protocol() == spoken


@pytest.mark.parametrize("http2", [False, True])
async def test_bodies_of_any_length_there_and_back(
    server: Server, authority: Authority, queue: str, http2: bool
) -> None:
    verify = authority.client_context()
    async with httpx.AsyncClient(base_url=server.url, verify=verify, http1=not http2, http2=http2) as client:
        for size in (0, 1, 16_384, 16_385, MAX_BODY):
            posted = await client.post("/q/messages", content=b"x" * size)
            assert (posted.status_code, posted.http_version) == (201, "HTTP/2" if http2 else "HTTP/1.1")
            while (fetched := await client.get("/q/messages")).status_code == 204:
                pass  # not delivered yet
            assert fetched.content == b"x" * size
        assert (await client.post("/q/messages", content=bytes(MAX_BODY + 1))).status_code == 413


async def test_a_refusal_reaches_a_client_that_sends_first_and_listens_after(stream: TLSStream, queue: str) -> None:
    status, headers, _ = await exchange(stream, http1("POST", "/q/messages", bytes(2 * MAX_BODY)))
    assert (status, headers["connection"]) == (413, "close")


async def test_the_end_of_a_connection_is_said(stream: TLSStream) -> None:
    """Without a goodbye a client could not tell it from an attacker's cut."""
    await stream.send_all(http1("GET", "/-/live", None, "Connection: close"))
    assert parse(await read_all(stream))[0] == 200


async def test_a_client_that_says_goodbye_after_asking_gets_its_answer(
    stream: TLSStream, queue: str, endpoints: Endpoints
) -> None:
    await publish(endpoints, queue, b"x" * MAX_BODY)
    await stream.send_all(http1("GET", "/q/messages"))
    with contextlib.suppress(ssl.SSLWantReadError):
        stream._ssl_object.unwrap()
    await stream.transport_stream.send_all(stream._outgoing.read())
    received = b""
    with contextlib.suppress(trio.BrokenResourceError):  # Trio's client reads no more once it has said goodbye
        received = await read_all(stream.transport_stream)
    assert len(received) > MAX_BODY


async def test_tls_has_no_half_to_close(stream: TLSStream) -> None:
    await WatchedStream(stream).send_eof()
    assert (await exchange(stream, http1("GET", "/-/live")))[0] == 200


# Hostile clients


async def closes_within(stream: trio.abc.ReceiveStream, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        with contextlib.suppress(trio.BrokenResourceError):
            await read_all(stream)
        return True
    return False


def client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


HALVES = pytest.mark.parametrize("part", [0, 1, 5, 100, -1])
"""How many bytes of its first message a client sends."""


@HALVES
async def test_half_a_handshake_is_waited_for_only_so_long(
    certificates: Certificates, authority: Authority, autojump_clock: MockClock, part: int
) -> None:
    client, accepted = trio.socket.socketpair()
    await client.send(client_hello(authority.client_context())[:part])
    begin = trio.current_time()
    stream = trio.SocketStream(accepted)
    with client:
        assert await listeners.shake_hands(stream, certificates.context, trio.sleep_forever) is None
    await stream.aclose()
    assert trio.current_time() - begin == pytest.approx(listeners.HANDSHAKE_SECONDS)


@pytest.mark.slow
@HALVES
async def test_half_a_handshake_ends_its_connection_only(
    quick_clock: MockClock, server: Server, authority: Authority, part: int
) -> None:
    async with await server.connect() as client:
        await client.send_all(client_hello(authority.client_context())[:part])
        assert await closes_within(client, 2 * listeners.HANDSHAKE_SECONDS)
    assert await is_alive(server, authority)


@pytest.mark.parametrize(
    "garbage",
    [http1("GET", "/-/live"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(1000), b"\x16\x03\x01\xff\xff" * 9000],
)
async def test_garbage_ends_its_connection_only(
    server: Server, authority: Authority, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with await server.connect() as client:
        with contextlib.suppress(trio.BrokenResourceError):
            await client.send_all(garbage)
        assert await closes_within(client, 5)
    assert await is_alive(server, authority)
    assert "HTTP/1.1" not in caplog.text
    loud = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert not [record for record in loud if record.name != "mq.turns"]  # which complains of a busy machine


async def test_garbage_after_the_handshake_ends_its_connection_only(
    server: Server, authority: Authority, stream: TLSStream
) -> None:
    await stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record of the right form
    assert await closes_within(stream.transport_stream, 5)
    assert await is_alive(server, authority)


async def test_a_client_that_resets_in_the_handshake_ends_its_connection_only(
    server: Server, authority: Authority
) -> None:
    client = await server.connect()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await client.send_all(client_hello(authority.client_context())[:100])
    client.socket.close()
    assert await is_alive(server, authority)


@pytest.mark.slow
async def test_honest_clients_are_served_while_many_shake_no_hands(server: Server, authority: Authority) -> None:
    hello = client_hello(authority.client_context())
    hostile = [await server.connect() for _ in range(HOSTILE)]
    try:
        for number, client in enumerate(hostile):
            await client.send_all(hello[: number % 3 * 100])  # nothing, a part, more of it
        for _ in range(3):
            assert await is_alive(server, authority)
        server.stop.set()
        with trio.fail_after(5):
            await server.stopped.wait()
    finally:
        for client in hostile:
            client.socket.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_what_is_older_than_tls_1_2_is_refused(server: Server, authority: Authority) -> None:
    context = authority.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(trio.BrokenResourceError):
        await connect(server, context)
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with await connect(server, context):
        pass


@pytest.mark.parametrize("before", [b"", http1("GET", "/-/live")])
async def test_a_slow_head_is_408_under_tls_too(
    quick_clock: MockClock, server: Server, authority: Authority, before: bytes
) -> None:
    async with await connect(server, authority.client_context()) as client:
        await client.send_all(before + b"GET /q HTTP/1.1\r\nHost:")
        received = await read_all(client)
    status, headers, body = parse(received[received.rindex(b"HTTP/1.1 ") :])
    assert status == 408
    assert "timed out" in checked_detail(status, headers["content-type"], body)


async def test_a_silent_connection_is_closed_under_tls_too(
    quick_clock: MockClock, server: Server, authority: Authority, queue: str
) -> None:
    """The client goes on saying nothing in a way that only TLS knows."""
    async with await connect(server, authority.client_context()) as client:
        await client.send_all(http1("POST", "/q/messages", bytes(10))[:-5])
        half_record = b"\x17\x03\x03\x40\x00"
        with contextlib.suppress(trio.BrokenResourceError):
            await client.transport_stream.send_all(half_record)
            while trio.current_time() < 3 * SILENT_SECONDS:
                await client.transport_stream.send_all(b"x")
                await trio.sleep(SILENT_SECONDS / 6)
    assert trio.current_time() < 3 * SILENT_SECONDS


# Stopping


async def test_a_stop_waits_for_no_handshake_and_no_idle_client(
    endpoints: Endpoints, nursery: trio.Nursery, certificates: Certificates, authority: Authority
) -> None:
    server = await start_server(nursery, endpoints, certificates=certificates)  # with all of its grace
    async with await server.connect() as silent, await connect(server, authority.client_context()) as stream:
        await exchange(stream, http1("GET", "/-/live"))
        server.stop.set()
        with trio.fail_after(5):
            assert await read_all(silent) == b""
            assert await read_all(stream) == b""
            await server.stopped.wait()


async def test_a_client_that_reads_nothing_does_not_hold_up_the_stop(
    quick_clock: MockClock, endpoints: Endpoints, server: Server, stream: TLSStream, queue: str
) -> None:
    for _ in range(20):
        await publish(endpoints, queue, bytes(MAX_BODY))
    await stream.send_all(http1("GET", "/q/messages") * 20)
    await receive(stream)
    server.stop.set()
    await server.stopped.wait()
    assert trio.current_time() < 2 * GRACE_SECONDS


# Certificates


def serial(stream: TLSStream) -> object:
    return stream.getpeercert()["serialNumber"]


async def test_new_certificates_are_for_new_connections(
    server: Server, authority: Authority, certificates: Certificates, stream: TLSStream
) -> None:
    old = serial(stream)
    authority.issue()
    certificates.reload()
    assert (await exchange(stream, http1("GET", "/-/live")))[0] == 200
    async with await connect(server, authority.client_context()) as newer:
        assert serial(newer) != old


async def test_a_session_from_before_does_not_outlive_its_certificate(
    server: Server, authority: Authority, certificates: Certificates
) -> None:
    context = authority.client_context()
    async with await connect(server, context) as stream:
        await exchange(stream, http1("GET", "/-/live"))
        session = stream.session
    for is_reused in (True, False):
        client = trio.SSLStream(await server.connect(), context, server_hostname="127.0.0.1")
        client._ssl_object.session = session
        await client.do_handshake()
        assert client.session_reused is is_reused
        await trio.aclose_forcefully(client)
        authority.issue()
        certificates.reload()


@pytest.fixture
def client_authority(tmp_path: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "clients.pem")
    return ca


@pytest.fixture
async def guarded(
    endpoints: Endpoints, nursery: trio.Nursery, authority: Authority, client_authority: trustme.CA, tmp_path: Path
) -> Server:
    files = authority.files._replace(client_ca=str(tmp_path / "clients.pem"))
    return await start_server(nursery, endpoints, certificates=Certificates(files, PROTOCOLS))


async def is_served(server: Server, context: ssl.SSLContext) -> bool:
    """Under TLS 1.3 a client learns that its certificate will not do from the answer to its first words."""
    try:
        async with await connect(server, context) as stream:
            return (await exchange(stream, http1("GET", "/-/live")))[0] == 200
    except trio.BrokenResourceError:
        return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_certificates(
    guarded: Server, authority: Authority, client_authority: trustme.CA, version: ssl.TLSVersion
) -> None:
    async def serves(issuer: trustme.CA | None) -> bool:
        context = authority.client_context()
        context.minimum_version = context.maximum_version = version
        if issuer is not None:
            issuer.issue_cert("client@example.org").configure_cert(context)
        return await is_served(guarded, context)

    assert await serves(client_authority)
    assert not await serves(None)
    assert not await serves(authority.ca)
    assert not await serves(trustme.CA())
