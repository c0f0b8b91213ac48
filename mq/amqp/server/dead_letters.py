"""Dead letters that go through an exchange: from the queue in which they died to the queues behind its arguments.

A dead letter carries its history as RabbitMQ writes it: the header ``x-death``, latest death first, and three headers
of the first death. A client may have written these headers itself. Entries in them that make no sense are left out;
where the whole table of headers is malformed, the message dies without a history.
"""

from __future__ import annotations

import datetime
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import trio

from mq import turns
from mq.amqp.model.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from mq.amqp.model.declared import Queue
from mq.amqp.model.topology import Topology
from mq.amqp.server.copies import Copies, Copy
from mq.amqp.server.message_codec import Publication, Publishable, arrival_of, hidden_keys_of
from mq.amqp.wire import tables
from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties, remembered
from mq.errors import CorruptMessage, MQError, NoSuchQueue, QueueFull, StorageError
from mq.message import Body, BytesBody, Message, MessageId, QueueName

logger = logging.getLogger("mq.amqp")

DEATHS: Final = "x-death"
FIRST: Final = ("queue", "reason", "exchange")
"""What is kept of the first death, each as ``x-first-death-...``."""
_FIRST_DEATH: Final = tuple(f"x-first-death-{key}" for key in FIRST)

_MOST_BYTES_TOGETHER: Final = 4 << 20
"""Bytes of bodies after which the messages are sent on before others are read."""
_MOST_PARTLY_SENT: Final = 10_000
"""Messages of which some copies found no room and others did. With more, the oldest may be sent twice to a queue."""
_NEVER: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EXPIRATION: Final = "original-expiration"


class Reason(StrEnum):
    """Why a message died."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


REASONS: Final = {
    "expired": Reason.EXPIRED,
    "dropped": Reason.MAXLEN,
    "rejected": Reason.REJECTED,
    "receives": Reason.DELIVERY_LIMIT,
    "delivery_limit": Reason.DELIVERY_LIMIT,
}
"""The broker's word for a death -> AMQP's."""


class DeadLetterRouter:
    """Sends dead letters on, to the exchange that the arguments of their queue name.

    Args:
        queue_of: the queue of AMQP behind a name of the broker's.
        date_ns: the date, nanoseconds since 1970.
    """

    def __init__(
        self,
        copies: Copies,
        topology: Topology,
        queue_of: Callable[[QueueName], Queue | None],
        date_ns: Callable[[], int],
    ) -> None:
        self._into = copies
        self._topology = topology
        self._queue_of = queue_of
        self._date_ns = date_ns
        self._partly_sent: dict[MessageId, set[QueueName]] = {}  # to which of their queues, until they are sent to all

    def takes(self, queue: str) -> bool:
        """Whether what dies in a queue goes through an exchange."""
        found = self._queue_of(QueueName(queue))
        return found is not None and DEAD_LETTER_EXCHANGE in found.arguments

    async def dead_letter(self, dead: Sequence[tuple[Message, str]]) -> list[MQError | None]:
        """Send on messages that died in their queues, before the broker removes them there. Closes their bodies.

        Returns:
            For each message, in order, why it cannot be sent on now and must stay where it is, or None.
        """
        errors: list[MQError | None] = [None] * len(dead)
        left = deque(enumerate(dead))
        try:
            while left:
                first, _ = left[0]
                try:
                    copies = await self._first_copies(left)
                except StorageError as error:  # where the exchange leads cannot be found out now
                    errors[first:] = [error] * (len(dead) - first)
                    break
                refused = await self._send(copies, [message.id for message, _ in dead])
                for number, reason in refused.items():
                    errors[number] = reason
        finally:
            for _, (message, _) in left:
                await _close(message.body)
        for (message, _), why in zip(dead, errors, strict=True) if self._partly_sent else ():
            if why is None:  # it is removed next
                self._partly_sent.pop(message.id, None)
        return errors

    async def _first_copies(self, left: deque[tuple[int, tuple[Message, str]]]) -> list[Copy]:
        """The copies of the first messages, which are taken out: as many as fit in memory. Each has the number of its
        message."""
        copies: list[Copy] = []
        settled: dict[str, Queue | None] = {}
        size, turn = 0, turns.of_run()
        while left and size < _MOST_BYTES_TOGETHER:
            if turn.spend(turns.FRAME):
                await turn.end()
            number, (message, reason) = left[0]
            if message.queue not in settled:
                queue = settled[message.queue] = self._queue_of(QueueName(message.queue))
                if queue is not None:
                    await self._settle(queue)
            found = await self._copies(message, settled[message.queue], REASONS.get(reason))
            copies += [copy._replace(number=number) for copy in found]
            size += message.body.size
            left.popleft()
            await _close(message.body)
        return copies

    async def _copies(self, message: Message, queue: Queue | None, reason: Reason | None) -> list[Copy]:
        if queue is None or reason is None:
            return []
        attributes = message.properties.attributes
        try:
            body = message.body.data if isinstance(message.body, BytesBody) else await message.body.read()
            came = arrival_of(None, message.id, queue.name, attributes, body, redelivered=False)
        except CorruptMessage as error:
            logger.error("dead letter %s from queue %s was lost: %s", message.id, queue.name, error)
            return []
        properties = remembered(_parsed, came.properties)(came.properties)
        hidden = hidden_keys_of(attributes)
        publication = Publication(came.exchange, came.routing_key, properties, body, hidden_keys=hidden)
        has_it = self._partly_sent.get(message.id, ())
        copies = [copy for copy in self._sent_on(queue, publication, reason) if copy.queue.key not in has_it]
        was_in_memory = isinstance(message.body, BytesBody) and not (properties.is_persistent and queue.is_lasting)
        # A fanout of dead letters would take more memory than they give back.
        if len(copies) == 1 and was_in_memory and not has_it:
            return [copies[0]._replace(replaces=True)]
        return copies

    async def _send(self, copies: Sequence[Copy], ids: Sequence[MessageId]) -> dict[int, MQError]:
        """Store copies: by the number of its message, why one cannot be stored now. The message comes again then, and
        goes only to those of its queues that do not have it."""
        refused = {(copy.number, copy.queue.key): error for copy, error in await self._failed(copies)}
        errors = {number: error for (number, _), error in refused.items()}
        for copy in copies if errors else ():
            id, queue = ids[copy.number], copy.queue.key
            if copy.number in errors and (copy.number, queue) not in refused:
                self._partly_sent.setdefault(id, set()).add(queue)
                if len(self._partly_sent) > _MOST_PARTLY_SENT:
                    del self._partly_sent[next(iter(self._partly_sent))]
        return errors

    async def send(self, queue: Queue, publication: Publishable, reason: Reason) -> None:
        """Send one message on. Without a target, or where it would go in circles, it is dropped.

        Raises:
            StorageError: not now.
        """
        await self._settle(queue)
        for _, error in await self._failed(self._sent_on(queue, publication, reason)):
            raise error

    async def _settle(self, queue: Queue) -> None:
        exchange = queue.arguments.get(DEAD_LETTER_EXCHANGE)
        if exchange is not None:
            await self._into.catch_up(queue.vhost, exchange)

    def _sent_on(self, queue: Queue, publication: Publishable, reason: Reason) -> list[Copy]:
        exchange = queue.arguments.get(DEAD_LETTER_EXCHANGE)
        if exchange is None:
            return []
        key, shown, hidden = publication.routing_key, publication.properties.copied_to()[0], publication.hidden_keys
        keys = [key, *shown]
        if DEAD_LETTER_ROUTING_KEY in queue.arguments:  # it stands for all of them
            key, shown, hidden = queue.arguments[DEAD_LETTER_ROUTING_KEY], (), ()
        seconds = self._date_ns() // 1_000_000_000
        die = remembered(_died, publication.properties.raw)
        properties = die(publication.properties, queue.name, reason, publication.exchange, tuple(keys), seconds)
        if len(keys) > 1 and not shown:
            properties = properties.changed({"CC": None})
        try:
            targets = self._topology.route(queue.vhost, exchange, key, properties.headers, shown + hidden)
        except Refusal as refusal:
            logger.warning("dead letters from queue '%s' are being dropped: %s", queue.name, refusal)
            return []
        dead = Publication(exchange, key, properties, publication.body, hidden_keys=hidden)
        return [
            Copy(dead, target, is_dead_letter=True)
            for target in targets
            if not goes_in_circles(properties, target.name)
        ]

    async def _failed(self, copies: Sequence[Copy]) -> list[tuple[Copy, MQError]]:
        """Store copies: those that have to be tried again, and why. One whose queue is gone, or full, is dropped."""
        return [
            (copy, error)
            for copy, error in (await self._into.store(copies) if copies else ())
            if error is not None and not isinstance(error, QueueFull | NoSuchQueue)
        ]


async def _close(body: Body) -> None:
    if not isinstance(body, BytesBody):  # bytes in memory have nothing to close
        with trio.CancelScope(shield=True):
            await body.aclose()


@lru_cache(maxsize=64)  # a publisher's next message mostly has the same properties
def _parsed(raw: bytes) -> BasicProperties:
    return BasicProperties(raw)


def deaths_of(properties: BasicProperties) -> list[Mapping[str, Any]]:
    """The deaths of a message, the latest first."""
    try:
        found = properties.headers().get(DEATHS)
    except Refusal:
        return []
    return [_clean(death) for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def _clean(death: Mapping[str, Any]) -> dict[str, Any]:
    """A death with every field, each of its type, so that it can be encoded again."""
    count, time, keys = death.get("count"), death.get("time"), death.get("routing-keys")
    clean: dict[str, Any] = {name: _text(death.get(name)) for name in FIRST}
    clean["count"] = count if isinstance(count, int) and 0 < count < 2**62 else 0
    clean["time"] = time if isinstance(time, datetime.datetime) else _NEVER
    clean["routing-keys"] = [_text(key) for key in keys] if isinstance(keys, list) else []
    return clean | ({_EXPIRATION: _text(death[_EXPIRATION])} if _EXPIRATION in death else {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def died(
    properties: BasicProperties,
    queue: str,
    reason: Reason,
    exchange: str,
    routing_keys: Sequence[str],
    time: datetime.datetime,
) -> BasicProperties:
    """The properties of a message with one more death. They have no expiration any more."""
    expires_no_more = frozenset({"expiration"})
    try:
        known = properties.headers()
    except Refusal:
        return properties.changed({}, expires_no_more)
    if not any(name in known for name in (DEATHS, *_FIRST_DEATH)):
        write = remembered(_first_death, properties.raw)
        first = write(queue, reason, exchange, tuple(routing_keys), time, properties.text("expiration"))
        return properties.with_more(*first, expires_no_more)
    deaths = deaths_of(properties)
    same = next((death for death in deaths if (death["queue"], death["reason"]) == (queue, reason)), None)
    if same is None:
        death = _new_death(queue, reason, exchange, routing_keys, time, properties.text("expiration"))
    else:
        death = {**same, "count": same["count"] + 1}
    headers: dict[str, Any] = {DEATHS: [death, *(one for one in deaths if one is not same)]}
    if DEATHS not in known:  # what a client has written of a first death does not count without a history
        headers |= {f"x-first-death-{key}": death[key] for key in FIRST}
    return properties.changed(headers, expires_no_more)


def _new_death(
    queue: str,
    reason: Reason,
    exchange: str,
    routing_keys: Sequence[str],
    time: datetime.datetime,
    expiration: str,
) -> dict[str, Any]:
    death: dict[str, Any] = {"queue": queue, "reason": reason.value, "exchange": exchange, "count": 1, "time": time}
    return death | {"routing-keys": list(routing_keys)} | ({_EXPIRATION: expiration} if expiration else {})


@lru_cache(maxsize=64)  # messages that die in one second and one queue mostly share it
def _first_death(
    queue: str, reason: Reason, exchange: str, routing_keys: tuple[str, ...], time: datetime.datetime, expiration: str
) -> tuple[bytes, Mapping[str, Any]]:
    """The headers of a message that dies for the first time: as entries of a table, and decoded."""
    death = _new_death(queue, reason, exchange, routing_keys, time, expiration)
    headers: dict[str, Any] = {DEATHS: [death]} | {f"x-first-death-{key}": death[key] for key in FIRST}
    return tables.encoded(headers), headers


@lru_cache(maxsize=64)
def _died(
    properties: BasicProperties,
    queue: str,
    reason: Reason,
    exchange: str,
    routing_keys: tuple[str, ...],
    seconds: int,
) -> BasicProperties:
    """As :func:`died`, in a second since 1970."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return died(properties, queue, reason, exchange, routing_keys, time)


def goes_in_circles(properties: BasicProperties, queue: str) -> bool:
    """Whether a dead letter comes back to a queue that it died in, without a rejection on the way. Sent on, it would
    go round for ever."""
    try:
        deaths = properties.headers().get(DEATHS)
    except Refusal:
        return False
    # A client may have written them: nothing in them need be of the right type.
    reasons = []
    for death in deaths if isinstance(deaths, list) else ():
        if isinstance(death, dict):
            reasons.append(death.get("reason"))
            if death.get("queue", "") == queue:
                return Reason.REJECTED not in reasons
    return False
