"""What the fast lane takes for a plain head, h11 reads in the same way."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq.web.fast_http1 import LONGEST_REMEMBERED, parse_head
from tests.web.talking import http1

names = st.one_of(
    st.sampled_from(["Content-Length", "Connection", "TE", "X"]), st.text("aZ09!#-_~", min_size=1, max_size=5)
)
values = st.one_of(
    st.sampled_from(["mq", "0", "5", " 5", "5 ", "\t5", "05", "+5", "5,5", "close", "keep-alive", "Close", "close, x"]),
    st.text("a9 \t:;,\"'\x80ÿ", max_size=8),
)
lines = st.builds("{}:{}{}\r\n".format, names, st.sampled_from(["", " ", "  ", "\t"]), values)
plain = st.builds(
    "{} {} HTTP/1.1\r\nHost: mq\r\n{}\r\n".format,
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
    st.sampled_from(["/", "/q/messages", "/q?a=b&c", "/??", "/%00#"]),
    st.lists(lines, max_size=3).map("".join),
)


def spoilt(head: str, at: int, cut: int, put: str) -> str:
    at %= len(head)
    return head[:at] + put + head[at + cut :]


heads = st.one_of(
    plain,
    st.builds(spoilt, plain, st.integers(0, 200), st.integers(0, 2), st.text("\r\n\t :\x00\x7fa5é", max_size=2)),
)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(heads)
@example("GET / HTTP/1.1\r\nHost: mq\r\n\r\n")
@example("POST /q HTTP/1.1\r\nHost: mq\r\nContent-Length: 007\r\nX:\t a b \t\r\n\r\n")
def test_h11_sees_the_same(text: str) -> None:
    raw = text.encode()
    head = parse_head(raw)
    if head is None:
        return  # then it is h11 that reads it, and nothing else does
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    seen = connection.next_event()
    assert isinstance(seen, h11.Request)
    target = head.path + (b"?" + head.query if b"?" in seen.target else b"")
    assert (seen.method, seen.target, seen.http_version) == (head.method.encode(), target, b"1.1")
    assert dict(seen.headers) == {name.encode(): value.encode("latin-1") for name, value in head.headers.items()}
    assert connection.trailing_data == (b"", False)
    after = connection.next_event()
    assert isinstance(after, h11.EndOfMessage) == (not head.content_length)
    assert (connection.their_state is h11.MUST_CLOSE) == (head.is_last and not head.content_length)


@pytest.mark.parametrize("size", [0, LONGEST_REMEMBERED])
def test_a_head_says_the_same_the_second_time(size: int) -> None:
    raw = http1("POST", "/q/messages?a=1", b"", "Content-Type: a/b", "X: " + "x" * size)
    first, second = parse_head(raw), parse_head(raw)
    assert first == second
    assert first is not None
    assert first[:3] == ("POST", b"/q/messages", b"a=1")
    assert first.headers["content-type"] == "a/b"
    assert (first.content_length, first.is_last) == (0, False)
