"""The client for asyncio and Trio: the connection, the pauses and the public verbs.

What is sent and what answers mean is in :mod:`mq.client.requests`. So are the arguments and docstrings of methods that
only send one request: :func:`method_for` makes these.

``tools/sync_client.py`` generates the client for threads (:mod:`mq.client.sync_client`) from this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio
import httpx

from mq.client import requests
from mq.client.calls import Answer, AsyncBody, Call, Source, as_method_of, asynchronous, given
from mq.client.errors import ClientError, Refused, Requeue, TooLarge, Unavailable
from mq.client.leases import MAX_HANDLING_SECONDS, AsyncLease
from mq.client.requests import PublishBatch, cut, outcome_alone
from mq.client.retries import CONSUME_WAIT_SECONDS, GIVING_BACK, ONCE, Retry, Tries
from mq.client.spans import Spans
from mq.client.transport import Access, answer_of, is_sent, translated
from mq.client.values import (
    Duration,
    Head,
    Outcome,
    Outgoing,
    Page,
    Published,
    Received,
    duration,
)

P = ParamSpec("P")
T = TypeVar("T")


class AsyncStream:
    """A leased message whose body is still to be read, once: iterate over its chunks.

    Attributes:
        message: all but the body.
    """

    def __init__(self, message: Head, response: httpx.Response, url: str) -> None:
        self.message = message
        self._response = response
        self._chunks = response.aiter_raw()
        self._url = url

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk.

        Raises:
            Interrupted: the connection broke, or the daemon found the message damaged.
        """
        try:
            return await anext(self._chunks)
        except httpx.RequestError as error:
            raise translated(error, self._url) from error

    async def aclose(self) -> None:
        """Stop reading."""
        await self._response.aclose()
        # async only: event loops warn of httpx's generators that are left half-way. They end at once when it is closed.
        with contextlib.suppress(httpx.RequestError, httpx.StreamError):
            async for _ in self._chunks:
                pass


class AsyncBrowseIterator:
    """Every message of a queue, page by page: iterate over it."""

    def __init__(self, begin: Call[Page], go_on: Callable[[Call[Page]], Awaitable[Page]], queue: str) -> None:
        self._queue = queue
        self._next: Call[Page] | None = begin
        self._go_on = go_on
        self._messages: list[Received] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while not self._messages:
            if self._next is None:
                raise StopAsyncIteration
            page = await self._go_on(self._next)
            self._next = None if page.next is None else requests.peek_at(self._queue, page.next)
            self._messages = list(reversed(page.messages))
        return self._messages.pop()


class AsyncConsumeIterator:
    """Message after message, for ever: iterate over it."""

    def __init__(self, fetch: Callable[[], Awaitable[Received | None]]) -> None:
        self._fetch = fetch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while (message := await self._fetch()) is None:
            pass
        return message


def method_for(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return the method that sends the request of `make`, with the arguments and the docstring of that function."""

    @as_method_of(make)
    async def send(client: AsyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return await client._run(make(*args, **named))

    return send


class AsyncClient:
    """Speaks to one daemon. Tasks may share it. Close it, or use it as an asynchronous context manager.

    Args:
        access: the daemon's address and the user; the one on 127.0.0.1:8080 when not given.
        retry: how patient to be while the daemon is away or full.
        keys: give every published message an idempotency key, so that it can be sent again without being stored
            twice. False for a daemon with peers, which refuses keys: then a publish whose answer is lost raises
            Interrupted, and is not sent again.
        transport: another way to connect (tests, a proxy).

    Every verb raises a :class:`~mq.client.errors.ClientError` when it fails.
    """

    def __init__(
        self,
        access: Access | str | None = None,
        *,
        retry: Retry | None = None,
        keys: bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.access = Access(url=access) if isinstance(access, str) else access or Access()
        self._retry = retry or Retry()
        self._keys = keys
        self._spans = Spans(self.access.url)
        self._http = httpx.AsyncClient(transport=transport, **self.access.options())

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    create_queue = method_for(requests.create_queue)
    delete_queue = method_for(requests.delete_queue)
    queue = method_for(requests.queue)
    queues = method_for(requests.queues)
    configure = method_for(requests.configure)

    async def publish(
        self,
        queue: str,
        body: AsyncBody,
        *,
        content_type: str | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int | None = None,
        at: datetime | None = None,
        group: str | None = None,
        content_encoding: str | None = None,
    ) -> Published:
        """Publish a message. When this returns, it is durable.

        Args:
            queue: where to.
            body: bytes, text (sent as UTF-8), chunks, or a function that returns chunks. Plain chunks can be sent
                once only, and are not sent again; those of a function can.
            content_type: what the body is; text says so by itself.
            delay: seconds before it can be fetched.
            ttl: seconds after which it expires.
            attributes: text kept with it; names in small letters.
            key: an idempotency key of your own, for the case that this program dies and does it all again.
            priority: from 0 to 255; higher ones are handed out first, where the queue has a `max_priority`.
            at: when it can be fetched, instead of a delay; a time with its zone.
            group: its message group: of each group one after the other is handed out, in a queue that has `groups`.
            content_encoding: how the body is compressed, such as ``gzip``; the client compresses nothing itself.
        """
        found = given(body)
        key = requests.fresh_key() if key is None and self._keys else key
        type = content_type or found.content_type
        message = Outgoing(found.data, type, delay, ttl, attributes or {}, key, priority, at, group, content_encoding)
        with self._spans.sending(queue) as sending:
            published = await self._run(requests.publish(queue, message, found.source, sending.headers))
            sending.stored(published.id)
        return published

    async def publish_many(self, queue: str, messages: Iterable[Outgoing | bytes | str]) -> list[Outcome]:
        """Publish messages in batches, each one barrier. An outcome for each, in their order: look at its `ok`."""
        found: list[Outcome] = []
        for batch in cut(message if isinstance(message, Outgoing) else Outgoing(message) for message in messages):
            with self._spans.sending(queue, len(batch)) as sending:
                publishing = PublishBatch(queue, batch, keys=self._keys, trace=sending.headers)
                outcomes = await self._publish_batch(publishing)
                sending.done(outcomes)
            found.extend(outcomes)
        return found

    async def fetch(self, queue: str, *, wait: Duration = 0.0, visibility: Duration | None = None) -> Received | None:
        """Lease the next message; None when there is none.

        Args:
            queue: where from.
            wait: seconds to wait for one, up to 3,600.
            visibility: length of the lease in seconds; None for the queue's own.
        """
        with self._spans.receiving(queue) as receiving:
            message = await self._run(requests.fetch(queue, wait, visibility))
            receiving.got(message)
        return message

    async def fetch_many(
        self, queue: str, limit: int, *, wait: Duration = 0.0, visibility: Duration | None = None
    ) -> tuple[Received, ...]:
        """Lease up to `limit` messages, of what is there."""
        with self._spans.receiving(queue) as receiving:
            messages = await self._run(requests.fetch_many(queue, limit, wait, visibility))
            receiving.got(*messages)
        return messages

    @contextlib.asynccontextmanager
    async def stream(
        self, queue: str, *, wait: Duration = 0.0, visibility: Duration | None = None
    ) -> AsyncIterator[AsyncStream | None]:
        """Lease the next message and read its body chunk by chunk, inside this context."""
        call = requests.fetch_head(queue, wait, visibility)
        with self._spans.receiving(queue) as receiving:
            response, head = await self._begin(call)
            receiving.got(head)
        if head is None:
            await response.aclose()
            yield None
            return
        stream = AsyncStream(head, response, self.access.url)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def take(self, queue: str) -> Received | None:
        """Fetch and remove in one step, at most once: if the answer is lost, so is the message."""
        with self._spans.receiving(queue) as receiving:
            message = await self._run(requests.take(queue))
            receiving.got(message)
        return message

    show = method_for(requests.show)
    peek = method_for(requests.peek)

    def browse(self, queue: str, *, state: str = "ready") -> AsyncBrowseIterator:
        """Every message that is there, page by page."""
        return AsyncBrowseIterator(requests.peek(queue, state=state), self._run, queue)

    async def remove(self, message: Head) -> None:
        """Remove a message for good. One with a receipt only while that delivery holds it.

        Raises:
            LeaseLost: the lease ran out; the message is, or was, leased by another.
            NotFound: it is not there.
        """
        with self._spans.settling("ack", message.queue, [message]):
            await self._run(requests.remove(message.queue, message.id, message.receipt))

    async def remove_many(self, queue: str, messages: Sequence[str | Head]) -> list[Outcome]:
        """Remove messages by id or by delivery. An outcome for each: 404 is one that is gone already."""
        found: list[Outcome] = []
        for start in range(0, len(messages), requests.LONGEST_BATCH):
            batch = messages[start : start + requests.LONGEST_BATCH]
            with self._spans.settling("ack", queue, batch):
                outcomes = await self._run(requests.remove_batch(queue, batch))
            found.extend(outcomes)
        return found

    extend = method_for(requests.extend)

    async def requeue(self, message: Head, delay: Duration | None = 0.0, reason: str = "") -> None:
        """Give a leased message back.

        Args:
            message: as it was fetched.
            delay: seconds before it can be fetched again; None for as long as its queue says of failures.
            reason: why the work on it failed; told when it dies, the first 200 characters.

        Raises:
            LeaseLost: the lease ran out; the message is, or was, leased by another.
            Conflict: the lease ran out.
        """
        with self._spans.settling("nack", message.queue, [message]):
            await self._run(requests.requeue(message.queue, message.id, message.receipt, delay, reason))

    reschedule = method_for(requests.reschedule)

    @contextlib.asynccontextmanager
    async def handling(
        self, message: Head, *, max_handling: Duration = MAX_HANDLING_SECONDS
    ) -> AsyncIterator[AsyncLease]:
        """Remove the message when the block ends well, give it back when it raises. Meanwhile its lease is renewed.

        An error is a failure: the message comes back after the delay that its queue's settings say, and the error's
        text is kept. Where the block is cancelled, or the program ended, it comes back at once. A block that raises
        :class:`~mq.client.errors.Requeue` says by itself what becomes of the message, and ends without an error.

        Args:
            message: as it was fetched.
            max_handling: seconds after which the lease is renewed no more.

        Raises:
            LeaseLost: the lease was lost, or `max_handling` was over, before the message could be removed.
        """
        async with AsyncLease(message, self._renew, duration("max_handling", max_handling)) as lease:
            try:
                with self._spans.processing(message), lease.guard():
                    yield lease
            except Requeue as wish:
                await self.requeue(message, wish.delay, wish.reason)
                return
            except Exception as error:
                await self._give_back(message, None, f"{type(error).__name__}: {error}")
                raise
            except BaseException:
                await self._give_back(message, 0.0)
                raise
            await self.remove(message)  # where the lease was thought lost, and is not, the work is done all the same

    @contextlib.asynccontextmanager
    async def renewing(
        self, message: Head, *, max_handling: Duration = MAX_HANDLING_SECONDS
    ) -> AsyncIterator[AsyncLease]:
        """Renew the lease of a message while the block runs, and leave it leased. As :meth:`handling` else."""
        async with AsyncLease(message, self._renew, duration("max_handling", max_handling)) as lease:
            with lease.guard():
                yield lease
            lease.check()

    @contextlib.asynccontextmanager
    async def receive(
        self,
        queue: str,
        *,
        wait: Duration = 0.0,
        visibility: Duration | None = None,
        max_handling: Duration = MAX_HANDLING_SECONDS,
    ) -> AsyncIterator[Received | None]:
        """Fetch a message and handle it inside this context, as :meth:`handling` does."""
        message = await self.fetch(queue, wait=wait, visibility=visibility)
        if message is None:
            yield None
            return
        async with self.handling(message, max_handling=max_handling):
            yield message

    def consume(
        self, queue: str, *, wait: Duration = CONSUME_WAIT_SECONDS, visibility: Duration | None = None
    ) -> AsyncConsumeIterator:
        """Message after message, for ever. Each is leased: handle it with :meth:`handling`."""
        return AsyncConsumeIterator(partial(self.fetch, queue, wait=wait, visibility=visibility))

    contains = method_for(requests.contains)
    purge = method_for(requests.purge)
    redrive = method_for(requests.redrive)
    stats = method_for(requests.stats)
    cluster = method_for(requests.cluster)
    drain_node = method_for(requests.drain_node)
    replace_node = method_for(requests.replace_node)
    users = method_for(requests.users)
    put_user = method_for(requests.put_user)
    delete_user = method_for(requests.delete_user)
    rates = method_for(requests.rates)
    queue_rates = method_for(requests.queue_rates)
    connections = method_for(requests.connections)
    consumers = method_for(requests.consumers)
    batch_consumers = method_for(requests.batch_consumers)
    forget_consumer = method_for(requests.forget_consumer)
    close_connection = method_for(requests.close_connection)
    put_schedule = method_for(requests.put_schedule)
    schedule = method_for(requests.schedule)
    schedules = method_for(requests.schedules)
    delete_schedule = method_for(requests.delete_schedule)
    logging = method_for(requests.logging)
    change_logging = method_for(requests.change_logging)
    clock = method_for(requests.clock)
    trust_clock = method_for(requests.trust_clock)

    async def ready(self) -> bool:
        """Whether the daemon's store takes changes."""
        try:
            return await self._run(requests.ready())
        except Unavailable:
            return False

    async def _give_back(self, message: Head, delay: Duration | None, reason: str = "") -> None:
        call = requests.requeue(message.queue, message.id, message.receipt, delay, reason)
        settling = self._spans.settling("nack", message.queue, [message])
        # If this fails, the lease ends by itself.
        with contextlib.suppress(ClientError), anyio.move_on_after(float(GIVING_BACK.patience), shield=True), settling:
            await self._run(call, GIVING_BACK)

    async def _renew(self, message: Head, seconds: float, limit: float) -> None:
        await self._run(replace(requests.extend(message, seconds), timeout=limit), ONCE)

    async def _publish_batch(self, publishing: PublishBatch) -> list[Outcome]:
        if publishing.only is not None:
            return [await self._publish_alone(publishing.queue, publishing.only, publishing.trace)]
        tries = Tries(publishing.call(), self._retry)
        try:
            while publishing.took(await self._run(publishing.call())):
                pause = tries.after_refusals()
                if pause is None:
                    break
                await anyio.sleep(pause)
        except TooLarge:
            left, right = publishing.halves()
            return await self._publish_batch(left) + await self._publish_batch(right)
        return publishing.outcomes()

    async def _publish_alone(self, queue: str, message: Outgoing, trace: requests.Headers) -> Outcome:
        try:
            published = await self._run(requests.publish(queue, message, trace=trace))
        except Refused as error:
            return outcome_alone(error)
        return outcome_alone(published)

    async def _run(self, call: Call[T], retry: Retry | None = None) -> T:
        """The call's result, after as many tries as it may have."""
        response, result = await self._begin(call, retry, stream=False)
        await response.aclose()
        return result

    async def _begin(
        self, call: Call[T], retry: Retry | None = None, *, stream: bool = True
    ) -> tuple[httpx.Response, T]:
        """The response that counts, and what it means. With `stream` its body is still to be read and closed."""
        tries = Tries(call, retry or self._retry)
        while True:
            try:
                response, body = await self._send(call, stream=stream)
            except httpx.RequestError as error:
                pause = tries.after_failure(is_sent=is_sent(error))
                if pause is None:
                    raise translated(error, self.access.url, perhaps_served=tries.is_unsure) from error
            else:
                answer = answer_of(response, body, anyio.current_time())
                pause = tries.after_answer(answer)
                if pause is None:
                    return response, await self._result(call, response, answer, tries)
            await anyio.sleep(pause)

    async def _result(self, call: Call[T], response: httpx.Response, answer: Answer, tries: Tries) -> T:
        try:
            return call.result(answer, repeated=tries.perhaps_served, is_unsure=tries.is_unsure)
        except ClientError:
            await response.aclose()
            raise

    async def _send(self, call: Call[Any], *, stream: bool) -> tuple[httpx.Response, bytes]:
        content = call.body.open() if isinstance(call.body, Source) else call.body
        # async only: httpx's asynchronous client takes no plain chunks
        if not isinstance(content, bytes | AsyncIterable):
            content = asynchronous(content)

        response = await self._http.send(self._http.build_request(**self.access.request(call, content)), stream=True)
        try:
            if stream and response.status_code == httpx.codes.OK:
                return response, b""
            if response.is_stream_consumed:  # its transport has read it
                return response, response.content
            # As it came: httpx would decompress the body of a message that was published with Content-Encoding.
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
            return response, bytes(body)
        except BaseException:
            await response.aclose()
            raise
