"""Checks AWS Signature Version 4: which key has signed a request, and whether it came as it was signed. Pure.

A client makes a digest of the request, its time and its region with a secret that it has in common with mq. It sends
the digest in the header Authorization, or in the query of a URL that was signed for others to use. (AWS General
Reference, "Signing AWS API requests".)
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote

from mq.sqs.errors import SqsError
from mq.web.exchange import Request

LONGEST_SKEW_SECONDS: Final = 900
"""How far the client's clock may be off, and how long a signed request may be on its way."""
LONGEST_EXPIRES_SECONDS: Final = 604_800
"""How long a signed URL may count."""
ALGORITHM: Final = "AWS4-HMAC-SHA256"
SIGNED: Final = b"X-Amz-Signature="
"""Stands in the query of a signed URL."""

_SERVICE: Final = "sqs"
_TARGET: Final = "x-amz-target"
_HEADER: Final = re.compile(
    rf"{ALGORITHM}\s+Credential=([^,\s]+)\s*,\s*SignedHeaders=([^,\s]+)\s*,\s*Signature=([0-9a-f]{{64}})"
)
_SCOPE: Final = re.compile(r"([A-Za-z0-9_]{8,128})/([0-9]{8})/([a-z0-9-]{1,40})/([a-z0-9-]{1,40})/aws4_request")
_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_UNRESERVED: Final = "-_.~"
_DIGITS: Final = re.compile(r"[0-9]{1,6}")


class Signature(NamedTuple):
    """A signature, as a request has it.

    Attributes:
        time: when, as ``YYYYMMDDTHHMMSSZ``.
        scope: what the secret was narrowed down to: day, region, service.
        headers: the names of the headers that were signed, in small letters.
        expires: seconds for which it counts; None for a request that was signed to be sent at once.
    """

    key_id: str
    region: str
    time: str
    scope: str
    headers: tuple[str, ...]
    digest: str
    expires: int | None


def signature_of(request: Request) -> Signature:
    """The signature of a request, not yet checked.

    Raises:
        SqsError: it has none, or one that says too little.
    """
    signature = _said(request)
    for name in ("host", _TARGET):  # else others could send what was signed elsewhere, or as another action
        if name not in signature.headers and (name == "host" or name in request.headers):
            raise _incomplete(f"SignedHeaders must include {name}")
    return signature


def _said(request: Request) -> Signature:
    if "authorization" in request.headers:
        matched = _HEADER.fullmatch(request.headers["authorization"].strip())
        if matched is None:
            raise _incomplete(
                "The Authorization header must consist of AWS4-HMAC-SHA256 followed by Credential, SignedHeaders and "
                "Signature"
            )
        credential, headers, digest = matched.groups()
        return _signature(credential, headers, digest, request.headers.get("x-amz-date", ""), None)
    if SIGNED not in request.query:
        raise SqsError(
            "MissingAuthenticationToken", "Request is missing Authentication Token. Sign the request with an access key"
        )
    query = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
    expires = query.get("X-Amz-Expires", "")
    if query.get("X-Amz-Algorithm") != ALGORITHM or _DIGITS.fullmatch(expires) is None:
        raise _incomplete(f"a signed URL requires X-Amz-Algorithm={ALGORITHM} and X-Amz-Expires in seconds")
    return _signature(
        query.get("X-Amz-Credential", ""),
        query.get("X-Amz-SignedHeaders", ""),
        query.get("X-Amz-Signature", ""),
        query.get("X-Amz-Date", ""),
        int(expires),
    )


def _signature(credential: str, headers: str, digest: str, time: str, expires: int | None) -> Signature:
    scope = _SCOPE.fullmatch(credential)
    if scope is None or scope[4] != _SERVICE:
        raise _incomplete("Credential must have the form KEY/DATE/REGION/sqs/aws4_request")
    if _TIME.fullmatch(time) is None or not time.startswith(scope[2]):
        raise _incomplete("X-Amz-Date must have the form YYYYMMDDTHHMMSSZ and the same date as the Credential")
    names = tuple(headers.split(";"))
    return Signature(scope[1], scope[3], time, credential.partition("/")[2], names, digest, expires)


def _incomplete(problem: str) -> SqsError:
    return SqsError("IncompleteSignature", problem)


def check_time(signature: Signature, now: float) -> None:
    """Check that a request is neither too old nor from the future.

    Args:
        now: seconds since 1970.

    Raises:
        SqsError: it is.
    """
    signed = _seconds_of(signature.time)
    lasts = LONGEST_SKEW_SECONDS if signature.expires is None else signature.expires
    if lasts > LONGEST_EXPIRES_SECONDS:
        raise _incomplete(f"X-Amz-Expires must be at most {LONGEST_EXPIRES_SECONDS} seconds")
    if not signed - LONGEST_SKEW_SECONDS <= now <= signed + lasts:
        here = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        raise SqsError(
            "SignatureDoesNotMatch",
            f"The signature has expired or is not yet valid: it was created at {signature.time}, but the "
            f"server's time is {here}. Correct the client's or the server's clock",
        )


@lru_cache(maxsize=16)
def _seconds_of(time: str) -> float:
    """The seconds since 1970 of a signature's time, which all requests of one second share."""
    try:
        return datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _incomplete("X-Amz-Date is not a valid time") from None


@lru_cache(maxsize=256)
def _key_of(secret: str, scope: str) -> bytes:
    """The key that a secret gives for a day, a region and a service."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def is_signed_by(secret: str, signature: Signature, request: Request, body: bytes) -> bool:
    """Whether a request came as the owner of the secret has signed it. Compared in constant time."""
    key = _key_of(secret, signature.scope)
    canonical = hashlib.sha256(_canonical(signature, request, body)).hexdigest()
    to_sign = f"{ALGORITHM}\n{signature.time}\n{signature.scope}\n{canonical}"
    digest = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return hmac.compare_digest(digest.encode(), signature.digest.encode("utf-8", "replace"))


def _canonical(signature: Signature, request: Request, body: bytes) -> bytes:
    """The canonical form of a request, of which both sides make the digest."""
    lines = [
        request.method,
        quote(request.path, safe="/" + _UNRESERVED) or "/",
        _canonical_query(request.query, is_signed=signature.expires is not None),
        *[f"{name}:{_folded(request.headers, name)}" for name in signature.headers],
        "",
        ";".join(signature.headers),
        hashlib.sha256(body).hexdigest(),
    ]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _canonical_query(query: bytes, *, is_signed: bool) -> str:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
    kept = [(_encoded(name), _encoded(value)) for name, value in pairs if not (is_signed and name == "X-Amz-Signature")]
    return "&".join(f"{name}={value}" for name, value in sorted(kept))


def _encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe=_UNRESERVED)


def _folded(headers: Mapping[str, str], name: str) -> str:
    """A header's value as clients sign it: its bytes are UTF-8."""
    value = " ".join(headers.get(name, "").split())
    return value.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
