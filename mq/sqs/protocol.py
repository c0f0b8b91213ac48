"""The two protocols of SQS: a request is read, an answer written. Pure.

AWS JSON 1.0 names the action in the header ``X-Amz-Target``, and answers in JSON. The older query protocol names it in
the field ``Action`` of a form, and answers in XML. SDKs speak one or the other; a request says which.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from mq.errors import InvalidRequest
from mq.message import shorten
from mq.sqs.actions import Action
from mq.sqs.errors import SqsError
from mq.sqs.shapes import from_form, in_base64, members_of, to_xml, tree_of, written
from mq.web.exchange import Reply
from mq.web.refusals import retry_after
from mq.web.replies import STORED
from mq.web.request_body import IN_MEMORY_BYTES, parse_object

TARGET: Final = "x-amz-target"
PREFIX: Final = "AmazonSQS."
FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/x-amz-json-1.0"
VERSION: Final = "2012-11-05"
"""Of the API: the only one."""
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
MOST_FIELDS: Final = 2000
"""Of a form: a batch with all that it may have has some 500."""

MOST_PARTS: Final = 20_000
"""Of a large JSON document: texts, members and items."""

Headers = tuple[tuple[str, str], ...]


class Speech(Protocol):
    """One of the two protocols."""

    def read(self, actions: Mapping[str, Action], text: bytes) -> tuple[Action, Mapping[str, Any]]:
        """The action that a request wants, and the members of its input.

        Args:
            text: its body, or the query of a signed URL.

        Raises:
            SqsError: it is malformed, or there is no such action.
        """

    def answer(self, action: Action, said: Mapping[str, Any]) -> Reply:
        """The reply to a request that was carried out."""

    def refusal(self, error: SqsError) -> Reply:
        """The reply to one that was refused."""


class JsonSpeech:
    """AWS JSON 1.0."""

    def __init__(self, target: str) -> None:
        self.name = target.removeprefix(PREFIX)

    def read(self, actions: Mapping[str, Action], text: bytes) -> tuple[Action, Mapping[str, Any]]:
        """As :meth:`Speech.read`."""
        action = _known(actions, self.name)
        if len(text) > IN_MEMORY_BYTES:
            _check_sparse(text)
        try:
            given = parse_object(text) if text else {}
        except InvalidRequest as error:
            raise SqsError("SerializationException", str(error)) from None
        return action, members_of(action.input, given)

    def answer(self, action: Action, said: Mapping[str, Any]) -> Reply:
        """As :meth:`Speech.answer`. Where there is nothing to say the body is empty, as AWS has it."""
        return _reply(200, JSON, _encode(said) if action.output.members else "", _new_id())

    def refusal(self, error: SqsError) -> Reply:
        """As :meth:`Speech.refusal`; a header has the older code."""
        said = json.dumps({"__type": f"com.amazonaws.sqs#{error.name}", "message": error.text})
        fault = "Sender" if error.is_sender_fault else "Receiver"
        old = ("x-amzn-query-error", f"{error.kind.query_code};{fault}")
        return _reply(error.kind.status, JSON, said, _new_id(), old, *_later(error))


class QuerySpeech:
    """The query protocol.

    Args:
        queue_url: the address that the request went to, where it is a queue's.
    """

    def __init__(self, queue_url: str | None) -> None:
        self._url = queue_url

    def read(self, actions: Mapping[str, Action], text: bytes) -> tuple[Action, Mapping[str, Any]]:
        """As :meth:`Speech.read`."""
        tree = tree_of(fields_of(text))
        name = tree.get("Action")
        if not isinstance(name, str):
            raise SqsError("MissingAction", "The request must contain the parameter Action.")
        action = _known(actions, name)
        if self._url is not None and "QueueUrl" in action.input.members:
            tree.setdefault("QueueUrl", self._url)
        return action, from_form(action.input, tree)

    def answer(self, action: Action, said: Mapping[str, Any]) -> Reply:
        """As :meth:`Speech.answer`."""
        name, id = action.name, _new_id()
        result = f"<{name}Result>{to_xml(action.output, said)}</{name}Result>" if action.output.members else ""
        metadata = f"<ResponseMetadata><RequestId>{id}</RequestId></ResponseMetadata>"
        return _xml(200, f'<{name}Response xmlns="{NAMESPACE}">{result}{metadata}</{name}Response>', id)

    def refusal(self, error: SqsError) -> Reply:
        """As :meth:`Speech.refusal`."""
        kind, id, fault = error.kind, _new_id(), "Sender" if error.is_sender_fault else "Receiver"
        said = (
            f"<Error><Type>{fault}</Type><Code>{kind.query_code}</Code><Message>{written(error.text)}</Message>"
            "<Detail/></Error>"
        )
        answer = f'<ErrorResponse xmlns="{NAMESPACE}">{said}<RequestId>{id}</RequestId></ErrorResponse>'
        return _xml(kind.status, answer, id, *_later(error))


def _later(error: SqsError) -> tuple[tuple[str, str], ...]:
    """The header that tells when to come again, where that helps."""
    return (retry_after(),) if error.kind.status == 503 else ()


def _check_sparse(body: bytes) -> None:
    """Refuse JSON of so many parts that only their number can be meant: eight mebibytes of ``{},`` would take a fifth
    of a gibibyte, and stop all others for half a second. What is large in a request of SQS is text.

    Raises:
        SqsError: it has.
    """
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # a quote begins a text or ends one now
    is_sparse = plain.count(b'"') <= MOST_PARTS
    if not is_sparse or sum(outside.count(b",") for outside in plain.split(b'"')[::2]) > MOST_PARTS:
        raise SqsError(
            "SerializationException", f"the request has more than {MOST_PARTS} fields. Send less data at once"
        )


_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":"), default=in_base64
).encode
"""One encoder for all answers: to make one takes as long as to use it. All is as JSON has it, but for bytes."""


def fields_of(form: bytes) -> list[tuple[str, str]]:
    """The fields of a form.

    Raises:
        SqsError: it is none, or has too many.
    """
    try:
        return parse_qsl(form.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise SqsError(
            "MalformedQueryString",
            f"the request body must be a URL-encoded form in UTF-8 with at most {MOST_FIELDS} fields",
        ) from None


def _known(actions: Mapping[str, Action], name: str) -> Action:
    if name not in actions:
        raise SqsError("UnknownOperationException", f"The action {shorten(name)} is not valid for this endpoint.")
    return actions[name]


def _xml(status: int, text: str, id: str, *headers: tuple[str, str]) -> Reply:
    return _reply(status, "text/xml", f'<?xml version="1.0"?>{text}', id, *headers)


def _reply(status: int, type: str, text: str, id: str, *headers: tuple[str, str]) -> Reply:
    body = text.encode()
    ours = ("content-type", type), ("content-length", str(len(body))), *STORED, ("x-amzn-requestid", id)
    return Reply(status, (*ours, *headers) if headers else ours, body)


_IDS: Final = itertools.count(int.from_bytes(os.urandom(15)))


def _new_id() -> str:
    """A unique request ID, counted from a random number: a random number for each request would cost a system call."""
    return f"{next(_IDS):032x}"
