"""The SQS API: takes what speaks to Amazon SQS out of the requests of the HTTP server, and carries it out.

It stands behind the browser guard and before all else on the daemon's port: what is meant for SQS can be told from
every other request. A second port is for clients whose endpoint cannot be changed (:attr:`SqsDoor.alone`).
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from time import time
from typing import Any, Final

import trio

from mq import turns
from mq.access import Right, User
from mq.broker.api import BrokerAPI
from mq.doors.audit import note
from mq.doors.budget import Budget, Room
from mq.doors.logins import Logins
from mq.doors.quotas import Quotas
from mq.errors import MQError
from mq.lifecycle import PROTOCOL
from mq.sqs import message_actions, queue_actions
from mq.sqs.actions import ACCESS_DENIED, Action, ActionCall, Attempts, Desk, LaterMembers, Members, body_room
from mq.sqs.errors import SqsError, sqs_error
from mq.sqs.move_tasks import MoveTasks
from mq.sqs.names import REGION, queue_of_path
from mq.sqs.notes import NoteBook
from mq.sqs.protocol import (
    FORM,
    PREFIX,
    TARGET,
    VERSION,
    JsonSpeech,
    QuerySpeech,
    Speech,
    fields_of,
)
from mq.sqs.signatures import ALGORITHM, SIGNED, Signature, check_time, is_signed_by, signature_of
from mq.web.exchange import Abandon, Answer, Handler, Later, Reply, Request, RequestHead, problem
from mq.web.http_connection import CONNECTION, WaitingRequests
from mq.web.request_body import IN_MEMORY_BYTES, LimitedBody, making_room

logger = logging.getLogger(__name__)

ACTIONS: Final[Mapping[str, Action]] = {
    action.name: action for action in (*queue_actions.ACTIONS, *message_actions.ACTIONS)
}
"""All actions, by name."""

LARGEST_REQUEST: Final = 8 << 20
"""Bytes of a request: a mebibyte of text takes up to six where JSON escapes all of it."""
_READ: Final = 4
"""How much memory a byte of a request may take while it is read."""
_PIECE: Final = 64 * 1024
_MOST_BEGUN: Final = 16 * 1024
"""Bytes of a request that is read in one step."""
_FIFO: Final = b".fifo"
"""A queue whose name ends so is not served in one step: what its request says would be read twice."""
_CREDENTIAL: Final = re.compile(r"Credential=[^/,\s]{1,128}/[0-9]{8}/([a-z0-9-]{1,40})/")
_ACTION: Final = re.compile(rb"(?:\A|&)Action=([A-Za-z]{1,64})(?:&|\Z)")
_GET: Final = (
    "A GET request in the query protocol must be signed with a user's access key (X-Amz-Signature); otherwise a link "
    "on any web page could delete a queue. Sign the request, or send a POST request instead, as the SDKs do (with "
    "curl, use --data)"
)


class SqsDoor(Handler):
    """Answers requests that are meant for SQS, and hands on all others.

    Args:
        nursery: runs message move tasks; :meth:`end` ends them.
        logins: knows the users; None allows everything to all.
        lease_seconds: length of a lease, where neither the queue nor the receive says one.
        base_path: the path under which a proxy serves the daemon; queues' URLs have it.
        quotas: hold users to their limits; None for some of this server alone.
    """

    def __init__(
        self,
        handler: Handler,
        broker: BrokerAPI,
        budget: Budget,
        nursery: trio.Nursery,
        logins: Logins | None = None,
        *,
        lease_seconds: float = 30.0,
        base_path: str = "",
        quotas: Quotas | None = None,
    ) -> None:
        self._handler = handler
        self._logins = logins
        self._base_path = base_path
        waits, tasks = WaitingRequests(), MoveTasks(broker, nursery)
        nursery.start_soon(tasks.resume)
        notes, attempts, changing = NoteBook(broker), Attempts(), trio.Lock()
        quotas = quotas or Quotas()
        self._desk = Desk(broker, notes, waits, tasks, budget, attempts, changing, lease_seconds, base_path, quotas)

    @property
    def alone(self) -> SqsDoor:
        """The same API for a port of its own, where nothing else is answered."""
        served = copy.copy(self)
        served._handler = _NothingElse()
        return served

    def end(self) -> None:
        """End all waits for messages, and all message move tasks, before mq stops."""
        self._desk.waits.end()
        self._desk.tasks.end()

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`: SQS's, or that of the handler behind."""
        if not self._may_be_meant(request):
            return await self._handler.handle(request)
        if self._is_refused_get(request):
            code = "UnsupportedOperation" if self._logins is None else "MissingAuthenticationToken"
            return QuerySpeech(None).refusal(SqsError(code, _GET))
        is_json, is_url, url = _is_json(request), self._is_signed_url(request), self._url(request)
        speech = JsonSpeech(request.headers[TARGET]) if is_json else QuerySpeech(url)
        room = body_room(request, self._desk.budget)
        try:
            signature = self._signature(request)
            body = await _read(request, room)
        except MQError as error:
            room.give_back()
            return speech.refusal(sqs_error(error))._replace(is_last=True)
        if not is_json and not is_url and not _is_query(request, body):
            room.give_back()
            return await self._handler.handle(request._replace(body=body, content_length=len(body)))
        try:
            reply = await self._carry_out(speech, request, signature, body, room)
        except MQError as error:
            return _refuse(speech, error, room)
        except BaseException:
            room.give_back()
            raise
        return _with_room(reply, room)

    def begin_json(self, speech: JsonSpeech, region: str, request: Request, answer: Answer) -> Reply | Abandon | None:
        """As :meth:`Handler.begin`: a small request for an action that can begin.

        Args:
            region: of a request without a user.
        """
        body = request.body
        if not isinstance(body, bytes) or len(body) > _MOST_BEGUN or _FIFO in body:
            return None
        user = None
        try:
            signature = self._signature(request, is_noted=False)
        except SqsError:
            return None  # handle refuses it, and notes that
        try:
            if signature is not None:
                user, region = self._signer(request, signature, body)
            action, wanted = speech.read(ACTIONS, body)
            call = ActionCall(self._desk, action, wanted, request, user, region)
            assert action.begin is not None, "a head that wants it can begin"
            token = PROTOCOL.set("sqs")
            try:
                return action.begin(call, partial(answer, partial(_reply_of, speech, call)))
            except SqsError as error:
                self._note_denial(error, call)
                raise
            finally:
                PROTOCOL.reset(token)
        except MQError as error:
            return _refuse(speech, error)

    def for_head(self, head: RequestHead) -> Handler:
        """Itself for what is meant for SQS, and for forms, of which only the body tells."""
        if not self._may_be_meant(head):
            return self._handler.for_head(head)
        if _is_json(head):
            speech = JsonSpeech(head.headers[TARGET])
            action = ACTIONS.get(speech.name)
            if action is not None and action.begin is not None:
                return _BeginsJson(self, speech, _region(head))
        return self

    def _may_be_meant(self, head: RequestHead | Request) -> bool:
        """False for what is unclear, too: the handler refuses it."""
        is_clear = not ("transfer-encoding" in head.headers and "content-length" in head.headers)
        is_get = self._is_signed_url(head) or self._is_refused_get(head)
        return is_clear and (_is_json(head) or is_get or self._may_be_query(head))

    def _may_be_query(self, request: RequestHead | Request) -> bool:
        """Whether a request may be one of the query protocol, before its fields are read. SDKs announce its length."""
        length, type = request.content_length, request.headers.get("content-type", "")
        if request.method != "POST" or type.partition(";")[0].strip().lower() != FORM or length is None:
            return False
        if request.path == b"/":  # where HTTP has nothing
            return True
        is_signed = request.headers.get("authorization", "").startswith(ALGORITHM) or SIGNED in request.query
        return length <= LARGEST_REQUEST and (is_signed or self._logins is None) and self._url(request) is not None

    def _is_signed_url(self, request: RequestHead | Request) -> bool:
        """Whether a request is a signed URL that was followed. False where signatures are not checked: there a mere
        link could delete a queue."""
        is_get = request.method == "GET" and SIGNED in request.query and b"Action=" in request.query
        return is_get and self._logins is not None and (request.path == b"/" or self._url(request) is not None)

    def _is_refused_get(self, request: RequestHead | Request) -> bool:
        """Whether a request is one of the query protocol by GET that is not followed, for it is not signed."""
        if request.method != "GET" or b"Action=" not in request.query or self._is_signed_url(request):
            return False
        named = _ACTION.search(request.query)
        is_action = named is not None and named[1].decode("ascii") in ACTIONS
        return is_action and (request.path == b"/" or self._url(request) is not None)

    def _url(self, request: RequestHead | Request) -> str | None:
        path = request.path.decode("latin-1")
        return None if queue_of_path(path) is None else f"http://-{path}"

    async def _carry_out(
        self, speech: Speech, request: Request, signature: Signature | None, body: bytes, room: Room
    ) -> Reply:
        user, region = self._signer(request, signature, body)
        if len(body) > IN_MEMORY_BYTES:
            room.cover(_READ * len(body))
        text = request.query if request.method == "GET" else body
        action, wanted = await turns.apart(len(body), partial(speech.read, ACTIONS, text))
        token = PROTOCOL.set("sqs")  # the connection's task goes on, and its next request may be for another protocol
        call = ActionCall(self._desk, action, wanted, request, user, region, room)
        try:
            members = await action.handle(call)
        except SqsError as error:
            self._note_denial(error, call)
            raise
        finally:
            PROTOCOL.reset(token)
        changed = next((queue for right, queue in call.demanded if right == Right.CONFIGURE), None)
        if changed is not None:
            who = None if user is None else user.name
            note(action.audited, protocol="sqs", address=request.address, user=who, queue=changed)
        return speech.answer(action, members)

    def _note_denial(self, error: SqsError, call: ActionCall) -> None:
        if error.name != ACCESS_DENIED:
            return
        assert self._logins is not None, "it knew the user"
        assert call.user is not None, "and so did its call"
        about = {"operation": call.action.name, "queue": call.demanded[-1][1]}
        self._logins.refusals.refused(protocol="sqs", address=call.request.address, user=call.user.name, **about)

    def _signature(self, request: Request, *, is_noted: bool = True) -> Signature | None:
        """The signature of a request, before its body is read. Without users every request is known: None.

        Raises:
            SqsError: the request has no signature of a known key, or an old one.
        """
        if self._logins is None:
            return None
        try:
            signature = signature_of(request)
            check_time(signature, time())
            if self._logins.access.by_aws_key(signature.key_id) is None:
                raise SqsError(
                    "InvalidClientTokenId",
                    "The security token included in the request is invalid: no mq user has this access key. "
                    "Create a key with mq user aws-key",
                )
        except SqsError as error:
            if is_noted:
                self._logins.note_failure("sqs", request.address, "", error.name)
            raise
        return signature

    def _as_sent(self, request: Request) -> Iterator[Request]:
        """The request with the paths that its client may have signed: a proxy may have taken the base path away, as the
        daemon does."""
        yield request
        if self._base_path:
            path = self._base_path.encode() + request.path
            yield request._replace(path=path)
            yield request._replace(path=path.rstrip(b"/"))

    def _signer(self, request: Request, signature: Signature | None, body: bytes) -> tuple[User | None, str]:
        """The user who signed a request, None where there are no users; and the region of the signature.

        Raises:
            SqsError: the key was taken away, or the request did not come as it was signed.
        """
        if self._logins is None or signature is None:
            return None, _region(request)
        found = self._logins.access.by_aws_key(signature.key_id)
        if found is None or not any(is_signed_by(found[1], signature, each, body) for each in self._as_sent(request)):
            name = "" if found is None else found[0].name
            self._logins.note_failure("sqs", request.address, name, "SignatureDoesNotMatch")
            raise SqsError(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
                "Access Key and signing method.",
            )
        self._logins.note_success("sqs", request.address, found[0])
        connection = CONNECTION.get()
        if connection is not None:
            if connection.user != found[0].name:
                self._desk.quotas.check_connection(found[0])
            connection.log_in(found[0].name)
        if request.memory is not None:
            request.memory.log_in(found[0].name)  # until here the body counts for strangers: anyone can name a key
        return found[0], signature.region


class _BeginsJson(Handler):
    """Answers requests in JSON for an action that can begin."""

    def __init__(self, door: SqsDoor, speech: JsonSpeech, region: str) -> None:
        self._door = door
        self.begin = partial(door.begin_json, speech, region)  # type: ignore[method-assign] # a method would only call it

    async def handle(self, request: Request) -> Reply:
        """As the door."""
        return await self._door.handle(request)


def _reply_of(
    speech: Speech, call: ActionCall, make: Callable[[Any], Members | LaterMembers], value: Any
) -> Reply | Later:
    """The reply to a begun action, whose members the function makes of `value`."""
    try:
        members = make(value)
    except MQError as error:
        return _refuse(speech, error)
    if isinstance(members, dict):
        return speech.answer(call.action, members)
    return partial(_reply_later, speech, call, members)


async def _reply_later(speech: Speech, call: ActionCall, members: LaterMembers) -> Reply:
    room = call.room
    try:
        return _with_room(speech.answer(call.action, await members()), room)
    except MQError as error:
        return _refuse(speech, error, room)
    except BaseException:
        room.give_back()
        raise


def _refuse(speech: Speech, error: MQError, room: Room | None = None) -> Reply:
    if not isinstance(error, SqsError):
        logger.debug("an SQS action failed: %s", error)
    if room is not None:
        room.give_back()
    return speech.refusal(sqs_error(error))


def _with_room(reply: Reply, room: Room) -> Reply:
    """A reply that has the room until it is sent; a short one gives it back."""
    if isinstance(reply.body, bytes) and len(reply.body) > _PIECE:
        return reply._replace(body=_Pieces(reply.body, room))
    room.give_back()
    return reply


class _NothingElse(Handler):
    """Refuses what is not meant for SQS."""

    async def handle(self, request: Request) -> Reply:
        """404."""
        return problem(404, "this port serves only the Amazon SQS API. The HTTP API is on the daemon's --port")


def _is_json(head: RequestHead | Request) -> bool:
    return head.method == "POST" and head.headers.get(TARGET, "").startswith(PREFIX)


def _region(request: RequestHead | Request) -> str:
    """The region that a signature names. It is not checked."""
    authorization = request.headers.get("authorization")
    matched = None if authorization is None else _CREDENTIAL.search(authorization)
    return REGION if matched is None else matched[1]


def _is_query(request: Request, form: bytes) -> bool:
    """Whether a form is a request of the query protocol. The path of a queue's URL may be one of HTTP's, too, and
    a client may publish a form there: only one that names an action and the version of the API is meant for SQS."""
    if request.path == b"/":
        return True
    try:
        fields = dict(fields_of(form))
    except SqsError:
        return False
    return fields.get("Action") in ACTIONS and fields.get("Version") == VERSION


async def _read(request: Request, room: Room) -> bytes:
    """The body of a request. Memory is reserved for a large one."""
    body, length = LimitedBody(request, LARGEST_REQUEST), request.content_length
    if length is not None and length <= IN_MEMORY_BYTES:
        return await body.read()
    room.cover(LARGEST_REQUEST if length is None else min(length, LARGEST_REQUEST))
    with making_room(body, room) as chunks:
        return b"".join([chunk async for chunk in chunks])


class _Pieces:
    """A large answer, whose memory is given back once it is sent."""

    def __init__(self, data: bytes, room: Room) -> None:
        self._data = data
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Piece by piece."""
        self._room.begin_sending()
        for start in range(0, len(self._data), _PIECE):
            yield self._data[start : start + _PIECE]

    async def aclose(self) -> None:
        """Give its memory back."""
        self._data = b""
        self._room.give_back()
