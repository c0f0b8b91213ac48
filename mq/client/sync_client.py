"""The client for threads: every verb waits for its answer. What is sent and what answers mean is in
:mod:`mq.client.requests`; here are the connection, the pauses, and the public verbs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from mq.client import requests
from mq.client.batches import Publishing, cut, outcome_alone
from mq.client.bodies import SyncBody, given
from mq.client.calls import Answer, Call, Source
from mq.client.errors import ClientError, Refused, TooLarge, Unavailable
from mq.client.retries import CONSUME_WAIT_SECONDS, GIVING_BACK, PAGE, Retry, Tries
from mq.client.values import (
    Head,
    Outcome,
    Outgoing,
    Page,
    Published,
    Queue,
    QueueSettings,
    Received,
    Redriven,
)
from mq.client.wire import Access, answer_of, is_sent, translated

T = TypeVar("T")


class Stream:
    """A leased message whose body is still to be read, once: iterate over its chunks.

    Attributes:
        message: all but the body.
    """

    def __init__(self, message: Head, response: httpx.Response, url: str) -> None:
        self.message = message
        self._response = response
        self._url = url

    def __iter__(self) -> Iterator[bytes]:
        """The chunks.

        Raises:
            Interrupted: the connection broke, or the daemon found the message damaged.
        """
        try:
            yield from self._response.iter_raw()
        except httpx.RequestError as error:
            raise translated(error, self._url) from error


class Client:
    """Speaks to one daemon. Threads may share it. Close it, or use it as a context manager.

    Args:
        access: where the daemon is and who asks; the one on 127.0.0.1:8080 when not given.
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.access = Access(url=access) if isinstance(access, str) else access or Access()
        self._retry = retry or Retry()
        self._keys = keys
        self._http = httpx.Client(transport=transport, **self.access.options())

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_queue(self, queue: str, store: str | None = None) -> bool:
        """Make a queue. True when it is new.

        Args:
            queue: its name.
            store: where it lives: ``disk``, ``memory``, or ``cluster``, which is highly available; None for
                wherever it is already, else on disk.

        Raises:
            Conflict: it is there already, in another place; or there is no cluster.
        """
        return self._run(requests.create_queue(queue, store))

    def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        self._run(requests.delete_queue(queue))

    def queue(self, queue: str) -> Queue:
        """A queue's settings and what is in it."""
        return self._run(requests.queue_info(queue))

    def queues(self) -> tuple[Queue, ...]:
        """All queues."""
        return self._run(requests.queues())

    def configure(self, queue: str, **settings: Unpack[QueueSettings]) -> None:
        """Change settings of a queue, all or none; None sets one back to its default."""
        self._run(requests.configure(queue, settings))

    def publish(
        self,
        queue: str,
        body: SyncBody,
        *,
        content_type: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
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
        """
        found = given(body)
        key = requests.fresh_key() if key is None and self._keys else key
        message = Outgoing(found.data, content_type or found.content_type, delay, ttl, attributes or {}, key)
        return self._run(requests.publish(queue, message, found.source))

    def publish_many(self, queue: str, messages: Iterable[Outgoing | bytes | str]) -> list[Outcome]:
        """Publish messages in batches, each one barrier. An outcome for each, in their order: look at its `ok`."""
        found: list[Outcome] = []
        for batch in cut(message if isinstance(message, Outgoing) else Outgoing(message) for message in messages):
            found.extend(self._publish_batch(Publishing(queue, batch, keys=self._keys)))
        return found

    def fetch(self, queue: str, *, wait: float = 0.0, visibility: float | None = None) -> Received | None:
        """Lease the next message; None when there is none.

        Args:
            queue: where from.
            wait: seconds to wait for one, up to 3,600.
            visibility: length of the lease in seconds; None for the queue's own.
        """
        return self._run(requests.fetch(queue, wait, visibility))

    def fetch_many(
        self, queue: str, limit: int, *, wait: float = 0.0, visibility: float | None = None
    ) -> tuple[Received, ...]:
        """Lease up to `limit` messages, of what is there."""
        return self._run(requests.fetch_many(queue, limit, wait, visibility))

    @contextlib.contextmanager
    def stream(self, queue: str, *, wait: float = 0.0, visibility: float | None = None) -> Iterator[Stream | None]:
        """Lease the next message and read its body chunk by chunk, inside this context."""
        call = requests.fetch_head(queue, wait, visibility)
        response, head = self._begin(call)
        try:
            yield None if head is None else Stream(head, response, self.access.url)
        finally:
            response.close()

    def take(self, queue: str) -> Received | None:
        """Fetch and remove in one step, at most once: if the answer is lost, so is the message."""
        return self._run(requests.take(queue))

    def show(self, queue: str, id: str) -> Received:
        """A message, left where it is."""
        return self._run(requests.show(queue, id))

    def peek(self, queue: str, limit: int = PAGE, *, state: str = "ready", after: str | None = None) -> Page:
        """Messages in their order, left where they are.

        Args:
            queue: where.
            limit: at most so many; a page of long messages has fewer.
            state: "ready", "leased" or "delayed".
            after: an id; what comes behind it.
        """
        return self._run(requests.peek(queue, limit, state, after))

    def browse(self, queue: str, *, state: str = "ready") -> Iterator[Received]:
        """Every message that is there, page by page."""
        page = self.peek(queue, state=state)
        yield from page.messages
        while page.next is not None:
            page = self._run(requests.peek_at(queue, page.next))
            yield from page.messages

    def remove(self, message: Head) -> None:
        """Remove a message for good. One with a receipt only while that delivery holds it.

        Raises:
            LeaseLost: the lease ran out; the message is, or was, somebody else's.
            NotFound: it is not there.
        """
        self._run(requests.remove(message.queue, message.id, message.receipt))

    def remove_many(self, queue: str, messages: Sequence[str | Head]) -> list[Outcome]:
        """Remove messages by id or by delivery. An outcome for each: 404 is one that is gone already."""
        found: list[Outcome] = []
        for start in range(0, len(messages), requests.LONGEST_BATCH):
            batch = messages[start : start + requests.LONGEST_BATCH]
            outcomes = self._run(requests.remove_batch(queue, batch))
            found.extend(outcomes)
        return found

    def extend(self, message: Head, visibility: float) -> None:
        """Let the lease of a message end in `visibility` seconds from now.

        Raises:
            LeaseLost: it ran out, and the message is, or was, somebody else's.
            Conflict: it ran out.
        """
        self._run(requests.extend(message.queue, message.id, message.receipt, visibility))

    def requeue(self, message: Head) -> None:
        """Give a leased message back now.

        Raises:
            LeaseLost: the lease ran out; the message is, or was, somebody else's.
            Conflict: the lease ran out.
        """
        self._run(requests.extend(message.queue, message.id, message.receipt, 0))

    @contextlib.contextmanager
    def handling(self, message: Head) -> Iterator[None]:
        """Remove the message when the block ends well, give it back when it raises."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(ClientError):  # its lease ends by itself
                self._run(requests.extend(message.queue, message.id, message.receipt, 0), GIVING_BACK)
            raise
        self.remove(message)

    @contextlib.contextmanager
    def receive(self, queue: str, *, wait: float = 0.0, visibility: float | None = None) -> Iterator[Received | None]:
        """Fetch a message and handle it inside this context: removed at its end, given back when it raises."""
        message = self.fetch(queue, wait=wait, visibility=visibility)
        if message is None:
            yield None
            return
        with self.handling(message):
            yield message

    def consume(
        self, queue: str, *, wait: float = CONSUME_WAIT_SECONDS, visibility: float | None = None
    ) -> Iterator[Received]:
        """Message after message, for ever. Each is leased: handle it with :meth:`handling`."""
        while True:
            message = self.fetch(queue, wait=wait, visibility=visibility)
            if message is not None:
                yield message

    def contains(self, queue: str, body: bytes) -> str | None:
        """The id of the message of that body in a unique queue; None when it has none."""
        return self._run(requests.contains(queue, body))

    def purge(self, queue: str) -> int:
        """Remove all messages that nobody holds. How many that were."""
        return self._run(requests.purge(queue))

    def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        limit: int = requests.LONGEST_BATCH,
        ids: Sequence[str] | None = None,
    ) -> Redriven:
        """Move up to `limit` messages back to the queues they died in, or to `to`; with `ids` only these."""
        return self._run(requests.redrive(queue, to, limit, ids))

    def stats(self) -> Mapping[str, Any]:
        """Counts and rates of the daemon."""
        return self._run(requests.stats())

    def ready(self) -> bool:
        """Whether the daemon's store takes changes."""
        try:
            return self._run(requests.ready())
        except Unavailable:
            return False

    def _publish_batch(self, publishing: Publishing) -> list[Outcome]:
        if publishing.only is not None:
            return [self._publish_alone(publishing.queue, publishing.only)]
        tries = Tries(publishing.call(), self._retry)
        try:
            while publishing.took(self._run(publishing.call())):
                pause = tries.after_refusals()
                if pause is None:
                    break
                time.sleep(pause)
        except TooLarge:
            left, right = publishing.halves()
            return [*self._publish_batch(left), *self._publish_batch(right)]
        return publishing.outcomes()

    def _publish_alone(self, queue: str, message: Outgoing) -> Outcome:
        try:
            published = self._run(requests.publish(queue, message))
        except Refused as error:
            return outcome_alone(error)
        return outcome_alone(published)

    def _run(self, call: Call[T], retry: Retry | None = None) -> T:
        """The call's result, after as many tries as it may have."""
        response, result = self._begin(call, retry, stream=False)
        response.close()
        return result

    def _begin(self, call: Call[T], retry: Retry | None = None, *, stream: bool = True) -> tuple[httpx.Response, T]:
        """The response that counts, and what it means. With `stream` its body is still to be read and closed."""
        tries = Tries(call, retry or self._retry)
        while True:
            try:
                response = self._send(call, stream=stream)
            except httpx.RequestError as error:
                pause = tries.after_failure(is_sent=is_sent(error))
                if pause is None:
                    raise translated(error, self.access.url) from error
            else:
                answer = answer_of(response)
                pause = tries.after_answer(answer)
                if pause is None:
                    return response, self._result(call, response, answer, repeated=tries.perhaps_served)
            time.sleep(pause)

    def _result(self, call: Call[T], response: httpx.Response, answer: Answer, *, repeated: bool) -> T:
        try:
            return call.result(answer, repeated=repeated)
        except ClientError:
            response.close()
            raise

    def _send(self, call: Call[Any], *, stream: bool) -> httpx.Response:
        content = call.body.open() if isinstance(call.body, Source) else call.body
        response = self._http.send(self._http.build_request(**self.access.request(call, content)), stream=True)
        try:
            if not stream or response.status_code != httpx.codes.OK:
                response.read()
        except BaseException:
            response.close()
            raise
        return response
