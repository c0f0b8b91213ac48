"""The client for asyncio and Trio: the connection, the pauses and the public verbs.

What is sent and what answers mean is in :mod:`mq.client.requests`.

``tools/sync_client.py`` generates the client for threads (:mod:`mq.client.sync_client`) from this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import anyio
import httpx

from mq.client import requests
from mq.client.calls import Answer, AsyncBody, Call, Source, asynchronous, given
from mq.client.errors import ClientError, Refused, Requeue, TooLarge, Unavailable
from mq.client.leases import MAX_HANDLING_SECONDS, AsyncLease
from mq.client.requests import PublishBatch, cut, outcome_alone
from mq.client.retries import CONSUME_WAIT_SECONDS, GIVING_BACK, ONCE, PAGE, Retry, Tries
from mq.client.spans import Spans
from mq.client.transport import Access, answer_of, is_sent, translated
from mq.client.values import (
    Duration,
    Head,
    Outcome,
    Outgoing,
    Page,
    Published,
    Queue,
    QueueSettings,
    Received,
    Redriven,
    duration,
)

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

    async def create_queue(self, queue: str, store: str | None = None) -> bool:
        """Make a queue. True when it is new.

        Args:
            queue: its name.
            store: where it lives: ``disk``, ``memory``, or ``cluster``, which is highly available; None for
                wherever it is already, else on disk.

        Raises:
            Conflict: it is there already, in another place; or there is no cluster.
        """
        return await self._run(requests.create_queue(queue, store))

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        await self._run(requests.delete_queue(queue))

    async def queue(self, queue: str) -> Queue:
        """A queue's settings and what is in it."""
        return await self._run(requests.queue_info(queue))

    async def queues(self) -> tuple[Queue, ...]:
        """All queues."""
        return await self._run(requests.queues())

    async def configure(self, queue: str, **settings: Unpack[QueueSettings]) -> None:
        """Change settings of a queue, all or none; None sets one back to its default."""
        await self._run(requests.configure(queue, settings))

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

    async def show(self, queue: str, id: str) -> Received:
        """A message, left where it is."""
        return await self._run(requests.show(queue, id))

    async def peek(self, queue: str, limit: int = PAGE, *, state: str = "ready", after: str | None = None) -> Page:
        """Messages in their order, left where they are.

        Args:
            queue: where.
            limit: messages at the most; a page of long messages has fewer.
            state: "ready", "leased" or "delayed".
            after: an id; what comes behind it.
        """
        return await self._run(requests.peek(queue, limit, state, after))

    def browse(self, queue: str, *, state: str = "ready") -> AsyncBrowseIterator:
        """Every message that is there, page by page."""
        return AsyncBrowseIterator(requests.peek(queue, PAGE, state, None), self._run, queue)

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

    async def extend(self, message: Head, visibility: Duration) -> None:
        """Let the lease of a message end in `visibility` seconds from now.

        Raises:
            LeaseLost: it ran out, and the message is, or was, leased by another.
            Conflict: it ran out.
        """
        await self._run(requests.extend(message.queue, message.id, message.receipt, visibility))

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

    async def reschedule(
        self, queue: str, id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> None:
        """Change when a delayed message can be fetched. To cancel it, :meth:`remove` it.

        Args:
            queue: the queue.
            id: the message, as its publish told.
            delay: seconds from now; 0 for at once.
            at: the time instead; with its zone.

        Raises:
            Conflict: it is delayed no more: it can be fetched, or a consumer has it.
            NotFound: it is not there.
        """
        await self._run(requests.reschedule(queue, id, delay, at))

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

    async def contains(self, queue: str, body: bytes) -> str | None:
        """The id of the message of that body in a unique queue; None when it has none."""
        return await self._run(requests.contains(queue, body))

    async def purge(self, queue: str) -> int:
        """Remove all messages that are not leased. How many that were."""
        return await self._run(requests.purge(queue))

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        limit: int = requests.LONGEST_BATCH,
        ids: Sequence[str] | None = None,
    ) -> Redriven:
        """Move up to `limit` messages back to the queues they died in, or to `to`; with `ids` only these."""
        return await self._run(requests.redrive(queue, to, limit, ids))

    async def stats(self) -> Mapping[str, Any]:
        """Counts and rates of the daemon."""
        return await self._run(requests.stats())

    async def cluster(self) -> Mapping[str, Any]:
        """The cluster as this daemon sees it, as docs/cluster.md has it; ``node`` is empty where it is in none."""
        return await self._run(requests.cluster())

    async def drain_node(self, *, resume: bool = False) -> Mapping[str, Any]:
        """Drain this node of a cluster: it hands over mastership, and takes no new clients until it is stopped; with
        `resume` it takes clients again. Returns the same as :meth:`cluster`.

        Raises:
            Conflict: no other node could take over, or it is in no cluster.
        """
        return await self._run(requests.drain_node(resume))

    async def replace_node(self, node: str, address: str) -> Mapping[str, Any]:
        """Have this node of a cluster look for a neighbour at another address. Returns the same as :meth:`cluster`.

        Args:
            node: its name; it is no member now.
            address: ADDRESS:PORT where it will serve AMQP.

        Raises:
            Conflict: it is a member, or no neighbour of that name is known.
        """
        return await self._run(requests.replace_node(node, address))

    async def users(self) -> Mapping[str, Mapping[str, Any]]:
        """The users of this node's cluster by name, each as a table of a users file: it holds hashes and no secret.

        Raises:
            Conflict: this daemon is in no cluster, or takes no users.
        """
        return await self._run(requests.users())

    async def put_user(self, name: str, table: Mapping[str, Any]) -> None:
        """Make a user of the cluster, or replace one; in effect at all nodes that are members on return.

        Args:
            name: of the user.
            table: as docs/access.md has it.

        Raises:
            Conflict: the node's own file has one of that name, or this daemon is in no cluster.
        """
        await self._run(requests.put_user(name, table))

    async def delete_user(self, name: str) -> None:
        """Remove a user of the cluster, if there is one; no member lets that user in any more on return."""
        await self._run(requests.delete_user(name))

    async def rates(
        self, *, sort: str = "name", filter: str = "", skip: int = 0, limit: int = PAGE, history: bool = False
    ) -> Mapping[str, Any]:
        """Queues with what is in them and how much happens to them, as docs/http.md has it.

        Args:
            sort: "name", or what there should be most of: "ready", "leased", "delayed", "oldest", "publish", "deliver",
                "acknowledge", "redeliver", "expire", "dead_letter".
            filter: only queues whose names have this in them, in small or capital letters.
            skip: how many to pass over.
            limit: how many at the most.
            history: whether to tell the number of messages for each of the last 60 minutes.
        """
        return await self._run(requests.rates(sort, filter, skip, limit, history))

    async def queue_rates(self, queue: str) -> Mapping[str, Any]:
        """The rates of a queue, now and over the last hour."""
        return await self._run(requests.queue_rates(queue))

    async def connections(self, after: str | None = None) -> Mapping[str, Any]:
        """A page of the connections that are open at this daemon: ``open``, how many there are, ``connections``, the
        oldest first, and ``next``, to be given as `after` for the next page; None on the last one."""
        return await self._run(requests.connections(after))

    async def consumers(self, after: str | None = None) -> Mapping[str, Any]:
        """A page of ``consumers`` over AMQP, and of requests that wait for messages; the rest as of
        :meth:`connections`."""
        return await self._run(requests.consumers(after))

    async def batch_consumers(self) -> list[Mapping[str, Any]]:
        """The consumers that take batches, as queries of Spark do, in every queue that the user may consume: each with
        ``queue``, the queue's counts, and how far the consumer is."""
        return await self._run(requests.batch_consumers())

    async def forget_consumer(self, queue: str, name: str) -> None:
        """Forget a consumer of batches, and give back the messages that it has claimed.

        Args:
            queue: the queue's name.
            name: the consumer's. A name without a consumer changes nothing.

        Raises:
            NotFound: the queue does not exist.
        """
        await self._run(requests.forget_consumer(queue, name))

    async def close_connection(self, id: str) -> None:
        """End a connection.

        Raises:
            NotFound: none of that id is open.
        """
        await self._run(requests.close_connection(id))

    async def put_schedule(
        self,
        name: str,
        queue: str,
        message: Outgoing,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Duration | None = None,
        unless_waiting: bool = False,
    ) -> bool:
        """Publish a message regularly from now on; or change what, when and where.

        Args:
            name: of the schedule.
            queue: where its messages go.
            message: without a key and a time: the schedule gives these.
            cron: five fields, such as "0 3 * * *".
            zone: the time zone of that; UTC without.
            every: seconds between two messages, instead of a cron line.
            unless_waiting: publish nothing while the last message is still there.

        Returns:
            Whether it is new.

        Raises:
            BadRequest: when it is to be makes no sense.
            NotFound: the queue is not there.
            Conflict: this daemon keeps no schedules, or no more.
        """
        wanted = {"cron": cron, "zone": zone, "every": every, "unless_waiting": unless_waiting}
        return await self._run(requests.put_schedule(name, queue, message, wanted))

    async def schedule(self, name: str) -> Mapping[str, Any]:
        """A schedule with its ``message``, its ``next`` and its ``last`` instant, and the ``error`` of its last firing.

        Raises:
            NotFound: there is none of that name.
        """
        return await self._run(requests.schedule(name))

    async def schedules(self, after: str | None = None) -> Mapping[str, Any]:
        """A page of ``schedules`` without their messages, by name, and ``next``, to be given as `after` for the next
        page; None on the last one."""
        return await self._run(requests.schedules(after))

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; its messages stay.

        Raises:
            NotFound: there is none of that name.
        """
        await self._run(requests.delete_schedule(name))

    async def logging(self) -> Mapping[str, Any]:
        """How much the daemon logs: ``level``, and whether there is a line for each of the ``requests``."""
        return await self._run(requests.logging())

    async def change_logging(self, *, level: str | None = None, every_request: bool | None = None) -> Mapping[str, Any]:
        """Let the daemon log more, or less, until it ends; None is no change. As :meth:`logging`, from now on.

        Args:
            level: "debug", "info", "warning" or "error".
            every_request: whether each request over HTTP gets a line.
        """
        return await self._run(requests.change_logging(level, every_request))

    async def clock(self) -> Mapping[str, Any]:
        """What the daemon makes of the wall clock: ``wall``, ``date``, ``steady_seconds_ahead``, ``synchronised``, and
        ``doubt``, None where the clock is not in doubt."""
        return await self._run(requests.clock())

    async def trust_clock(self) -> Mapping[str, Any]:
        """End a doubt of the wall clock, which is right. As :meth:`clock`, from now on."""
        return await self._run(requests.trust_clock())

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
        call = requests.extend(message.queue, message.id, message.receipt, seconds)
        await self._run(replace(call, timeout=limit), ONCE)

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
