"""What OpenTelemetry hears of the clients: a trace goes through the queue, by the conventions for messaging."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pamqp import commands as methods
from pamqp import header
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.client import AsyncClient, Client, NotFound, Outgoing, Requeue
from tests.client.amqp.scripted import begin, open_publishing, talking
from tests.client.inside import Inside, running
from tests.client.scripted import URL

OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


class Trouble(Exception):
    pass


class Heard:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        """As they ended; they are forgotten with that."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found

    def only(self) -> ReadableSpan:
        [span] = self.all()
        return span


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()
    monkeypatch.setattr(trace, "get_tracer", heard.provider.get_tracer)
    return heard


@pytest.fixture(scope="module")
def daemon() -> Iterator[Inside]:
    with running() as daemon:
        yield daemon


@pytest.fixture
def client(heard: Heard, daemon: Inside) -> Iterator[Client]:
    """With an empty queue q."""
    with Client(URL, transport=daemon) as client:
        client.create_queue("q")
        yield client
        client.delete_queue("q")


def is_under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == ids(parent)


def is_linked(span: ReadableSpan, to: ReadableSpan) -> bool:
    return [(link.context.trace_id, link.context.span_id) for link in span.links] == [ids(to)]


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def named(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def test_a_trace_goes_through_the_queue(client: Client, heard: Heard) -> None:
    published = client.publish("q", b"hello")
    send = heard.only()
    with client.receive("q") as message:
        assert message is not None
        receive = heard.only()
        assert trace.get_current_span().get_span_context().is_valid  # what the block does belongs to it
    process, ack = heard.all()
    assert message.attributes["traceparent"] == named(send)
    assert [(span.name, span.kind) for span in (send, receive, process, ack)] == [
        ("send q", SpanKind.PRODUCER),
        ("receive q", SpanKind.CLIENT),
        ("process q", SpanKind.CONSUMER),
        ("ack q", SpanKind.CLIENT),
    ]
    assert is_under(process, send)
    assert is_under(ack, send)
    assert receive.parent is None
    assert all(is_linked(span, send) for span in (receive, process, ack))
    for span, name, type in (
        (send, "send", "send"),
        (receive, "receive", "receive"),
        (process, "process", "process"),
        (ack, "ack", "settle"),
    ):
        assert span.attributes == {
            "messaging.system": "mq",
            "messaging.destination.name": "q",
            "messaging.operation.name": name,
            "messaging.operation.type": type,
            "messaging.message.id": published.id,
            "server.address": "mq.test",
            "server.port": 8080,
        }
        assert span.status.status_code is StatusCode.UNSET


def test_who_has_a_span_open_goes_on_with_that(client: Client, heard: Heard) -> None:
    client.publish("q", b"hello")
    with heard.provider.get_tracer("program").start_as_current_span("work"), client.receive("q"):
        client.publish("q", b"a second")
    send, receive, inner, process, ack, work = heard.all()
    assert all(is_under(span, work) for span in (receive, process, ack))
    assert is_under(inner, process)
    assert is_linked(process, send)


def test_a_failure_is_told(client: Client, heard: Heard) -> None:
    client.publish("q", b"hello")
    with pytest.raises(Trouble), client.receive("q"):
        raise Trouble("no room")
    _, _, process, nack = heard.all()
    assert (process.status.status_code, process.attributes["error.type"]) == (StatusCode.ERROR, "Trouble")
    assert [event.name for event in process.events] == ["exception"]
    assert (nack.name, nack.attributes["messaging.operation.type"]) == ("nack q", "settle")


def test_giving_back_on_purpose_is_no_failure(client: Client, heard: Heard) -> None:
    client.publish("q", b"hello")
    with client.receive("q"):
        raise Requeue
    assert [(span.name, span.status.status_code) for span in heard.all()[2:]] == [
        ("process q", StatusCode.UNSET),
        ("nack q", StatusCode.UNSET),
    ]


def test_a_fetch_that_gets_nothing_says_nothing(client: Client, heard: Heard) -> None:
    assert client.fetch("q") is None
    assert client.fetch_many("q", 9) == ()
    assert client.take("q") is None
    with client.stream("q") as stream:
        assert stream is None
    assert heard.all() == []


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (lambda client: client.publish("none", b"x"), "send none"),
        (lambda client: client.fetch("none"), "receive none"),
        (lambda client: client.fetch_many("none", 5), "receive none"),
        (lambda client: client.take("none"), "receive none"),
        (lambda client: client.remove_many("none", ["1"]), "ack none"),
    ],
)
def test_a_refusal_is_told(client: Client, heard: Heard, verb: Callable[[Client], Any], name: str) -> None:
    with pytest.raises(NotFound):
        verb(client)
    span = heard.only()
    assert (span.name, span.status.status_code, span.attributes["error.type"]) == (name, StatusCode.ERROR, "NotFound")


def test_a_batch_is_one_span_and_each_message_has_its_trace(client: Client, heard: Heard) -> None:
    outcomes = client.publish_many("q", [b"a", b"b", Outgoing(b"c", attributes={"traceparent": OTHER}), Outgoing("")])
    assert all(outcome.ok for outcome in outcomes)
    send = heard.only()
    assert (send.name, send.attributes["messaging.batch.message_count"]) == ("send q", 4)
    messages = client.fetch_many("q", 10)
    assert [message.attributes["traceparent"] for message in messages] == [named(send)] * 2 + [OTHER] + [named(send)]
    receive = heard.only()
    assert receive.attributes["messaging.batch.message_count"] == 4
    assert [link.attributes["messaging.message.id"] for link in receive.links] == [each.id for each in messages]
    client.remove_many("q", messages)
    ack = heard.only()
    assert (ack.attributes["messaging.batch.message_count"], len(ack.links), ack.parent) == (4, 4, None)


def test_what_a_batch_refuses_is_told(client: Client, heard: Heard) -> None:
    client.publish_many("q", [Outgoing(b"a", delay=-1), b"b"])
    span = heard.only()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "400")
    assert "1 of 2 messages were not stored" in str(span.status.description)


def test_a_message_that_is_streamed_or_taken_is_received(client: Client, heard: Heard) -> None:
    client.publish("q", b"a")
    client.publish("q", b"b")
    first, second = heard.all()
    with client.stream("q") as stream:
        assert stream is not None
        list(stream)
    assert is_linked(heard.only(), first)
    assert client.take("q") is not None
    assert is_linked(heard.only(), second)


async def test_a_task_that_is_cancelled_gives_back_without_a_failure(daemon: Inside, heard: Heard) -> None:
    async with AsyncClient(URL, transport=daemon) as client:
        await client.create_queue("cancelled")
        await client.publish("cancelled", b"x")
        with trio.CancelScope() as scope:
            async with client.receive("cancelled"):
                scope.cancel()
                await trio.sleep_forever()
        send, _, process, nack = heard.all()
        assert (process.name, process.status.status_code) == ("process cancelled", StatusCode.UNSET)
        assert nack.name == "nack cancelled"
        assert is_under(nack, send)
        assert not trace.get_current_span().get_span_context().is_valid  # nothing is left open


@pytest.mark.parametrize("own", [None, {"traceparent": OTHER}, {"colour": "red"}])
async def test_over_amqp_its_headers_name_the_trace(
    autojump_clock: MockClock, heard: Heard, own: dict[str, str] | None
) -> None:
    async with talking() as (client, server), trio.open_nursery() as nursery:
        publishing = begin(nursery, lambda: client.publish("q", b"", headers=own))
        channel = await open_publishing(server)
        await server.hear(methods.Basic.Publish)
        _, head = await server.hear(header.ContentHeader)
        await server.say(methods.Basic.Ack(1), channel)
        await wait_all_tasks_blocked()
        send = heard.only()
        assert (send.name, send.kind) == ("send q", SpanKind.PRODUCER)
        assert send.attributes["messaging.message.id"] == publishing.value
        assert head.properties.headers == {"traceparent": named(send)} | (own or {})


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # as where the extra is not installed
import httpx
from mq.client import Client, spans
assert not spans.IS_INSTALLED

def answer(request):
    assert "traceparent" not in request.headers
    return httpx.Response(201, headers={"x-message-id": "4ad814ab-213e-11e3-a9a3-0025904f6e08"})

with Client(transport=httpx.MockTransport(answer)) as client:
    assert client.publish("q", b"x").is_new
    made = client._spans
    assert made.sending("q").__enter__() is made.sending("q").__enter__()  # nothing is made for each message
"""


def test_without_the_extra_nothing_is_made() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)
