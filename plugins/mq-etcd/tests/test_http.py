"""Replies out of bytes, however they are cut; and what is none."""

from __future__ import annotations

import pytest
from mq_etcd.http import LONGEST_HEAD, Head, Malformed, ReplyParser

from tests.cases import for_each

HEAD = b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 20:07:42 GMT\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

REPLIES = {
    "with a length": (HEAD + b"Content-Length: 5\r\n\r\nhello", 200, b"hello"),
    "empty": (HEAD + b"content-length: 0\r\n\r\n", 200, b""),
    "in one chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", 200, b"hello"),
    "in chunks": (CHUNKED + b"3\r\nhel\r\n0002;note=1\r\nlo\r\n0\r\n\r\n", 200, b"hello"),
    "in no chunks": (CHUNKED + b"0\r\n\r\n", 200, b""),
    "with line ends in it": (CHUNKED + b"8\r\n\r\n0\r\n\r\n\n\r\n0\r\n\r\n", 200, b"\r\n0\r\n\r\n\n"),
    "with trailers": (CHUNKED + b"1\r\nx\r\n0\r\nGrpc-Trailer-Content-Type: application/grpc\r\n\r\n", 200, b"x"),
    "after a provisional one": (CONTINUE + HEAD + b"Content-Length: 1\r\n\r\nx", 200, b"x"),
    "a refusal": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", 404, b"{}"),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
}


def read(parser: ReplyParser, pieces: list[bytes]) -> tuple[Head, bytes]:
    """One reply, of which these pieces come one after the other; all of them must be asked for."""
    left = iter(pieces)
    while (head := parser.head()) is None:
        parser.feed(next(left))
    body = b""
    while (part := parser.part()) != b"":
        if part is None:
            parser.feed(next(left))
        else:
            body += part
    assert next(left, None) is None, "the reply was taken for whole before it was"
    return head, body


@for_each("data, status, body", REPLIES.values())
def test_reads_a_reply_however_it_is_cut(data: bytes, status: int, body: bytes) -> None:
    cuts = [[data], [bytes([byte]) for byte in data], *([data[:at], data[at:]] for at in range(1, len(data)))]
    for pieces in cuts:
        parser = ReplyParser()
        for _ in range(2):  # the next reply on the same connection is another one
            assert read(parser, pieces) == (Head(status, True), body)
            assert parser.is_idle


def test_tells_a_connection_that_ends() -> None:
    head, _ = read(ReplyParser(), [HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n"])
    assert not head.keeps_alive
    head, _ = read(ReplyParser(), [b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"])
    assert not head.keeps_alive


BROKEN = {
    "another protocol": (b"220 smtp.example.org\r\n\r\n", "not an HTTP/1.1 response"),
    "no number": (b"HTTP/1.1 OK\r\n\r\n", "not an HTTP/1.1 response"),
    "a field without a colon": (HEAD + b"nonsense\r\n\r\n", "has no colon"),
    "no length": (HEAD + b"\r\n", "neither a Content-Length header nor chunked encoding"),
    "a negative length": (
        HEAD + b"Content-Length: -1\r\n\r\n",
        "the response has an invalid Content-Length or chunk size",
    ),
    "a length in letters": (
        HEAD + b"Content-Length: ff\r\n\r\n",
        "the response has an invalid Content-Length or chunk size",
    ),
    "another encoding": (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", "transfer encoding"),
    "a chunk in words": (
        CHUNKED + b"five\r\nhello\r\n0\r\n\r\n",
        "the response has an invalid Content-Length or chunk size",
    ),
    "a chunk that is longer than it says": (CHUNKED + b"1\r\nhello\r\n0\r\n\r\n", "longer than its declared size"),
    "an endless head": (HEAD + b"X: " + b"x" * LONGEST_HEAD, "exceeds"),
    "an endless chunk line": (CHUNKED + b"1" * (LONGEST_HEAD + 1), "exceeds"),
    "endless trailers": (CHUNKED + b"0\r\n" + b"x" * LONGEST_HEAD, "exceeds"),
}


@for_each("data, text", BROKEN.values())
def test_refuses_what_is_no_reply(data: bytes, text: str) -> None:
    with pytest.raises(Malformed, match=text):
        read(ReplyParser(), [data, b""])


@pytest.mark.parametrize("data", [b"", HEAD, CHUNKED + b"5\r\nhel"[:-3]])
def test_refuses_a_reply_that_is_cut_off(data: bytes) -> None:
    with pytest.raises(Malformed, match=r"no response|in the middle"):
        read(ReplyParser(), [*filter(None, [data]), b""])


def test_refuses_a_body_that_is_cut_off() -> None:
    """Its beginning was taken already."""
    with pytest.raises(Malformed):
        read(ReplyParser(), [HEAD + b"Content-Length: 5\r\n\r\nhel", b""])
