"""The authorizer: stands before the endpoints, finds the user of a request and checks the right of its operation.

The right is a field of the operation (:mod:`mq.web.operations`); a request for no operation needs the right to
administer the broker. The endpoints get the path as the authorizer judged it, so both see the same queue. A user
without rights on a queue gets the same reply whether it exists or not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from mq.access import Right, SecretRefused, User
from mq.doors.audit import note
from mq.doors.connections import uid_of
from mq.doors.logins import Logins, TryLater
from mq.doors.quotas import Quotas
from mq.errors import CallerError, NoMemory, OverLimit
from mq.message import shorten
from mq.web.endpoints import ROUTER, join_path, split_path
from mq.web.events import CONTENT_TYPE
from mq.web.exchange import NOT_CACHED, Abandon, Answer, Handler, Reply, Request, RequestHead, document, empty, problem
from mq.web.http_connection import CONNECTION
from mq.web.login_sessions import CSRF_HEADER, Sessions, cookie_of, credentials, set_cookie, shown_user
from mq.web.operations import ANY_RIGHT, KNOWN, NO_RIGHT, Operation
from mq.web.page_operations import log_in, log_out
from mq.web.page_operations import session as show_session
from mq.web.refusals import refusal_of
from mq.web.request_body import read_object

_NO_NAME: Final = "-"
"""The first segment of what concerns the broker as a whole; no queue, message or consumer has that name."""
_LOOKS: Final = ("GET", "HEAD")
_BEARER: Final = ("www-authenticate", 'Bearer realm="mq"')
_REALM: Final = (_BEARER, ("www-authenticate", 'Basic realm="mq", charset="UTF-8"'))
_UNKNOWN: Final = problem(
    401, "log in with a token (Bearer), or with a user name and a password or token (Basic)", *_REALM
)


class Rule(NamedTuple):
    """What a request needs.

    Attributes:
        operation: the one that it asks for; None where there is none.
        queue: the queue in question; None where it is the broker as a whole.
        names: all that the path names, in their order.
    """

    operation: Operation | None
    right: str
    queue: str | None
    names: Sequence[str] = ()

    @property
    def about(self) -> dict[str, str]:
        """What the path names, as the audit log has it."""
        return {} if self.operation is None else self.operation.named(self.names)


class Authorizer(Handler):
    """Hands on the requests that their users may make, and refuses the others.

    Args:
        base_path: the path under which a proxy serves the daemon.
        quotas: hold users to their limits.
    """

    def __init__(self, handler: Handler, logins: Logins, base_path: str = "", quotas: Quotas | None = None) -> None:
        self._handler = handler
        self.quotas = quotas or Quotas()
        self._base_path = base_path
        self._logins = logins
        self._sessions = Sessions(logins.access)

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`: 401, 403, or what the handler says."""
        segments = split_path(request.path)
        rule = find_rule(request.method, segments)
        judged = request._replace(path=join_path(segments) if segments else request.path)
        reply = await self._answer(rule, judged)
        return reply._replace(body=b"") if request.method == "HEAD" and isinstance(reply.body, bytes) else reply

    def for_head(self, head: RequestHead) -> Handler:
        """What judges and answers requests with this head; for most operations itself."""
        segments = split_path(head.path)
        rule = find_rule(head.method, segments)
        secret = _secret_of(head.headers.get("authorization", ""))
        if rule.operation is None or rule.operation.begin is None or secret is None or _is_from_the_page(head.headers):
            return self
        judged = head._replace(path=join_path(segments))
        return _JudgedHead(self, rule, secret, self._handler.for_head(judged))

    def may_begin(self, rule: Rule, secret: tuple[str, str], request: Request) -> User | None:
        """Return the user of a request that may begin at once: one whose secret is known, and whose connection has
        logged in before. None for others, who may have to wait, or are refused.

        Args:
            secret: the name and the secret that it gives; of a token no name.
        """
        access, (name, word) = self._logins.access, secret
        try:
            user = access.recall(name, word) if name else access.by_token(word)
        except SecretRefused:
            return None
        connection, memory = CONNECTION.get(), request.memory
        if user is None or connection is None or connection.user != user.name:
            return None
        if memory is None or memory.user != user.name or not _allows(user, rule):
            return None
        self._logins.note_success("http", request.address, user)
        return user

    async def _answer(self, rule: Rule, request: Request) -> Reply:
        if rule.operation is not None and rule.operation.handle is log_in:
            return await self._log_in(request)
        if rule.right == NO_RIGHT:
            return await self._handler.handle(request)
        cookie = None if "authorization" in request.headers else cookie_of(request)
        user = await self._user_of(request) if cookie is None else self._session_user(rule, request, cookie)
        if isinstance(user, Reply):
            return user
        refusal = self._note_user(request, user)
        if refusal is not None:
            return refusal
        request = request._replace(user=user, quotas=self.quotas)
        judged: Request | Reply = request
        if not _allows(user, rule) and not _may_do_less(user, rule):
            judged = _forbidden(rule.right, rule.queue)
        elif rule.operation is not None and rule.operation.sends_to:
            judged = await _with_judged_body(user, rule, rule.operation, request)
        reply = judged if isinstance(judged, Reply) else await self._handler.handle(judged)
        if reply.status == HTTPStatus.FORBIDDEN:
            self._note_refusal(rule, request, user)
        _audit(rule, request, reply, user.name)
        return reply

    async def _user_of(self, request: Request) -> User | Reply:
        """The user of a request without a session, or the reply to a stranger."""
        authorization = request.headers.get("authorization")
        is_from_page = _is_from_the_page(request.headers)
        if is_from_page and authorization is None and uid_of(request.address) is None:
            return _without_dialogue(_UNKNOWN)  # so the page finds out that it has to ask: no login has failed
        user = await self._user(request.address, authorization or "")
        return _without_dialogue(user) if is_from_page and isinstance(user, Reply) else user

    def _session_user(self, rule: Rule, request: Request, cookie: str) -> User | Reply:
        """The user of a session of the page, or the reply to its request."""
        session = self._sessions.find(cookie)
        if session is None:
            return _without_dialogue(_UNKNOWN)
        # An image of another page's could fetch a message: a browser sends the cookie along, but no header.
        is_look = request.method in _LOOKS and not (rule.operation is not None and rule.operation.leases)
        if not is_look and not session.has(request.headers.get(CSRF_HEADER, "")):
            self._note_refusal(rule, request, session.user)
            return problem(403, "the header X-CSRF-Token does not contain the session's CSRF token. Reload the page")
        if rule.operation is not None and rule.operation.handle is log_out:
            self._sessions.end(cookie)
            note("logout", protocol="http", address=request.address, user=session.user.name)
            return empty(200, NOT_CACHED, set_cookie(request, "", self._base_path))
        if rule.operation is not None and rule.operation.handle is show_session:
            return document(200, shown_user(session.user, session.csrf), NOT_CACHED)
        return session.user

    async def _log_in(self, request: Request) -> Reply:
        """Begin a session."""
        name = ""
        try:
            name, secret = credentials(await read_object(request))
            user = await self._logins.user(request.address, name, secret)
        except CallerError as error:
            return refusal_of(error)
        except SecretRefused as error:
            return self._stranger(request.address, name, error.why, problem(401, str(error), _BEARER))
        except TryLater as error:
            later = problem(503, str(error), ("retry-after", str(error.seconds)))
            return self._stranger(request.address, name, "has to wait", later)
        if user is None:
            wrong = problem(401, "wrong user name, password or token", _BEARER)
            return self._stranger(request.address, name, "unknown", wrong)
        self._logins.note_success("http", request.address, user)
        cookie, session = self._sessions.begin(user, secret)
        given_out = set_cookie(request, cookie, self._base_path)
        return document(200, shown_user(user, session.csrf), NOT_CACHED, given_out)

    def _note_user(self, request: Request, user: User) -> Reply | None:
        """Note who is at the other end of a connection; the reply where that is one too many."""
        connection = CONNECTION.get()
        try:
            if connection is not None:
                if connection.user != user.name:
                    self.quotas.check_connection(user)
                connection.log_in(user.name)
            if request.memory is not None:
                request.memory.log_in(user.name)
        except OverLimit as error:
            return refusal_of(error)._replace(is_last=True)
        except NoMemory as error:
            return refusal_of(error)
        return None

    def _note_refusal(self, rule: Rule, request: Request, user: User) -> None:
        asked = f"{request.method} {'' if rule.operation is None else rule.operation.path}".strip()
        names = {name: value for name, value in rule.about.items() if name != "id"}  # not a line for each message
        self._logins.refusals.refused(
            protocol="http", address=request.address, user=user.name, operation=asked, **names
        )

    async def _user(self, address: str, authorization: str) -> User | Reply:
        """The user of these credentials, or the reply to a stranger: always the same one, after the same work."""
        scheme, _, given = authorization.strip().partition(" ")
        name = ""
        try:
            user = None
            if scheme.lower() == "bearer":
                user = self._logins.access.by_token(given.strip())
            elif scheme.lower() == "basic":
                name, secret = _basic(given.strip())
                user = await self._logins.user(address, name, secret)
            elif not authorization:  # a failed login must not fall back to the user of the socket
                uid = uid_of(address)
                user = None if uid is None else self._logins.access.by_uid(uid)
        except SecretRefused as error:
            return self._stranger(address, name, error.why, problem(401, str(error), *_REALM))
        except TryLater as error:
            later = problem(503, str(error), ("retry-after", str(error.seconds)))
            return self._stranger(address, name, "has to wait", later)
        if user is None:
            return self._stranger(address, name, "unknown" if authorization else "no credentials", _UNKNOWN)
        self._logins.note_success("http", address, user)
        return user

    def _stranger(self, address: str, name: str, why: str, reply: Reply) -> Reply:
        self._logins.note_failure("http", address, name, why)
        return reply


class _JudgedHead(Handler):
    """Judges requests with one head, whose operation can begin in the step that read them."""

    def __init__(self, authorizer: Authorizer, rule: Rule, secret: tuple[str, str], handler: Handler) -> None:
        self._authorizer = authorizer
        self._rule = rule
        self._secret = secret
        self._handler = handler
        self.takes_id = handler.takes_id

    async def handle(self, request: Request) -> Reply:
        """As :meth:`Authorizer.handle`."""
        return await self._authorizer.handle(request)

    def begin(self, request: Request, answer: Answer) -> Reply | Abandon | None:
        """As :meth:`Handler.begin`. Operations that begin have no place in the audit log."""
        user = self._authorizer.may_begin(self._rule, self._secret, request)
        if user is None:
            return None
        return self._handler.begin(request._replace(user=user, quotas=self._authorizer.quotas), answer)


class Auditor(Handler):
    """Writes the audit log where there are no users, and so no :class:`Authorizer`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`."""
        reply = await self._handler.handle(request)
        if request.method not in _LOOKS:
            _audit(find_rule(request.method, split_path(request.path)), request, reply, None)
        return reply

    def for_head(self, head: RequestHead) -> Handler:
        """Itself, where it may have something to write."""
        operation = find_rule(head.method, split_path(head.path)).operation
        return self if operation is not None and operation.events else self._handler.for_head(head)


async def _with_judged_body(user: User, rule: Rule, operation: Operation, request: Request) -> Request | Reply:
    """The request, if its user has the rights on the queue that the JSON names, or the lesser right where its keys
    need no more; else the refusal.

    The handler gets the JSON as it was parsed here, so it cannot read another name."""
    try:
        value = await read_object(request)
    except CallerError as error:
        return refusal_of(error)
    if not _allows(user, rule) and not (value and value.keys() <= set(operation.lesser_keys)):
        return _forbidden(rule.right, rule.queue)
    key = operation.sends_to
    named = value.get(key)
    if named is not None and not isinstance(named, str):
        return problem(400, f"{key} must be a queue's name")  # behind here 7 may be taken for "7"
    for right, queue in ((Right.CONSUME, rule.queue), (Right.PUBLISH, named)) if named is not None else ():
        if not user.may(right, queue):
            return _forbidden(right, queue)
    understood = json.dumps(value).encode()
    return request._replace(body=understood, content_length=len(understood))


def _audit(rule: Rule, request: Request, reply: Reply, user: str | None) -> None:
    event = None if rule.operation is None else rule.operation.events.get(reply.status)
    if event is not None:
        note(event, protocol="http", address=request.address, user=user, **rule.about)


def find_rule(method: str, segments: Sequence[str]) -> Rule:
    """The rule of a request. Without an operation it takes the right to administer the broker."""
    method = "GET" if method == "HEAD" else method
    # By method, too: DELETE /q/messages/batch is refused as the removal of a message, before it gets 405.
    found = ROUTER.find(segments, method)
    if found is None or _NO_NAME in found[1]:
        return Rule(None, Right.ADMINISTER, None)
    route, names = found
    operation = route.methods[method]
    name = names[0] if names else None
    return Rule(operation, operation.right, name if operation.is_of_queue else None, names)


def _allows(user: User, rule: Rule) -> bool:
    if rule.right == KNOWN:
        return True
    if rule.right == ANY_RIGHT:
        return rule.queue is not None and user.may_something(rule.queue)
    return user.may(Right(rule.right), rule.queue)


def _may_do_less(user: User, rule: Rule) -> bool:
    """Whether the user has the lesser right of an operation. The body tells whether that is enough."""
    lesser = "" if rule.operation is None else rule.operation.lesser_right
    return bool(lesser) and user.may(Right(lesser), rule.queue)


def _forbidden(right: str, queue: str | None) -> Reply:
    what = f"this requires {'a right' if right == ANY_RIGHT else f'the right to {right}'}"
    return problem(403, f"{what} on {'this broker' if queue is None else f'queue {shorten(queue)}'}")


def _secret_of(authorization: str) -> tuple[str, str] | None:
    """The name and the secret that a header gives, no name with a token; None where it gives none."""
    scheme, _, given = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return "", given.strip()
    name, secret = _basic(given.strip()) if scheme.lower() == "basic" else ("", "")
    return (name, secret) if name else None


def _basic(given: str) -> tuple[str, str]:
    """Name and secret (RFC 7617). Anything else becomes an unknown name."""
    try:
        name, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, secret


def _is_from_the_page(headers: Mapping[str, str]) -> bool:
    return CSRF_HEADER in headers or CONTENT_TYPE in headers.get("accept", "")


def _without_dialogue(reply: Reply) -> Reply:
    """The refusal, without the header that makes a browser ask for a password: the page has a form for that."""
    kept = tuple(header for header in reply.headers if header[0] != "www-authenticate")
    return reply._replace(headers=(*kept, _BEARER)) if len(kept) < len(reply.headers) else reply
