"""What a member says when it does not do what it was asked, as the error that the caller gets.

The gateway answers with gRPC's status code and etcd's own text; the codes alone do not tell a full store from a busy
one.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from mq.message import shorten
from mq_etcd.errors import (
    Absent,
    Compacted,
    Denied,
    EtcdError,
    NoSpace,
    Rejected,
    TooLarge,
    Unavailable,
    Uncertain,
)

INVALID_TOKEN: Final = "etcdserver: invalid auth token"

_NOT_DONE: Final = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: not capable",
)
"""What etcd says before it has begun; another member, or the same one a little later, may do it."""
_TOO_LARGE: Final = (
    "etcdserver: request is too large",
    "etcdserver: too many operations in txn request",
    "grpc: received message larger than max",
    "trying to send message larger than max",
)
_NO_SPACE: Final = "etcdserver: mvcc: database space exceeded"
_DENIED: Final = (
    "etcdserver: authentication failed",
    "etcdserver: authentication is not enabled",
    "etcdserver: user name is empty",
    "etcdserver: user name not found",
)
_COMPACTED: Final = "required revision has been compacted"

_CANCELLED, _UNKNOWN, _DEADLINE, _NOT_FOUND = 1, 2, 4, 5
_FORBIDDEN, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 7, 12, 13, 14, 16
_MAY_HAVE_LANDED: Final = (_CANCELLED, _UNKNOWN, _DEADLINE, _INTERNAL, _UNAVAILABLE)


class Refusal(NamedTuple):
    """What a member said."""

    code: int
    text: str


def refusal(status: int, content: bytes) -> Refusal:
    """A reply that is not a success."""
    try:
        found = json.loads(content)
        inner = found.get("error", "")
        if isinstance(inner, dict):  # as a stream has it
            return Refusal(int(inner.get("grpc_code", _UNKNOWN)), str(inner.get("message", "")))
        return Refusal(int(found.get("code", _UNKNOWN)), str(inner or found.get("message", "")))
    except (ValueError, AttributeError, TypeError):
        text = shorten(content.decode(errors="replace"))
        return Refusal(
            _UNIMPLEMENTED,
            f"the server returned HTTP status {status} and {text}. Check that the server is etcd 3.4 or newer with its "
            "gRPC gateway enabled",
        )


def error_of(said: Refusal, address: str) -> EtcdError:
    """What the caller gets for it. Unavailable and Uncertain mean that another member may be asked."""
    kind, advice = _kind(said)
    words = f"etcd at {address} returned an error: {said.text or f'code {said.code}'}"
    return kind(f"{words}. {advice}")


def _kind(said: Refusal) -> tuple[type[EtcdError], str]:
    code, words = said
    if words.startswith((*_NOT_DONE, INVALID_TOKEN)):
        return Unavailable, "Try again"
    if words.startswith(_NO_SPACE):
        return NoSpace, "Remove messages or raise etcd's --quota-backend-bytes, then run etcdctl alarm disarm"
    if any(known in words for known in _TOO_LARGE):
        return TooLarge, "Raise etcd's --max-request-bytes and --max-txn-ops, or send less data at once"
    if code in (_FORBIDDEN, _UNAUTHENTICATED) or words.startswith(_DENIED):
        return Denied, (
            "Set the user and password of an etcd user with the required permissions, or no user if etcd does "
            "not require authentication"
        )
    if _COMPACTED in words:
        return Compacted, "Read the data again"
    if code == _NOT_FOUND and "lease" in words:
        return Absent, "Request a new lease"
    if code in _MAY_HAVE_LANDED:
        return Uncertain, "The request may have been executed"
    return Rejected, "Nothing was changed"
