"""What the clients do around a message: contexts, endless loops, streams, pages; and what they tell a daemon of
themselves."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import anyio
import httpx
import pytest

from mq.client import Access, AsyncClient, Client, Interrupted, LeaseLost, Retry, UnexpectedResponse
from tests.client.loops import on_both_loops
from tests.client.scripted import ID, URL, Script, both, lines, message, refused


class Trouble(Exception):
    pass


def methods(script: Script) -> list[str]:
    return [asked.method for asked in script.asked]


def test_a_message_is_removed_when_all_went_well() -> None:
    script = Script(message(), httpx.Response(202))
    with script.client() as client, client.receive("q", wait=1) as received:
        assert received is not None
        assert received.body == b"hello"
        assert methods(script) == ["GET"]
    assert methods(script) == ["GET", "DELETE"]
    assert script.asked[1].headers["if-match"] == '"r1"'


def test_a_message_is_given_back_when_something_went_wrong() -> None:
    script = Script(message(), httpx.Response(200))
    with script.client() as client, pytest.raises(Trouble), client.receive("q"):
        raise Trouble
    assert methods(script) == ["GET", "PATCH"]


def test_the_trouble_is_told_when_the_message_cannot_be_given_back() -> None:
    script = Script(message(), refused(412))
    with script.client() as client, pytest.raises(Trouble), client.receive("q"):
        raise Trouble


def test_a_lost_lease_is_told() -> None:
    script = Script(message(), refused(412))
    with script.client() as client, pytest.raises(LeaseLost), client.receive("q"):
        pass


def test_nothing_there_is_none() -> None:
    script = Script(httpx.Response(204))
    with script.client() as client, client.receive("q") as received:
        assert received is None
    assert methods(script) == ["GET"]


@on_both_loops
async def test_the_same_on_event_loops() -> None:
    script = Script(message(), httpx.Response(202), message(), httpx.Response(200), httpx.Response(204))
    async with script.async_client() as client:
        async with client.receive("q") as received:
            assert received is not None
        with pytest.raises(Trouble):
            async with client.receive("q"):
                raise Trouble
        async with client.receive("q") as received:
            assert received is None
    assert methods(script) == ["GET", "DELETE", "GET", "PATCH", "GET"]


@on_both_loops
async def test_a_cancelled_consumer_gives_its_message_back() -> None:
    script = Script(message(), httpx.Response(200))
    async with script.async_client() as client:
        with anyio.move_on_after(1):
            async with client.receive("q"):
                await anyio.sleep_forever()
    assert methods(script) == ["GET", "PATCH"]


@on_both_loops
async def test_giving_back_does_not_hold_up_a_cancelled_consumer() -> None:
    async def stuck(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH":
            await anyio.sleep_forever()
        return message()

    async with AsyncClient(URL, transport=httpx.MockTransport(stuck)) as client:
        begun = anyio.current_time()
        with anyio.move_on_after(1):
            async with client.receive("q"):
                await anyio.sleep_forever()
        assert anyio.current_time() - begun < 10


def test_consuming_goes_on_over_empty_answers() -> None:
    script = Script(httpx.Response(204), message(b"1"), httpx.Response(204), message(b"2"))
    with script.client() as client:
        messages = client.consume("q")
        assert [next(messages).body, next(messages).body] == [b"1", b"2"]
    assert script.asked[0].target == "/q/messages?wait=20"


@on_both_loops
async def test_consuming_on_event_loops() -> None:
    script = Script(httpx.Response(204), message(b"1"), httpx.Response(204), message(b"2"))
    found = []
    async with script.async_client() as client:
        async for received in client.consume("q", wait=5):
            found.append(received.body)
            if len(found) == 2:
                break
    assert found == [b"1", b"2"]
    assert script.asked[0].target == "/q/messages?wait=5"


def pages() -> list[httpx.Response]:
    return [
        lines({"id": "1", "body": ""}, {"id": "2", "body": ""}, link='</q/peek?after=2>; rel="next"'),
        lines(link='</q/peek?after=3>; rel="next"'),
        lines({"id": "4", "body": ""}),
    ]


@on_both_loops
async def test_browsing_turns_the_pages() -> None:
    script = Script(*pages())
    with script.client() as client:
        assert [found.id for found in client.browse("q")] == ["1", "2", "4"]
    targets = [asked.target for asked in script.asked]
    script = Script(*pages())
    async with script.async_client() as async_client:
        assert [found.id async for found in async_client.browse("q")] == ["1", "2", "4"]
    assert [asked.target for asked in script.asked] == targets
    assert targets == ["/q/peek?max=100&state=ready", "/q/peek?after=2", "/q/peek?after=3"]


@on_both_loops
@pytest.mark.parametrize("link", ['<https://other/q>; rel="next"', '</q>; rel="prev"', "nonsense"])
async def test_only_a_next_page_of_this_daemon_is_one(link: str) -> None:
    for _, page in await both(lambda: [lines(link=link)], lambda c: c.peek("q")):
        assert page.next is None


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in pieces, and may break off."""

    def __init__(self, *chunks: bytes, breaks: bool = False) -> None:
        self.chunks, self.breaks = chunks, breaks
        self.read = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.read += 1
            yield chunk
        if self.breaks:
            raise httpx.RemoteProtocolError("cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def streamed(chunks: Chunks) -> httpx.Response:
    return httpx.Response(200, headers={"x-message-id": ID, "etag": '"r1"'}, stream=chunks)


@on_both_loops
async def test_a_stream_is_read_as_it_comes() -> None:
    chunks = Chunks(b"ab", b"cd")
    with Script(streamed(chunks)).client() as client:
        with client.stream("q") as stream:
            assert stream is not None
            assert (stream.message.id, stream.message.receipt, chunks.read) == (ID, "r1", 0)
            assert next(iter(stream)) == b"ab"
            assert chunks.read == 1
        assert chunks.closed
    chunks = Chunks(b"ab", b"cd")
    async with Script(streamed(chunks)).async_client() as async_client:
        async with async_client.stream("q") as async_stream:
            assert async_stream is not None
            assert chunks.read == 0
            assert [chunk async for chunk in async_stream] == [b"ab", b"cd"]
        assert chunks.closed


@on_both_loops
async def test_a_stream_that_breaks_says_so() -> None:
    with Script(streamed(Chunks(b"ab", breaks=True))).client() as client, client.stream("q") as stream:
        assert stream is not None
        with pytest.raises(Interrupted):
            list(stream)
    async with (
        Script(streamed(Chunks(b"ab", breaks=True))).async_client() as async_client,
        async_client.stream("q") as async_stream,
    ):
        assert async_stream is not None
        with pytest.raises(Interrupted):
            [chunk async for chunk in async_stream]


@on_both_loops
async def test_a_stream_of_nothing_and_of_a_refusal() -> None:
    with Script(httpx.Response(204)).client() as client, client.stream("q") as stream:
        assert stream is None
    async with Script(httpx.Response(204)).async_client() as async_client, async_client.stream("q") as async_stream:
        assert async_stream is None
    chunks = Chunks(b"hi")
    client = Script(httpx.Response(200, stream=chunks)).client()
    with client, pytest.raises(UnexpectedResponse), client.stream("q"):
        pass
    assert chunks.closed


# What a daemon is told


@pytest.mark.parametrize(
    ("access", "told"),
    [
        (Access(url=URL), None),
        (Access(url=URL, token="t"), "Bearer t"),
        (Access(url=URL, user=("me", "s:x")), "Basic " + base64.b64encode(b"me:s:x").decode()),
    ],
)
def test_credentials(access: Access, told: str | None) -> None:
    script = Script(httpx.Response(201))
    with Client(access, transport=httpx.MockTransport(script.answer)) as client:
        client.create_queue("q")
    assert script.only.headers.get("authorization") == told


@pytest.mark.parametrize("url", ["", "mq:8080", "ftp://a", "http://", "http://a?b", "http://me:secret@a"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        Access(url=url)
    assert "secret" not in str(caught.value)


def test_one_kind_of_credentials() -> None:
    with pytest.raises(ValueError, match="use either a token or a user name and password"):
        Access(token="t", user=("a", "b"))


def test_secrets_are_not_shown() -> None:
    for access in (Access(url=URL, token="secret"), Access(url=URL, user=("me", "secret"))):
        assert "secret" not in repr(access)


def test_a_path_in_front_is_kept() -> None:
    script = Script(httpx.Response(201))
    with Client(URL + "/mq/", transport=httpx.MockTransport(script.answer)) as client:
        client.create_queue("q")
    assert script.only.target == "/mq/q"


def test_who_waits_on_purpose_is_given_longer() -> None:
    timeouts = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
        return httpx.Response(204)

    with Client(Access(timeout=5.0), retry=Retry(), transport=httpx.MockTransport(answer)) as client:
        client.fetch("q", wait=100)
        client.create_queue("q")
    assert [(found["connect"], found["read"]) for found in timeouts] == [(5, 105), (5, 5)]


def test_the_client_loads_no_broker_and_no_server() -> None:
    code = "import sys, mq.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name for name in loaded if name.startswith(("mq.broker", "mq.storage", "mq.web", "hypercorn", "quart"))}
