"""What counts, and what stands for an address: no connection is needed for it."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

import pytest

from mq.amqp.wire.properties import BasicProperties
from mq.client import UnexpectedResponse
from mq.client.amqp import Delivery, connect
from mq.client.amqp.channels import PendingConfirms, Tags
from mq.client.amqp.connection import Address, parse, tls_context


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://127.0.0.1", Address("127.0.0.1", 5672, "/", False)),
        ("amqps://localhost/", Address("localhost", 5671, "/", True)),
        ("amqp://localhost:1234/%2Fa%20b", Address("localhost", 1234, "/a b", False)),
        ("amqp://[::1]:1/shop", Address("::1", 1, "shop", False)),
    ],
)
def test_urls(url: str, address: Address) -> None:
    assert parse(url) == address


def test_an_address_shows_no_vhost() -> None:
    assert str(parse("amqps://[::1]/shop")) == "amqps://[::1]:5671"


@pytest.mark.parametrize(
    "url", ["", "localhost", "ftp://localhost", "amqp://", "amqp://h:99999", "amqp://h/?x=1", "amqp://h/#x"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="is not a valid AMQP URL"):
        parse(url)


def test_no_secret_in_a_url_and_none_in_the_error() -> None:
    with pytest.raises(ValueError, match="must not contain credentials") as caught:
        parse("amqp://anna:hunter2@localhost")
    assert "hunter2" not in str(caught.value)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no")
    for ca, certificate in ((tmp_path / "no.pem", None), (None, tmp_path / "missing.pem")):
        with pytest.raises(ValueError, match="for TLS"):
            tls_context(ca, certificate)
    assert tls_context(None, None).verify_mode is ssl.CERT_REQUIRED


async def test_connect_refuses_before_it_connects() -> None:
    with pytest.raises(ValueError, match="an HTTP URL"):
        async with connect("http://127.0.0.1"):
            pass


def test_confirms_settle_one_or_all_up_to_it() -> None:
    confirms: PendingConfirms[str] = PendingConfirms()
    for name in "abcdef":
        confirms.published(name)
    assert list(confirms.settle(2, multiple=False)) == ["b"]
    assert list(confirms.settle(2, multiple=False)) == []
    assert list(confirms.settle(4, multiple=True)) == ["a", "c", "d"]
    assert list(confirms.settle(9, multiple=False)) == []
    assert list(confirms) == ["e", "f"]
    assert confirms.drain() == ["e", "f"]
    confirms.published("g")
    assert list(confirms.settle(7, multiple=True)) == ["g"]
    assert len(confirms) == 0


def test_tags_rise_and_are_good_for_once() -> None:
    tags: Tags[object] = Tags()
    one, other = object(), object()
    assert [tags.hand_out(channel, number) for channel, number in ((one, 1), (other, 1), (one, 2))] == [1, 2, 3]
    assert tags.settle(2) == (other, 1)
    assert tags.settle(2) is None
    assert (tags.holds(one), tags.holds(other)) == (True, False)
    tags.forget(one)
    assert tags.settle(3) is None
    assert tags.hand_out(one, 9) == 4


def test_headers_that_cannot_be_read() -> None:
    broken = BasicProperties(b"\x20\0\0\0\0\x02\xff\xff")
    message = Delivery(tag=1, queue="q", body=b"", redelivered=False, _properties=broken)
    with pytest.raises(UnexpectedResponse):
        _ = message.headers
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.tag = 2  # type: ignore[misc]
