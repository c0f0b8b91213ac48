"""Messages between SQS and the broker: what is stored with a body, how it is read back, and digests that SDKs check.

Message attributes of SQS are kept unchanged, under a key of their own among the message's attributes in mq. The texts
among them are also kept as attributes that every protocol shows. Attributes of another protocol become message
attributes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mq.message import MESSAGE_ID_PATTERN, Message, MessageId, shorten
from mq.sqs.errors import SqsError
from mq.sqs.names import QueueNames, is_fifo
from mq.sqs.shapes import needed

MOST_ATTRIBUTES: Final = 10
LONGEST_TOKEN: Final = 128
TRACE: Final = "AWSTraceHeader"
RECEIVE_COUNT: Final = "ApproximateReceiveCount"
ENCODING: Final = "mq.encoding"
"""The message attribute of a body in base64: it came by another protocol, and is no text that SQS takes."""
CODINGS: Final = "mq.content-encoding"
"""The message attribute of a body that another protocol's publisher has compressed: ``gzip``."""

_OWN_KEY: Final = "sqs"
_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_LONGEST_NAME: Final = 256
_TYPE: Final = re.compile(r"(String|Number|Binary)(?:\.[^\x00-\x1f]*)?")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_LONGEST_NUMBER: Final = 64
_TEXT: Final = re.compile(r"[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
"""What a body and an attribute may have: the characters of XML 1.0."""
_ASCII_TEXT: Final = bytes(code for code in range(128) if _TEXT.fullmatch(chr(code)))
"""The same characters as far as they are in ASCII. To delete them takes a third of the time of a match."""
_TOKEN: Final = re.compile(r"[!-~]{1,128}")
_SHOWN_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_SHOWN_TEXT: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_MOST_SHOWN_BYTES: Final = 8192
"""Of the texts that other protocols show; as of AMQP's headers."""


# The way in


class Attribute(NamedTuple):
    """A message attribute.

    Attributes:
        type: ``String``, ``Number`` or ``Binary``, maybe with a label: ``Number.int``.
        value: text, or the bytes of a Binary.
    """

    type: str
    value: str | bytes

    @property
    def data(self) -> bytes:
        """The value's bytes."""
        return self.value if isinstance(self.value, bytes) else self.value.encode()


def read_body(wanted: Mapping[str, Any]) -> bytes:
    """The body of a message that is to be sent.

    Raises:
        SqsError: there is none, or it has characters that SQS does not take.
    """
    text: str = needed(wanted, "MessageBody")
    if not text:
        raise SqsError("InvalidParameterValue", "Value for parameter MessageBody is invalid. Reason: Must be non-empty")
    if text.isascii():
        body = text.encode()
        is_text = not body.translate(None, _ASCII_TEXT)
    elif is_text := _TEXT.fullmatch(text) is not None:
        body = text.encode()
    if not is_text:
        raise SqsError(
            "InvalidMessageContents", "the body contains characters that SQS does not allow. Send the body as base64"
        )
    return body


def read_attributes(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Attribute]:
    """Message attributes, checked.

    Raises:
        SqsError: they are not as SQS has them.
    """
    if len(given) > MOST_ATTRIBUTES:
        raise SqsError("InvalidParameterValue", f"a message can have at most {MOST_ATTRIBUTES} message attributes")
    return {_checked_name(name): _attribute(name, value) for name, value in given.items()}


def read_system_attributes(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Attribute]:
    """The system attributes that may be sent: one, the header of AWS X-Ray.

    Raises:
        SqsError: there are others, or it is no text.
    """
    for name in given:
        if name != TRACE:
            raise SqsError(
                "InvalidParameterValue",
                f"the system attribute {shorten(name)} cannot be sent. The only system attribute that can be sent is "
                f"{TRACE}",
            )
    found = {name: _attribute(name, value) for name, value in given.items()}
    if any(each.type != "String" for each in found.values()):
        raise SqsError("InvalidParameterValue", f"{TRACE} must be of type String")
    return found


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
        raise SqsError(
            "InvalidParameterValue",
            f"Invalid message attribute name {shorten(name)}. Use 1 to 256 letters, digits, _, - and periods. "
            'The name must not begin or end with a period, contain two periods in a row, or begin with "AWS." or '
            '"Amazon."',
        )
    return name


def _attribute(name: str, value: Mapping[str, Any]) -> Attribute:
    type: str = value.get("DataType", "")
    matched = _TYPE.fullmatch(type)
    if matched is None or len(type) > _LONGEST_NAME or _TEXT.fullmatch(type) is None:
        raise _wrong(name, "the type must be String, Number or Binary, with an optional label after a period")
    kind = "BinaryValue" if matched[1] == "Binary" else "StringValue"
    given: str | bytes | None = value.get(kind)
    if given is None or ("StringValue" in value and "BinaryValue" in value):
        raise _wrong(name, f"an attribute of type {matched[1]} must have a {kind} and no other value")
    if not given:
        raise _wrong(name, "the value must not be empty")
    if isinstance(given, str) and _TEXT.fullmatch(given) is None:
        raise SqsError(
            "InvalidMessageContents", f"the message attribute {name} contains characters that SQS does not allow"
        )
    if matched[1] == "Number" and (len(str(given)) > _LONGEST_NUMBER or _NUMBER.fullmatch(str(given).strip()) is None):
        raise _wrong(name, "the value is not a number")
    return Attribute(type, given)


def _wrong(name: str, problem: str) -> SqsError:
    return SqsError("InvalidParameterValue", f"The message attribute {shorten(name)} is invalid: {problem}")


def read_token(wanted: Mapping[str, Any], name: str) -> str | None:
    """A message group, or an id for deduplication or of an attempt. None without one.

    Raises:
        SqsError: it is not as SQS has it.
    """
    token: str | None = wanted.get(name)
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise SqsError(
            "InvalidParameterValue",
            f"{name} must consist of 1 to {LONGEST_TOKEN} printable ASCII characters, without spaces",
        )
    return token


def size_of(body: bytes, attributes: Mapping[str, Attribute]) -> int:
    """The size of a message in bytes, as SQS counts it."""
    size = len(body)
    for name, each in attributes.items():
        size += len(name.encode()) + len(each.type.encode()) + len(each.data)
    return size


def kept_attributes(
    attributes: Mapping[str, Attribute],
    trace: Attribute | None,
    group: str | None,
    sender: str | None,
    deduplication: str | None = None,
) -> dict[str, Any]:
    """What the broker stores with a message, as JSON values.

    Args:
        sender: the user that sends it; None where there are no users.
        deduplication: the id by which a FIFO queue knows it again.
    """
    found: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    if attributes:
        ours["attributes"] = {name: _kept(each) for name, each in attributes.items()}
        shown = _shown(attributes)
        if shown:
            found["attributes"] = shown
    if trace is not None:
        ours["trace"] = trace.value
    if deduplication is not None:
        ours["deduplication"] = deduplication
    if sender is not None:
        ours["sender"] = sender
    if group:
        found["group"] = group
    if ours:
        found[_OWN_KEY] = ours
    return found


def _kept(attribute: Attribute) -> list[str]:
    value = attribute.value
    return [attribute.type, base64.b64encode(value).decode() if isinstance(value, bytes) else value]


def _shown(attributes: Mapping[str, Attribute]) -> dict[str, str]:
    """The attributes that other protocols can show: texts that fit a header of HTTP."""
    shown: dict[str, str] = {}
    left = _MOST_SHOWN_BYTES
    for name, each in attributes.items():
        lower = name.lower()
        if isinstance(each.value, str) and _SHOWN_NAME.fullmatch(lower) and _SHOWN_TEXT.fullmatch(each.value):
            left -= len(lower) + len(each.value)
            if left >= 0:
                shown.setdefault(lower, each.value)
    return shown


# The way out


class Wanted(NamedTuple):
    """What a receive asks for beside bodies.

    Attributes:
        own: names of message attributes, or their beginnings followed by ``.*``.
        names: of queues, as the client sees them; None if no system attribute is wanted.
    """

    system: Collection[str]
    own: Sequence[str]
    names: QueueNames | None = None


_ALL: Final = ("All", ".*", "*")
_REST: Final = ".*"


def shown_message(message: Message, body: bytes, wanted: Wanted) -> dict[str, Any]:
    """A message as a receive answers it."""
    text, own = _as_text(body), attributes_of(message) if wanted.own else {}
    attributes = {name: each for name, each in own.items() if _is_wanted(name, wanted.own)} if own else {}
    if text is None:
        body = base64.b64encode(body)
        text, attributes[ENCODING] = body.decode(), Attribute("String", "base64")
    codings = message.properties.attributes.get("content_encoding")
    if isinstance(codings, str) and codings and _TEXT.fullmatch(codings):
        attributes[CODINGS] = Attribute("String", codings)
    shown: dict[str, Any] = {
        "MessageId": message.id,
        "ReceiptHandle": ReceiptHandle.of(message).text,
        "MD5OfBody": md5(body),
        "Body": text,
    }
    if wanted.names is not None:
        system = {name: make(message, wanted.names) for name, make in _SYSTEM.items() if _is_named(name, wanted.system)}
        shown["Attributes"] = {name: value for name, value in system.items() if value is not None}
    if attributes:
        shown["MD5OfMessageAttributes"] = md5_of(attributes)
        shown["MessageAttributes"] = {name: _as_value(each) for name, each in attributes.items()}
    return shown


def attributes_of(message: Message) -> dict[str, Attribute]:
    """The message attributes, whichever protocol the message came through."""
    kept = _ours(message).get("attributes")
    if isinstance(kept, dict):
        found = {name: _restored(value) for name, value in kept.items()}
        return {name: each for name, each in found.items() if each is not None}
    texts = message.properties.attributes.get("attributes")
    if not isinstance(texts, dict):
        return {}
    return {
        name: Attribute("String", text)
        for name, text in texts.items()
        if isinstance(text, str) and text and _NAME.fullmatch(name) and _TEXT.fullmatch(text)
    }


def _ours(message: Message) -> Mapping[str, Any]:
    ours = message.properties.attributes.get(_OWN_KEY)
    return ours if isinstance(ours, dict) else {}


def _restored(value: Any) -> Attribute | None:
    """A kept attribute; None for a value that this module did not write."""
    match value:
        case [str(type), str(text)] if type.startswith("Binary"):
            try:
                return Attribute(type, base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                return None
        case [str(type), str(text)]:
            return Attribute(type, text)
    return None


def _as_value(attribute: Attribute) -> dict[str, Any]:
    kind = "BinaryValue" if isinstance(attribute.value, bytes) else "StringValue"
    return {kind: attribute.value, "DataType": attribute.type}


def _as_text(body: bytes) -> str | None:
    if body.isascii():
        return None if body.translate(None, _ASCII_TEXT) else body.decode("ascii")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _TEXT.fullmatch(text) is None else text


def _is_named(name: str, wanted: Collection[str]) -> bool:
    return name in wanted or "All" in wanted


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(
        each in _ALL or each == name or (each.endswith(_REST) and name.startswith(each.removesuffix(_REST)))
        for each in wanted
    )


def _text_of_ours(key: str) -> Callable[[Message, QueueNames], str | None]:
    def find(message: Message, names: QueueNames) -> str | None:
        value = _ours(message).get(key)
        return value if isinstance(value, str) else None

    return find


def _group(message: Message, names: QueueNames) -> str | None:
    """The message group, whichever protocol it came through."""
    group = message.properties.attributes.get("group")
    return group if isinstance(group, str) and _TOKEN.fullmatch(group) else None


def sequence_number(id: MessageId) -> str:
    """The sequence number of a message: the time of its id, which rises from message to message."""
    return f"{id.time:020d}"


def _sequence(message: Message, names: QueueNames) -> str | None:
    return sequence_number(message.id) if is_fifo(message.queue) else None


def _first_receive(message: Message, names: QueueNames) -> str | None:
    """The time of the first receive, at that one only: mq counts receives, and keeps no time of them."""
    return str(time.time_ns() // 1_000_000) if message.receives == 1 else None


def _source_arn(message: Message, names: QueueNames) -> str | None:
    queue = message.dead_letter_history[0].get("queue") if message.dead_letter_history else None
    return names.arn(queue) if isinstance(queue, str) else None


_SYSTEM: Final[Mapping[str, Callable[[Message, QueueNames], str | None]]] = {
    "SenderId": _text_of_ours("sender"),
    "SentTimestamp": lambda message, names: str(message.id.published_ns // 1_000_000),
    RECEIVE_COUNT: lambda message, names: str(message.receives),
    "ApproximateFirstReceiveTimestamp": _first_receive,
    TRACE: _text_of_ours("trace"),
    "MessageGroupId": _group,
    "MessageDeduplicationId": _text_of_ours("deduplication"),
    "SequenceNumber": _sequence,
    "DeadLetterQueueSourceArn": _source_arn,
}
SYSTEM_ATTRIBUTES: Final = (*_SYSTEM, "All")
"""What may be asked for."""


class ReceiptHandle(NamedTuple):
    """A receipt handle: it names one delivery."""

    id: MessageId
    receives: int
    receipt: str

    @classmethod
    def of(cls, message: Message) -> ReceiptHandle:
        """The handle of a delivery."""
        return cls(message.id, message.receives, message.receipt)

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """The handle that a client gives back.

        Raises:
            SqsError: it is none of ours.
        """
        try:
            matched = _HANDLE.fullmatch(binascii.a2b_base64(text, strict_mode=True).decode("ascii"))
        except ValueError:
            matched = None
        if matched is not None:
            return cls(MessageId(matched[1]), int(matched[2]), matched[3])
        raise SqsError(
            "ReceiptHandleIsInvalid",
            "The input receipt handle is invalid. Use the receipt handle returned by ReceiveMessage.",
        )

    @property
    def text(self) -> str:
        """The text that clients get."""
        # In this text no character makes Base64 write + or /, which a URL would have to quote.
        id, receives, receipt = self
        said = f"{id}:{receives}:{receipt}".encode()
        return binascii.b2a_base64(said, newline=False).decode("ascii")


_HANDLE: Final = re.compile(rf"({MESSAGE_ID_PATTERN}):([0-9]{{1,10}}):([0-9a-f]{{16}})")


# Digests


def md5(data: bytes) -> str:
    """The digest that SDKs compare. It finds damage on the way, and is no protection against forgery."""
    digest = _MD5.copy()  # OpenSSL looks up the function for each new digest, which takes as long as a kilobyte
    digest.update(data)
    return digest.hexdigest()


_MD5: Final = hashlib.md5(usedforsecurity=False)


def md5_of(attributes: Mapping[str, Attribute]) -> str:
    """The digest of message attributes: sorted by name, each part after its length in four bytes, and between type and
    value a byte that tells text from bytes (SQS developer guide, "Calculating the MD5 message digest")."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        type, value = attributes[name]
        for part in (name.encode(), type.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        data = attributes[name].data
        digest.update((b"\x02" if isinstance(value, bytes) else b"\x01") + len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()
