"""Any path and any headers: the endpoints answer or refuse, never fail, and make no queue by a name that is none."""

from __future__ import annotations

import contextlib
from urllib.parse import quote

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.broker import BrokerConfig, open_broker
from mq.errors import InvalidName
from mq.message import QueueName
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.web.talking import MAX_BODY, contents, stream

segments = st.one_of(
    st.binary(max_size=8).map(quote),
    st.text("aA0-._~%2fF5c/:", max_size=12),
    st.sampled_from(["messages", "q", "-", "live", "..", "%2e%2e", "http://mq", ""]),
)
paths = st.one_of(
    st.lists(segments, max_size=4).map(lambda parts: ("/" + "/".join(parts)).encode()),
    st.binary(max_size=20),
)
methods = st.one_of(st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"]), st.text(max_size=5))
values = st.text(st.characters(max_codepoint=0xFF), max_size=20)
headers = st.dictionaries(
    st.one_of(st.sampled_from(["content-type", "expect", "transfer-encoding", "x-message-id", "range"]), values), values
)
sizes = st.one_of(st.none(), st.integers(0, 10), st.just(MAX_BODY + 1), st.just(10**20))


async def talk(request: Request, body: bytes) -> tuple[Reply, list[str]]:
    """The reply of a fresh broker that has the queue ``q`` with one message, and its queues after that."""
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig(max_body=MAX_BODY)) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"hello", {"content_type": request.headers.get("content-type")})
        async with contextlib.aclosing(stream(body)) as chunks:
            reply = await Endpoints(broker, MAX_BODY).handle(request._replace(body=chunks))
        if not isinstance(reply.body, bytes):
            await reply.body.aclose()
    queues, _ = await contents(store)
    await store.aclose()
    return reply, queues


def is_name(name: str) -> bool:
    try:
        QueueName(name)
    except InvalidName:
        return False
    return True


@pytest.mark.slow
@settings(deadline=None)  # a machine that is busy with other things is no failure
@given(methods, paths, headers, sizes, st.binary(min_size=1, max_size=10))
@example("PUT", b"/r", {}, None, b"x")
@example("PUT", b"/%2e%2e", {}, None, b"x")
@example("GET", b"/q/messages", {"content-type": "a\r\nb"}, None, b"x")
def test_anything_is_answered_or_refused(
    method: str, path: bytes, headers: dict[str, str], size: int | None, body: bytes
) -> None:
    reply, queues = trio.run(talk, Request(method, path, b"", headers, stream(), size), body)
    assert all(map(is_name, queues))
    assert 200 <= reply.status < 300 or 400 <= reply.status < 500
    for name, value in reply.headers:
        assert name == name.lower()
        assert not set(b"\r\n\0") & set(value.encode("latin-1"))
