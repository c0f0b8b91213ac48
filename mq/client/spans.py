"""Spans around what a client does with messages, by OpenTelemetry's conventions for messaging.

The extra ``mq[otel]`` makes them, and the program's tracer provider sends them on. Without the extra every context here
does nothing.

A message is sent in its span's trace: the daemon keeps ``traceparent`` with it. A consumer's span links to that trace,
and continues it unless the program has a span open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from mq.client.errors import Requeue
from mq.client.values import Head, Outcome

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer

SYSTEM: Final = "mq"
_PORTS: Final = {"http": 80, "https": 443}


class Sending:
    """The span of a publish.

    Args:
        span: the one; None where there is none.
    """

    def __init__(self, span: Span | None = None, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.headers = headers
        self._span = span

    def stored(self, id: str) -> None:
        """Note the id of the message."""
        if self._span is not None:
            self._span.set_attribute("messaging.message.id", id)

    def done(self, outcomes: Sequence[Outcome]) -> None:
        """Note the outcomes of a batch."""
        refused = [outcome for outcome in outcomes if not outcome.ok]
        if self._span is not None and refused:
            self._span.set_attribute("error.type", str(refused[0].status))
            text = f"{len(refused)} of {len(outcomes)} messages were not stored: {refused[0].detail}"
            self._span.set_status(trace.StatusCode.ERROR, text)


class Receiving:
    """The messages that a fetch tells its span."""

    def __init__(self) -> None:
        self.messages: tuple[Head, ...] = ()

    def got(self, *messages: Head | None) -> None:
        """Note the messages that were fetched; None for no message."""
        self.messages = tuple(message for message in messages if message is not None)


class Spans:
    """Makes the spans of one client.

    Args:
        url: of its daemon; "" where that is not known.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server: dict[str, str | int] = {}
        if parts.hostname:
            self._server = {"server.address": parts.hostname, "server.port": parts.port or _PORTS[parts.scheme]}
        self._tracer: Tracer | None = trace.get_tracer("mq.client") if IS_INSTALLED else None

    def sending(self, queue: str, messages: int | None = None) -> AbstractContextManager[Sending]:
        """The block publishes a message, or a batch of so many."""
        return nullcontext(_UNTRACED) if self._tracer is None else self._sending(self._tracer, queue, messages)

    def receiving(self, queue: str) -> AbstractContextManager[Receiving]:
        """The block fetches. Where it gets nothing there is no span: else a consumer that waits makes one each time."""
        return nullcontext(Receiving()) if self._tracer is None else self._receiving(self._tracer, queue)

    def processing(self, message: Head) -> AbstractContextManager[None]:
        """The block handles a message."""
        return nullcontext() if self._tracer is None else self._processing(self._tracer, message)

    def settling(self, what: str, queue: str, messages: Sequence[str | Head]) -> AbstractContextManager[None]:
        """The block settles messages: "ack" or "nack"."""
        return nullcontext() if self._tracer is None else self._settling(self._tracer, what, queue, messages)

    @contextmanager
    def _sending(self, tracer: Tracer, queue: str, messages: int | None) -> Iterator[Sending]:
        said = self._said("send", "send", queue, messages)
        span = tracer.start_span(f"send {queue}", kind=trace.SpanKind.PRODUCER, attributes=said)
        with _current(span):
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            yield Sending(span, tuple(headers.items()))

    @contextmanager
    def _receiving(self, tracer: Tracer, queue: str) -> Iterator[Receiving]:
        began, found = time.time_ns(), Receiving()

        def span() -> Span:
            count = len(found.messages)
            said = self._said("receive", "receive", queue, count if count > 1 else None) | _ids(found.messages)
            return tracer.start_span(
                f"receive {queue}",
                kind=trace.SpanKind.CLIENT,
                attributes=said,
                links=_links(found.messages),
                start_time=began,
            )

        try:
            yield found
        except Exception as error:
            _failed(span(), error).end()
            raise
        if found.messages:
            span().end()

    @contextmanager
    def _processing(self, tracer: Tracer, message: Head) -> Iterator[None]:
        said = self._said("process", "process", message.queue) | _ids([message])
        span = tracer.start_span(
            f"process {message.queue}",
            context=_parent([message]),
            kind=trace.SpanKind.CONSUMER,
            attributes=said,
            links=_links([message]),
        )
        with _current(span):
            yield

    @contextmanager
    def _settling(self, tracer: Tracer, what: str, queue: str, messages: Sequence[str | Head]) -> Iterator[None]:
        heads = [message for message in messages if isinstance(message, Head)]
        count = len(messages)
        span = tracer.start_span(
            f"{what} {queue}",
            context=_parent(heads),
            kind=trace.SpanKind.CLIENT,
            attributes=self._said(what, "settle", queue, count if count > 1 else None) | _ids(heads),
            links=_links(heads),
        )
        with _current(span):
            yield

    def _said(self, name: str, type: str, queue: str, messages: int | None = None) -> dict[str, str | int]:
        count = {} if messages is None else {"messaging.batch.message_count": messages}
        return {
            "messaging.system": SYSTEM,
            "messaging.destination.name": queue,
            "messaging.operation.name": name,
            "messaging.operation.type": type,
            **self._server,
            **count,
        }


_UNTRACED: Final = Sending()


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """The block is in the span, and ends it. A message that is given back on purpose is no failure."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Requeue:
            raise
        except Exception as error:
            _failed(span, error)
            raise


def _failed(span: Span, error: Exception) -> Span:
    span.set_attribute("error.type", type(error).__qualname__)
    span.record_exception(error)
    span.set_status(trace.StatusCode.ERROR, str(error))
    return span


def _ids(messages: Sequence[Head]) -> dict[str, str | int]:
    return {"messaging.message.id": messages[0].id} if len(messages) == 1 else {}


def _context(message: Head) -> Context:
    """The trace that the message was sent in, as far as it tells one."""
    return TraceContextTextMapPropagator().extract(dict(message.attributes), Context())


def _links(messages: Sequence[Head]) -> list[Link]:
    found = [(message, trace.get_current_span(_context(message)).get_span_context()) for message in messages]
    return [trace.Link(sent, {"messaging.message.id": message.id}) for message, sent in found if sent.is_valid]


def _parent(messages: Sequence[Head]) -> Context | None:
    """The parent of a span: the program's current span (None), else the trace of its one message."""
    is_open = trace.get_current_span().get_span_context().is_valid
    return _context(messages[0]) if len(messages) == 1 and not is_open else None
