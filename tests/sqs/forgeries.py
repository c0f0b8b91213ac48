"""Signed requests of SQS, and what comes of them on the way: forged, truncated, put into another order."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from mq.access.aws_keys import AwsKey
from mq.web.exchange import Request
from tests.sqs.oddities import odd_request

_REGION: Final = "eu-central-1"
_FORM: Final = re.compile(rb"(?:[A-Za-z0-9._~*=&+-]|%[0-9A-F]{2})+")
_TARGET: Final = re.compile(r"[!-~]+")


class Signed(NamedTuple):
    """A request that somebody signed."""

    request: Request
    body: bytes

    def sent(self) -> Request:
        return self.request._replace(body=self.body, content_length=len(self.body))

    def with_header(self, name: str, change: Callable[[str], str]) -> Signed:
        headers = {**self.request.headers, name: change(self.request.headers[name])}
        return self._replace(request=self.request._replace(headers=headers))

    def with_query(self, query: str) -> Signed:
        return self._replace(request=self.request._replace(query=query.encode()))


def signed_request(random: Random, handles: list[str], key: AwsKey) -> Signed:
    """A request whose members may be odd, and whose signature is right: in a header, or in its URL.

    Args:
        handles: receipt handles that may be used.
    """
    while True:
        odd = odd_request(random, handles)
        if _TARGET.fullmatch(odd.request.headers.get("x-amz-target", "-")):
            break
    request, access = odd.request, Credentials(key.id, key.secret)
    url = f"http://mq{request.path.decode()}"
    if "content-type" in request.headers and _FORM.fullmatch(odd.body) and random.random() < 0.5:
        asked = AWSRequest("GET", f"{url}?{odd.body.decode()}")
        SigV4QueryAuth(access, "sqs", _REGION, expires=600).add_auth(asked)
        query = asked.url.partition("?")[2].encode()
        return Signed(request._replace(method="GET", query=query, headers={"host": "mq"}), b"")
    asked = AWSRequest("POST", url, headers=request.headers, data=odd.body)
    SigV4Auth(access, "sqs", _REGION).add_auth(asked)
    headers = {name.lower(): value for name, value in asked.headers.items()}
    return Signed(request._replace(headers=headers), odd.body)


def reordered(signed: Signed, random: Random) -> Signed:
    """The same request: neither the order of headers nor that of a query is signed."""
    headers = list(signed.request.headers.items())
    random.shuffle(headers)
    fields = _fields(signed)
    random.shuffle(fields)
    return signed._replace(request=signed.request._replace(headers=dict(headers))).with_query(urlencode(fields))


def forged(signed: Signed, random: Random, other: AwsKey) -> tuple[str, Signed]:
    """Another request than the one that was signed, and what was done to it."""
    name = random.choice(list(_IN_URL if signed.request.query else _IN_HEADER))
    change = (_IN_URL if signed.request.query else _IN_HEADER)[name]
    return name, change(signed, random, other)


def _fields(signed: Signed) -> list[tuple[str, str]]:
    return parse_qsl(signed.request.query.decode(), keep_blank_values=True)


Change = Callable[[Signed, Random, AwsKey], Signed]


def _in(header: str, change: Callable[[str, Random, AwsKey], str]) -> Change:
    return lambda signed, random, other: signed.with_header(header, lambda value: change(value, random, other))


def _other_digit(text: str, random: Random, other: AwsKey) -> str:
    """One of the digest's 64, which stand at the end."""
    place = len(text) - random.randrange(1, 65)
    digit = random.choice([each for each in "0123456789abcdef" if each != text[place]])
    return text[:place] + digit + text[place + 1 :]


def _cut(text: str, random: Random, other: AwsKey) -> str:
    return text[: random.randrange(len(text))]


def _other_names(text: str, random: Random, other: AwsKey) -> str:
    """SignedHeaders with one less, one more, or the wrong way round."""
    names = re.search(r"SignedHeaders=([^,]+)", text)
    assert names is not None
    found = names[1].split(";")
    changed = random.choice((found[1:], found[:-1], found[::-1], [*found, "accept"], [*found, found[0]], []))
    return text.replace(names[0], f"SignedHeaders={';'.join(changed)}")


def _other_scope(text: str, random: Random, other: AwsKey) -> str:
    day = re.search(r"/([0-9]{8})/", text)
    assert day is not None
    old, new = random.choice(
        ((_REGION, "us-east-1"), ("/sqs/", "/sns/"), (day[1], "20200101"), ("aws4_request", "aws4"), ("/", "%2F"))
    )
    return text.replace(old, new)


def _other_key(text: str, random: Random, other: AwsKey) -> str:
    return re.sub(r"Credential=[^/]+", f"Credential={random.choice((other.id, 'MQIANOBODY', ''))}", text)


def _other_time(text: str, random: Random, other: AwsKey) -> str:
    last = str((int(text[-2]) + random.randrange(1, 10)) % 10)
    return random.choice((text[:-2] + last + "Z", "20200101T000000Z", text[:-1], "", "99999999T999999Z", "x" * 400))


def _other_body(signed: Signed, random: Random, other: AwsKey) -> Signed:
    body, place = signed.body, random.randrange(len(signed.body) + 1)
    changed = (body[:place] + b" " + body[place:], body[:place], body[:place] + b"A" + body[place + 1 :], body * 2, b"")
    return signed._replace(body=next((each for each in random.sample(changed, 5) if each != body), body + b" "))


def _other_target(signed: Signed, random: Random, other: AwsKey) -> Signed:
    """Another action, or one for a form, which named its own in the body."""
    old = signed.request.headers.get("x-amz-target")
    actions = [name for name in ("AmazonSQS.ListQueues", "AmazonSQS.PurgeQueue") if name != old]
    headers = {**signed.request.headers, "x-amz-target": random.choice(actions)}
    return signed._replace(request=signed.request._replace(headers=headers))


def _without(header: str) -> Change:
    def change(signed: Signed, random: Random, other: AwsKey) -> Signed:
        headers = {name: value for name, value in signed.request.headers.items() if name != header}
        return signed._replace(request=signed.request._replace(headers=headers))

    return change


def _elsewhere(signed: Signed, random: Random, other: AwsKey) -> Signed:
    path = random.choice([each for each in (b"/", b"/000000000000/q", b"/queue/dead") if each != signed.request.path])
    return signed._replace(request=signed.request._replace(path=path))


_IN_HEADER: Final[dict[str, Change]] = {
    "digit": _in("authorization", _other_digit),
    "cut": _in("authorization", _cut),
    "names": _in("authorization", _other_names),
    "scope": _in("authorization", _other_scope),
    "key": _in("authorization", _other_key),
    "noise": _in("authorization", lambda text, random, other: "AWS4-HMAC-SHA256 " + "=,;/" * random.randrange(500)),
    "time": _in("x-amz-date", _other_time),
    "host": _in("host", lambda text, random, other: random.choice(("mq:1", "other", ""))),
    "body": _other_body,
    "path": _elsewhere,
    "target": _other_target,
    "bare": _without("authorization"),
    "timeless": _without("x-amz-date"),
}


def _field(change: Callable[[list[tuple[str, str]], int], list[tuple[str, str]]]) -> Change:
    """A change of one of the URL's fields; all of them are signed, but for the signature itself."""

    def make(signed: Signed, random: Random, other: AwsKey) -> Signed:
        fields = _fields(signed)
        return signed.with_query(urlencode(change(fields, random.randrange(len(fields)))))

    return make


def _longer(fields: list[tuple[str, str]], place: int) -> list[tuple[str, str]]:
    return [(name, value + "1" * (at == place)) for at, (name, value) in enumerate(fields)]


_IN_URL: Final[dict[str, Change]] = {
    "value": _field(_longer),
    "name": _field(lambda fields, at: [*fields[:at], (fields[at][0] + "x", fields[at][1]), *fields[at + 1 :]]),
    "less": _field(lambda fields, at: [*fields[:at], *fields[at + 1 :]]),
    "more": _field(lambda fields, at: [*fields[:at], ("MessageBody", "evil"), *fields[at:]]),
    "cut": lambda signed, random, other: signed.with_query(_cut(signed.request.query.decode(), random, other)),
    "host": _IN_HEADER["host"],
    "path": _elsewhere,
}
FORGERIES: Final = {*_IN_HEADER, *_IN_URL}
"""What :func:`forged` may do."""
