"""Between the HTTP doors and the endpoints: who is asking, and may they?

Every request needs a right; the table says which, and what is not in the table needs that to administer the broker. The
endpoints see the path as it was judged here, so that nothing can look like one queue to the one and like another to
the other. Whoever has no right on a queue gets the same answer whether it is there or not.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import trio

from mq.access import Access, Right, User
from mq.errors import BodyIncomplete
from mq.message import shorten
from mq.web.arriving import Whole
from mq.web.exchange import BodyTooSlow, Handler, Reply, Request, problem
from mq.web.operations import ANY_SEGMENT

ANY: Final = "any"
"""Some right on the queue, whichever."""
NONE: Final = "none"
"""Not even a name: for probes, and for whoever wants to know how to ask."""

RIGHTS: Final[dict[str, str]] = {
    "PUT /QUEUE": Right.CONFIGURE,
    "GET /QUEUE": ANY,
    "DELETE /QUEUE": Right.CONFIGURE,
    "POST /QUEUE/messages": Right.PUBLISH,
    "GET /QUEUE/messages": Right.CONSUME,
    "DELETE /QUEUE/messages/ID": Right.CONSUME,
    "GET /QUEUE/messages/ID": Right.CONSUME,
    "PATCH /QUEUE/messages/ID": Right.CONSUME,
    "PATCH /QUEUE": Right.CONFIGURE,
    "POST /QUEUE/messages/batch": Right.PUBLISH,
    "POST /QUEUE/messages/delete": Right.CONSUME,
    "GET /QUEUE/peek": Right.CONSUME,
    "POST /QUEUE/take": Right.CONSUME,
    "POST /QUEUE/contains": Right.CONSUME,
    "POST /QUEUE/purge": Right.CONFIGURE,
    "POST /QUEUE/redrive": Right.CONFIGURE,
    "GET /QUEUE/browse": Right.CONSUME,
    "GET /QUEUE/ranges": Right.CONSUME,
    "GET /QUEUE/consumers": Right.CONSUME,
    "GET /QUEUE/consumers/CONSUMER": Right.CONSUME,
    "POST /QUEUE/consumers/CONSUMER": Right.CONSUME,
    "DELETE /QUEUE/consumers/CONSUMER": Right.CONSUME,
    "PUT /QUEUE/consumers/CONSUMER/claim": Right.CONSUME,
    "GET /QUEUE/consumers/CONSUMER/claim": Right.CONSUME,
    "DELETE /QUEUE/consumers/CONSUMER/claim": Right.CONSUME,
    "GET /-/queues": Right.ADMINISTER,
    "GET /-/stats": Right.ADMINISTER,
    "GET /-/cluster": Right.ADMINISTER,
    "GET /-/live": NONE,
    "GET /-/ready": NONE,
    "GET /-/openapi.json": NONE,
}
"""Request -> right, as docs/http.md has it. HEAD needs what GET needs."""

NAMED_QUEUES: Final[dict[str, str]] = {"PATCH /QUEUE": "dead_letter_queue", "POST /QUEUE/redrive": "to"}
"""Requests whose JSON may name one more queue, under that key. Messages will be put there, so that takes the right to
publish there."""

LONGEST_JSON: Final = 256 * 1024
"""In bytes, of the bodies of such requests."""
MOST_WAITING: Final = 32
"""How many passwords may wait to be checked."""
RETRY_AFTER_SECONDS: Final = 5

_ORIGIN: Final = re.compile(rb"^https?://[^/]*", re.IGNORECASE)  # RFC 9112, section 3.2.2
_REALM: Final = (("www-authenticate", 'Bearer realm="mq"'), ("www-authenticate", 'Basic realm="mq", charset="UTF-8"'))
_UNKNOWN: Final = problem(
    401, "give a token (Bearer), or a name and a password or token (Basic), that mq knows", *_REALM
)
_BUSY: Final = problem(
    503, "too many passwords wait to be checked: try later, or use a token", ("retry-after", str(RETRY_AFTER_SECONDS))
)


class Rule(NamedTuple):
    """A line of the table that fits a request.

    Attributes:
        line: its request.
        right: what it takes.
        queue: the queue in question; None where it is the broker as a whole.
    """

    line: str
    right: str
    queue: str | None


class Gate:
    """Lets those requests through that their users may make.

    Args:
        handler: what stands behind.
        access: knows the users.
    """

    def __init__(self, handler: Handler, access: Access) -> None:
        self._handler = handler
        self._access = access
        self._turn = trio.CapacityLimiter(1)  # a check takes 16 MiB and a core

    async def handle(self, request: Request) -> Reply:
        """The reply to `request`: 401, 403, or what the handler says."""
        segments = _segments(request.path)
        rule = find_rule(request.method, segments)
        judged = request._replace(path=_path(segments) if segments else request.path)
        reply = await self._judge(rule, judged)
        return reply._replace(body=b"") if request.method == "HEAD" and isinstance(reply.body, bytes) else reply

    async def _judge(self, rule: Rule, request: Request) -> Reply:
        if rule.right == NONE:
            return await self._handler.handle(request)
        user = await self._user(request.headers.get("authorization", ""))
        if isinstance(user, Reply):
            return user
        if not _allows(user, rule):
            return _forbidden(rule.right, rule.queue)
        if rule.line in NAMED_QUEUES:
            return await self._judge_body(user, NAMED_QUEUES[rule.line], request)
        return await self._handler.handle(request)

    async def _user(self, authorization: str) -> User | Reply:
        """Who says so, or the reply to nobody we know: always the same one, after the same time."""
        scheme, _, given = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return self._access.by_token(given.strip()) or _UNKNOWN
        if scheme.lower() != "basic":
            return _UNKNOWN
        name, secret = _basic(given.strip())
        user = self._access.recall(name, secret)
        if user is not None:
            return user
        if self._turn.statistics().tasks_waiting >= MOST_WAITING:
            return _BUSY
        return await trio.to_thread.run_sync(self._access.verify, name, secret, limiter=self._turn) or _UNKNOWN

    async def _judge_body(self, user: User, key: str, request: Request) -> Reply:
        """Look for the other queue in a body of JSON, and hand on what was understood, not what came."""
        try:
            body = await _read(request)
            value = json.loads(body) if body else None
        except BodyTooSlow as error:
            return problem(408, str(error))._replace(is_last=True)
        except BodyIncomplete as error:
            return problem(400, str(error))._replace(is_last=True)
        except (ValueError, RecursionError):
            return problem(400, "the body is not JSON")
        if body is None:
            return problem(413, f"this takes at most {LONGEST_JSON} bytes of JSON")._replace(is_last=True)
        named = value.get(key) if isinstance(value, dict) else None
        if named is not None and not isinstance(named, str):
            return problem(400, f"{key} must be a queue's name")  # behind here 7 may be taken for "7"
        if named is not None and not user.may(Right.PUBLISH, named):
            return _forbidden(Right.PUBLISH, named)
        understood = json.dumps(value).encode() if body else b""
        return await self._handler.handle(request._replace(body=Whole(understood), content_length=len(understood)))


def find_rule(method: str, segments: list[bytes]) -> Rule:
    """The line of the table that fits a request. Where none does, the right to administer the broker is needed."""
    method = "GET" if method == "HEAD" else method
    for template, line in _TEMPLATES.get((method, len(segments)), ()):
        if all(map(_fits, template, segments)):
            queue = None if segments[0] == b"-" else segments[0].decode("utf-8", "surrogateescape")
            return Rule(line, RIGHTS[line], queue)
    return Rule("", Right.ADMINISTER, None)


def _templates() -> dict[tuple[str, int], list[tuple[list[bytes | None], str]]]:
    """Method and number of segments -> the lines that may fit, with their segments; None stands for any."""
    found: dict[tuple[str, int], list[tuple[list[bytes | None], str]]] = {}
    for line in RIGHTS:
        method, _, path = line.partition(" ")
        template = [None if segment in ANY_SEGMENT else segment.encode() for segment in path[1:].split("/")]
        found.setdefault((method, len(template)), []).append((template, line))
    return found


_TEMPLATES: Final = _templates()


def _fits(wanted: bytes | None, segment: bytes) -> bool:
    return segment not in (b"", b"-") if wanted is None else segment == wanted


def _allows(user: User, rule: Rule) -> bool:
    if rule.right == ANY:
        return rule.queue is not None and user.may_something(rule.queue)
    return user.may(Right(rule.right), rule.queue)


def _forbidden(right: str, queue: str | None) -> Reply:
    what = f"that takes {'some right' if right == ANY else f'the right to {right}'}"
    return problem(403, f"{what} on {'this broker' if queue is None else f'queue {shorten(queue)}'}")


def _segments(path: bytes) -> list[bytes]:
    """The path's segments, split first and decoded after, once. None at all for what is not a path."""
    path = _ORIGIN.sub(b"", path, count=1)
    return [unquote_to_bytes(segment) for segment in path[1:].split(b"/")] if path[:1] == b"/" else []


def _path(segments: list[bytes]) -> bytes:
    return b"".join(b"/" + quote_from_bytes(segment, safe="").encode() for segment in segments)


def _basic(given: str) -> tuple[str, str]:
    """Name and secret (RFC 7617). What is no such pair is a name that nobody has."""
    try:
        name, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, secret


async def _read(request: Request) -> bytes | None:
    """The body, or None when it is too long."""
    body = bytearray()
    async for chunk in request.body:
        body += chunk
        if len(body) > LONGEST_JSON:
            return None
    return bytes(body)
