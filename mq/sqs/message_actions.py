"""Actions on messages: send, receive, delete, change a lease; one by one, and ten at a time."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Self

from mq import turns
from mq.access import Right
from mq.broker import Draft, Published, Removal
from mq.broker.bodies import close
from mq.broker.commit import Future
from mq.errors import CorruptMessage, MQError, NoSuchMessage, NotLeased, ReceiptMismatch
from mq.message import BytesBody, Message, MessageId, QueueName, shorten
from mq.sqs.actions import Action, ActionAnswer, ActionCall, LaterMembers, Members
from mq.sqs.attributes import (
    BY_CONTENT,
    LARGEST_MESSAGE,
    LONGEST,
    LONGEST_DELAY,
    LONGEST_LEASE,
    LONGEST_WAIT,
    PER_GROUP,
    SCOPE,
    WAIT,
    lease_seconds,
)
from mq.sqs.attributes import noted as noted_attribute
from mq.sqs.errors import SqsError, sqs_error
from mq.sqs.messages import (
    RECEIVE_COUNT,
    SYSTEM_ATTRIBUTES,
    TRACE,
    ReceiptHandle,
    Wanted,
    kept_attributes,
    md5,
    md5_of,
    read_attributes,
    read_body,
    read_system_attributes,
    read_token,
    sequence_number,
    shown_message,
    size_of,
)
from mq.sqs.names import is_fifo
from mq.sqs.notes import Notes
from mq.sqs.shapes import BLOB, SWITCH, TEXT, WHOLE, ListOf, MapOf, Shape, Struct, needed, number
from mq.web.exchange import Abandon, nothing_to_take_back
from mq.web.request_body import IN_MEMORY_BYTES

logger = logging.getLogger(__name__)

LARGEST_BATCH: Final = 10
LARGEST_ANSWER: Final = LARGEST_BATCH * LARGEST_MESSAGE
"""Bytes of the bodies of one receive, but for a single longer one: other protocols take longer messages than SQS
does."""
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WRITTEN: Final = 4
"""How much memory a byte of a body may take, with what it is written in."""


# Sent


class QueueRules(NamedTuple):
    """The rules of a queue for messages that are sent to it.

    Attributes:
        by_content: whether it knows a message again by its body, where the client gives no id.
        is_per_group: whether an id for deduplication counts in its message group alone.
    """

    longest: int
    is_fifo: bool
    by_content: bool
    is_per_group: bool

    def key(self, group: str, deduplication: str) -> str:
        """The idempotency key of a message."""
        scope = f"{group} " if self.is_per_group else ""
        return f"sqs {scope}{deduplication}"


def _deduplication_id(given: str | None, body: bytes, rules: QueueRules) -> str:
    if given is not None:
        return given
    if not rules.by_content:
        raise SqsError(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )
    return hashlib.sha256(body).hexdigest()


def _of_other_type(problem: str) -> SqsError:
    return SqsError(
        "InvalidParameterValue",
        f"{problem} Reason: The request includes a parameter that is not valid for this queue type",
    )


class OutgoingMessage:
    """A message that is to be sent, checked.

    Raises:
        SqsError: it is not as SQS has it.
    """

    def __init__(self, call: ActionCall, wanted: Mapping[str, Any], rules: QueueRules) -> None:
        body = read_body(wanted)
        attributes, system = wanted.get("MessageAttributes"), wanted.get("MessageSystemAttributes")
        self._attributes = read_attributes(attributes) if attributes else {}
        self._system = read_system_attributes(system) if system else {}
        self.size = size_of(body, self._attributes)
        if self.size > rules.longest:
            raise SqsError(
                "InvalidParameterValue",
                f"One or more parameters are invalid. Reason: Message must be shorter than {rules.longest} bytes.",
            )
        delay = number(wanted, "DelaySeconds", 0, LONGEST_DELAY)
        sender = None if call.user is None else call.user.name
        group, deduplication = read_token(wanted, "MessageGroupId"), read_token(wanted, "MessageDeduplicationId")
        self._is_fifo = rules.is_fifo
        if rules.is_fifo:
            group = needed(wanted, "MessageGroupId")
            deduplication = _deduplication_id(deduplication, body, rules)
            if delay:
                raise _of_other_type(f"Value {delay} for parameter DelaySeconds is invalid.")
            delay = None
        elif deduplication is not None:
            raise _of_other_type("The parameter MessageDeduplicationId is invalid.")
        kept = kept_attributes(self._attributes, self._system.get(TRACE), group, sender, deduplication)
        self._md5 = md5(body)
        self.draft = Draft(
            body,
            kept,
            None if delay is None else float(delay),
            key=None if deduplication is None else rules.key(group or "", deduplication),
            group=group,
            is_group_hint=not rules.is_fifo,
            is_key_purged=True,
        )

    def sent(self, outcomes: Sequence[Published | MQError]) -> dict[str, Any]:
        """The answer to the client that has sent this message alone.

        Raises:
            MQError: it is not stored.
        """
        [outcome] = outcomes
        if isinstance(outcome, MQError):
            raise outcome
        return self.answer(outcome.id)

    def answer(self, id: MessageId) -> dict[str, Any]:
        """The answer to the client, once the message is stored."""
        said = {"MessageId": str(id), "MD5OfMessageBody": self._md5}
        if self._is_fifo:
            said["SequenceNumber"] = sequence_number(id)
        if self._attributes:
            said["MD5OfMessageAttributes"] = md5_of(self._attributes)
        if self._system:
            said["MD5OfMessageSystemAttributes"] = md5_of(self._system)
        return said


async def send(call: ActionCall) -> Members:
    """Send a message."""
    queue = await call.known_queue(Right.PUBLISH)
    outgoing = OutgoingMessage(call, call.wanted, await _rules(call, queue))
    call.check_publish(1)
    return outgoing.sent(await call.desk.broker.publish_many(queue, [outgoing.draft]))


def begin_send(call: ActionCall, answer: ActionAnswer) -> Abandon | None:
    """As :func:`send`, to a queue of this daemon that is not a FIFO queue."""
    queue, broker = call.queue(Right.PUBLISH), call.desk.broker
    settings = broker.settings_now(queue)
    if settings is None or settings.knows_bodies or is_fifo(queue):
        return None
    rules = _rules_of(queue, Notes.of(settings)) if settings.sqs else _DEFAULT_RULES
    outgoing = OutgoingMessage(call, call.wanted, rules)
    call.check_publish(1)
    broker.publish_now(queue, [outgoing.draft], partial(answer, outgoing.sent))
    return nothing_to_take_back


async def send_batch(call: ActionCall) -> Members:
    """Send up to ten messages, under one barrier."""
    queue = await call.known_queue(Right.PUBLISH)
    entries, batch = _entries(call), _Batch()
    rules = await _rules(call, queue)
    if rules.is_fifo:
        for entry in entries:
            needed(entry, "MessageGroupId")  # AWS refuses the whole batch
    sent: dict[str, OutgoingMessage] = {}
    left = LARGEST_MESSAGE
    for entry in entries:
        with batch.noting(entry["Id"]):
            sent[entry["Id"]] = outgoing = OutgoingMessage(call, entry, rules)
            left -= outgoing.size
            await turns.spend(size=outgoing.size // 2)
        if left < 0:  # the others are not even looked at
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {LARGEST_MESSAGE} bytes. Send several smaller batches.",
            )
    call.check_publish(len(sent))
    outcomes = await call.desk.broker.publish_many(queue, [outgoing.draft for outgoing in sent.values()])
    for (id, outgoing), outcome in zip(sent.items(), outcomes, strict=True):
        if isinstance(outcome, MQError):
            batch.failed(id, outcome)
        else:
            batch.succeeded(id, outgoing.answer(outcome.id))
    return batch.answer(entries)


async def _rules(call: ActionCall, queue: QueueName) -> QueueRules:
    return _rules_of(queue, await call.desk.notes.recent(queue))


def _rules_of(queue: QueueName, notes: Notes) -> QueueRules:
    if not notes.attributes and not is_fifo(queue):
        return _DEFAULT_RULES
    return QueueRules(
        int(noted_attribute(notes, LONGEST)),
        is_fifo(queue),
        noted_attribute(notes, BY_CONTENT) == "true",
        noted_attribute(notes, SCOPE) == PER_GROUP,
    )


_DEFAULT_RULES: Final = QueueRules(int(noted_attribute(Notes(), LONGEST)), False, False, False)
"""The rules of a queue that is not a FIFO queue, where no attribute says otherwise."""


# Received


async def receive(call: ActionCall) -> Members:
    """Lease up to ten messages; wait for the first."""
    queue = await call.known_queue(Right.CONSUME)
    most, seconds, wait, wanted = _asked(call)
    if wait is None:
        wait = int(noted_attribute(await call.desk.notes.recent(queue), WAIT))
    broker = call.desk.broker
    attempt = read_token(call.wanted, "ReceiveRequestAttemptId") if is_fifo(queue) else None
    if attempt is not None and (again := await _again(call, queue, attempt, seconds)):
        return {"Messages": await _shown(call, again, wanted)}

    async def fetch(wait: float) -> list[Message]:
        return await broker.fetch_many(queue, most, wait=wait, visibility=seconds)

    found = await call.desk.waits.fetch(broker, queue, wait, call.request.on_hang_up, fetch)
    read = await _read(call, found)
    if attempt is not None and read:
        call.desk.attempts.note(queue, attempt, [ReceiptHandle.of(message) for message, _ in read])
    return {"Messages": await _shown(call, read, wanted)} if read else {}


def begin_receive(call: ActionCall, answer: ActionAnswer) -> Abandon | None:
    """As :func:`receive`, of messages that are there, or without a wait; not of a FIFO queue."""
    queue, broker = call.queue(Right.CONSUME), call.desk.broker
    settings = broker.settings_now(queue)
    if settings is None or is_fifo(queue):
        return None
    most, seconds, wait, wanted = _asked(call)
    if wait is None:
        wait = int(noted_attribute(Notes.of(settings), WAIT)) if settings.sqs else _DEFAULT_WAIT
    future = broker.fetch_now(queue, most, visibility=seconds)
    if future is None or (wait and not isinstance(future, Future)):
        return None
    if not isinstance(future, Future):
        answer(_members_of_none, None)
        return nothing_to_take_back
    future.then(partial(answer, partial(_received, call, future, wanted, has_to_wait=wait > 0)))
    return future.abandon


_DEFAULT_WAIT: Final = int(noted_attribute(Notes(), WAIT))


def _members_of_none(_: None) -> Members:
    return {}


def _received(
    call: ActionCall, future: Future[list[Message]], wanted: Wanted, error: Exception | None, *, has_to_wait: bool
) -> Members | LaterMembers:
    if error is not None:
        raise error
    messages = future.value or []
    if not messages:
        return partial(receive, call) if has_to_wait else {}
    shown, size = [], 0
    for message in messages:
        body = message.body
        size += body.size
        if not isinstance(body, BytesBody) or size > IN_MEMORY_BYTES or message.dead_letter_history:
            return partial(_received_later, call, messages, wanted)
        shown.append(shown_message(message, body.data, wanted))
    return {"Messages": shown}


async def _received_later(call: ActionCall, messages: Sequence[Message], wanted: Wanted) -> Members:
    read = await _read(call, messages)
    return {"Messages": await _shown(call, read, wanted)} if read else {}


def _asked(call: ActionCall) -> tuple[int, float | None, int | None, Wanted]:
    """What a receive asks for: how many messages, for how long it leases them, how long it waits, and what is shown.
    None is what the queue says."""
    given = call.wanted
    most = number(given, "MaxNumberOfMessages", 1, LARGEST_BATCH) or 1
    visibility = number(given, "VisibilityTimeout", 0, LONGEST_LEASE)
    wait = number(given, "WaitTimeSeconds", 0, LONGEST_WAIT)
    return most, None if visibility is None else lease_seconds(visibility), wait, _wanted(call)


async def _shown(call: ActionCall, read: Sequence[tuple[Message, bytes]], wanted: Wanted) -> list[dict[str, Any]]:
    """Messages as a receive answers them. In a dead-letter queue the receives before a death count, as on AWS."""
    shown = [shown_message(message, body, wanted) for message, body in read]
    for (message, _), each in zip(read, shown, strict=True):
        if message.dead_letter_history and RECEIVE_COUNT in each.get("Attributes", {}):
            each["Attributes"][RECEIVE_COUNT] = str(message.receives + await _receives_before(call, message))
    return shown


async def _receives_before(call: ActionCall, message: Message) -> int:
    """How often a message was received in the queues from which it came here as a dead letter; 0 once it was moved
    back, or elsewhere."""
    broker, queue, count = call.desk.broker, message.queue, 0
    for death in message.dead_letter_history:
        source, receives = death.get("queue"), death.get("receives")
        if not isinstance(source, str) or not isinstance(receives, int) or not await broker.has_queue(source):
            break
        if (await broker.status(source)).settings.dead_letter_queue != queue:
            break
        queue, count = source, count + receives
    return count


async def _again(
    call: ActionCall, queue: QueueName, attempt: str, seconds: float | None
) -> list[tuple[Message, bytes]]:
    """The messages that an attempt got before, with new leases, as far as the old ones still run."""
    broker, found = call.desk.broker, []
    for handle in call.desk.attempts.find(queue, attempt):
        own = (await broker.status(queue)).settings.visibility
        length = seconds or own or call.desk.lease_seconds
        try:
            await broker.extend(queue, handle.id, length, receipt=handle.receipt)
            seen = await broker.show(queue, handle.id)
        except (NoSuchMessage, NotLeased, ReceiptMismatch):
            continue
        message = seen.message._replace(receives=handle.receives, receipt=handle.receipt)
        call.room.cover(call.room.size + _WRITTEN * message.body.size)
        found.append((message, await _body(message)))
    return found


def _wanted(call: ActionCall) -> Wanted:
    given = call.wanted
    system = (*given.get("AttributeNames", ()), *given.get("MessageSystemAttributeNames", ()))
    for name in system:
        if name not in SYSTEM_ATTRIBUTES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {shorten(name)}.")
    return Wanted(system, given.get("MessageAttributeNames", ()), call.names if system else None)


async def _read(call: ActionCall, messages: Sequence[Message]) -> list[tuple[Message, bytes]]:
    """Messages with their bodies, as far as there is memory; the others are given back, as if they had not been handed
    out. One that is damaged keeps its lease, so that the next ones come.

    Raises:
        NoMemory: others have the memory for the first one.
        CorruptMessage: the only one is damaged.
    """
    found: list[tuple[Message, bytes]] = []
    damaged: CorruptMessage | None = None
    size = 0
    for position, message in enumerate(messages):
        size += message.body.size
        try:
            if found and size > LARGEST_ANSWER:
                await call.desk.broker.give_back(messages[position:])
                break
            call.room.cover(call.room.size + _WRITTEN * message.body.size)
            found.append((message, await _body(message)))
        except CorruptMessage as error:
            logger.error("cannot deliver message %s from queue %s: %s", message.id, message.queue, error)
            damaged = error
        except MQError:
            await call.desk.broker.give_back(messages[position:])
            if not found:
                raise
            break
    if damaged is not None and not found:
        raise damaged
    return found


async def _body(message: Message) -> bytes:
    if type(message.body) is BytesBody:
        return message.body.data
    try:
        return await message.body.read()
    finally:
        await close([message])


# Deleted


async def delete(call: ActionCall) -> Members:
    """Delete a message. It is no error if it is gone."""
    queue = await call.known_queue(Right.CONSUME)
    handle = ReceiptHandle.parse(call.needed("ReceiptHandle"))
    try:
        await call.desk.broker.remove(queue, handle.id, receipt=handle.receipt)
    except (NoSuchMessage, ReceiptMismatch) as error:
        await _delete_late(call, queue, handle, error)
    return {}


def begin_delete(call: ActionCall, answer: ActionAnswer) -> Abandon | None:
    """As :func:`delete`, of a message that its receipt still holds."""
    queue, broker = call.queue(Right.CONSUME), call.desk.broker
    if broker.settings_now(queue) is None or is_fifo(queue):
        return None
    handle = ReceiptHandle.parse(call.needed("ReceiptHandle"))
    deleted = partial(answer, partial(_deleted, call, queue, handle))
    try:
        has_begun = broker.remove_now(queue, handle.id, deleted, receipt=handle.receipt)
    except (NoSuchMessage, ReceiptMismatch):
        return None
    return nothing_to_take_back if has_begun else None


def _deleted(
    call: ActionCall, queue: QueueName, handle: ReceiptHandle, error: Exception | None
) -> Members | LaterMembers:
    if isinstance(error, NoSuchMessage | ReceiptMismatch):
        return partial(_deleted_late, call, queue, handle, error)
    if error is not None:
        raise error
    return {}


async def _deleted_late(call: ActionCall, queue: QueueName, handle: ReceiptHandle, error: MQError) -> Members:
    await _delete_late(call, queue, handle, error)
    return {}


async def delete_batch(call: ActionCall) -> Members:
    """Delete up to ten messages, under one barrier."""
    queue = await call.known_queue(Right.CONSUME)
    entries, batch = _entries(call), _Batch()
    handles: dict[str, ReceiptHandle] = {}
    for entry in entries:
        with batch.noting(entry["Id"]):
            handles[entry["Id"]] = _handle(entry)
    removals = [Removal(handle.id, handle.receipt) for handle in handles.values()]
    errors = await call.desk.broker.remove_many(queue, removals)
    for (id, handle), error in zip(handles.items(), errors, strict=True):
        with batch.noting(id):
            if error is not None:
                await _delete_late(call, queue, handle, error)
            batch.succeeded(id, {})
    return batch.answer(entries)


async def _delete_late(call: ActionCall, queue: QueueName, handle: ReceiptHandle, error: MQError) -> None:
    """Delete a message after the end of its lease, unless it was handed out since: the work on it is done. If it was,
    or is gone, nothing is done, and the answer is the same, as in SQS.

    Raises:
        MQError: any other error.
    """
    if isinstance(error, ReceiptMismatch):
        with suppress(NoSuchMessage):
            if await _is_free_since(call, queue, handle):
                await call.desk.broker.remove(queue, handle.id)
    elif not isinstance(error, NoSuchMessage):
        raise error


async def _is_free_since(call: ActionCall, queue: QueueName, handle: ReceiptHandle) -> bool:
    """Whether a delivery's lease has ended, and the message was not received since.

    Raises:
        NoSuchMessage: it is gone.
    """
    seen = await call.desk.broker.show(queue, handle.id)
    await close([seen.message])
    return seen.message.receives == handle.receives and not seen.message.receipt


# Leases


async def change_visibility(call: ActionCall) -> Members:
    """Let a lease end later, or earlier."""
    queue, change = await call.known_queue(Right.CONSUME), _LeaseChange.read(call.wanted)
    [error] = await call.desk.broker.change_leases(queue, [change.asked()])
    await _check_changed(call, queue, change.handle, error)
    return {}


async def change_visibility_batch(call: ActionCall) -> Members:
    """Change the leases of up to ten messages, under one barrier."""
    queue = await call.known_queue(Right.CONSUME)
    entries, batch = _entries(call), _Batch()
    changes: dict[str, _LeaseChange] = {}
    for entry in entries:
        with batch.noting(entry["Id"]):
            changes[entry["Id"]] = _LeaseChange.read(entry)
    errors = await call.desk.broker.change_leases(queue, [change.asked() for change in changes.values()])
    for (id, change), error in zip(changes.items(), errors, strict=True):
        with batch.noting(id):
            await _check_changed(call, queue, change.handle, error)
            batch.succeeded(id, {})
    return batch.answer(entries)


class _LeaseChange(NamedTuple):
    handle: ReceiptHandle
    seconds: int

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Self:
        handle = _handle(entry)
        needed(entry, "VisibilityTimeout")
        return cls(handle, number(entry, "VisibilityTimeout", 0, LONGEST_LEASE) or 0)

    def asked(self) -> tuple[str, str, float]:
        return self.handle.id, self.handle.receipt, self.seconds


async def _check_changed(call: ActionCall, queue: QueueName, handle: ReceiptHandle, error: MQError | None) -> None:
    if isinstance(error, NoSuchMessage):
        raise SqsError("InvalidParameterValue", _NOT_THERE)
    if isinstance(error, NotLeased | ReceiptMismatch):
        # A lease that has ended is not renewed, and AWS says nothing of it. A message that another consumer works on
        # is refused all the same: its former consumer had better know.
        if not await _is_free_since(call, queue, handle):
            raise SqsError("MessageNotInflight", _NOT_THERE)
    elif error is not None:
        raise error


_NOT_THERE: Final = (
    "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "
    "visibility timeout change."
)


def _handle(entry: Mapping[str, Any]) -> ReceiptHandle:
    return ReceiptHandle.parse(needed(entry, "ReceiptHandle"))


# Batches


def _entries(call: ActionCall) -> list[Mapping[str, Any]]:
    """The entries of a batch, each with an id of its own.

    Raises:
        SqsError: there are none, or too many, or their ids are wrong.
    """
    entries: list[Mapping[str, Any]] = call.wanted.get("Entries", [])
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > LARGEST_BATCH:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"The maximum number of entries per request is {LARGEST_BATCH}. You have sent {len(entries)}.",
        )
    ids = [entry.get("Id", "") for entry in entries]
    if not all(map(_ENTRY_ID.fullmatch, ids)):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
            "characters long.",
        )
    twice = next((id for id in ids if ids.count(id) > 1), None)
    if twice is not None:
        raise SqsError("BatchEntryIdsNotDistinct", f"The id {twice} is repeated.")
    return entries


class _Batch:
    """The outcomes of a batch, by the ids of its entries."""

    def __init__(self) -> None:
        self._successful: dict[str, Mapping[str, Any]] = {}
        self._failed: dict[str, MQError] = {}

    def succeeded(self, id: str, said: Mapping[str, Any]) -> None:
        """Note what an entry has brought."""
        self._successful[id] = said

    def failed(self, id: str, error: MQError) -> None:
        """Note why one failed."""
        self._failed[id] = error

    def noting(self, id: str) -> _Noting:
        """In this context an error of mq's is noted for the entry."""
        return _Noting(self, id)

    def answer(self, entries: Sequence[Mapping[str, Any]]) -> Members:
        """The answer to the client: the entries in their order."""
        ids = [entry["Id"] for entry in entries]
        lists = {
            "Successful": [{"Id": id, **self._successful[id]} for id in ids if id in self._successful],
            "Failed": [{"Id": id, **_problem(self._failed[id])} for id in ids if id in self._failed],
        }
        return {name: found for name, found in lists.items() if found}


class _Noting:
    def __init__(self, batch: _Batch, id: str) -> None:
        self._batch = batch
        self._id = id

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, MQError):
            self._batch.failed(self._id, error)
            return True
        return False


def _problem(error: MQError) -> dict[str, Any]:
    told = sqs_error(error)
    return {"SenderFault": told.is_sender_fault, "Code": told.kind.query_code, "Message": told.text}


_URL: Final[Mapping[str, Shape]] = {"QueueUrl": TEXT}
_NOTHING: Final = Struct({})
_VALUE: Final = Struct({"DataType": TEXT, "StringValue": TEXT, "BinaryValue": BLOB})
_ATTRIBUTES: Final = MapOf(_VALUE, "MessageAttribute")
_MESSAGE: Final[Mapping[str, Shape]] = {
    "MessageBody": TEXT,
    "DelaySeconds": WHOLE,
    "MessageAttributes": _ATTRIBUTES,
    "MessageSystemAttributes": MapOf(_VALUE, "MessageSystemAttribute"),
    "MessageDeduplicationId": TEXT,
    "MessageGroupId": TEXT,
}
_SENT: Final[Mapping[str, Shape]] = {
    "MessageId": TEXT,
    "MD5OfMessageBody": TEXT,
    "MD5OfMessageAttributes": TEXT,
    "MD5OfMessageSystemAttributes": TEXT,
    "SequenceNumber": TEXT,
}
_RECEIVED: Final = Struct(
    {
        "MessageId": TEXT,
        "ReceiptHandle": TEXT,
        "MD5OfBody": TEXT,
        "Body": TEXT,
        "Attributes": MapOf(TEXT, "Attribute"),
        "MD5OfMessageAttributes": TEXT,
        "MessageAttributes": _ATTRIBUTES,
    }
)
_FAILED: Final = ListOf(
    Struct({"Id": TEXT, "SenderFault": SWITCH, "Code": TEXT, "Message": TEXT}), "BatchResultErrorEntry"
)
_DELETED: Final[Mapping[str, Shape]] = {"ReceiptHandle": TEXT}
_CHANGED: Final[Mapping[str, Shape]] = {"ReceiptHandle": TEXT, "VisibilityTimeout": WHOLE}


def _batch_of(
    name: str,
    entry: Mapping[str, Shape],
    result: Mapping[str, Shape],
    handle: Callable[[ActionCall], Awaitable[Members]],
) -> Action:
    """The line of a batch, whose entries and results have ids."""
    entries = ListOf(Struct({"Id": TEXT, **entry}), f"{name}RequestEntry")
    results = ListOf(Struct({"Id": TEXT, **result}), f"{name}ResultEntry")
    return Action(
        name, Struct({**_URL, "Entries": entries}), Struct({"Successful": results, "Failed": _FAILED}), handle
    )


ACTIONS: Final[tuple[Action, ...]] = (
    Action("SendMessage", Struct({**_URL, **_MESSAGE}), Struct(_SENT), send, begin=begin_send),
    _batch_of("SendMessageBatch", _MESSAGE, _SENT, send_batch),
    Action(
        "ReceiveMessage",
        Struct(
            {
                **_URL,
                "AttributeNames": ListOf(TEXT, "AttributeName"),
                "MessageSystemAttributeNames": ListOf(TEXT, "MessageSystemAttributeName"),
                "MessageAttributeNames": ListOf(TEXT, "MessageAttributeName"),
                "MaxNumberOfMessages": WHOLE,
                "VisibilityTimeout": WHOLE,
                "WaitTimeSeconds": WHOLE,
                "ReceiveRequestAttemptId": TEXT,
            }
        ),
        Struct({"Messages": ListOf(_RECEIVED, "Message")}),
        receive,
        begin=begin_receive,
    ),
    Action("DeleteMessage", Struct({**_URL, **_DELETED}), _NOTHING, delete, begin=begin_delete),
    _batch_of("DeleteMessageBatch", _DELETED, {}, delete_batch),
    Action("ChangeMessageVisibility", Struct({**_URL, **_CHANGED}), _NOTHING, change_visibility),
    _batch_of("ChangeMessageVisibilityBatch", _CHANGED, {}, change_visibility_batch),
)
"""Actions on messages."""
