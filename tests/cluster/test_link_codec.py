"""What goes over a link comes out as it went in, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker import Draft, Published, QueueSettings, QueueStatus, Removal, Seen
from mq.cluster.link_codec import Handed, Malformed, decode, encode
from mq.errors import MQError, NoSuchQueue, NotServed, ReceiptMismatch, ServiceLost
from mq.message import BytesBody, DamagedBody, Message, MessageId, MessageIds, Properties

ID = MessageIds().new()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(JSON)
def test_anything_plain(value: object) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        Draft(b"body", {"a": {"$": "Draft", "v": []}}, delay=1.5, transient=True, id=ID),
        Published(ID, is_new=False),
        [Removal("x", None), Removal("y", "r")],
        QueueStatus("q", QueueSettings(ttl=3.0, dead_letter_queue="d", max_receives=2), 1, 2, 3, None),
    ],
)
def test_values_of_the_broker(value: object) -> None:
    assert decode(encode(value)) == value


async def test_messages() -> None:
    message = Message("q", ID, BytesBody(b"\x00\xff"), Properties(2, 7, {"a": 1}), 3, "r", ({"queue": "d"},))
    seen, handed = decode(encode([Seen(message, "ready"), Handed(4, message, True)]))
    assert (seen.state, handed.number, handed.redelivered) == ("ready", 4, True)
    assert handed.message[:2] == ("q", ID)
    assert type(handed.message.id) is MessageId
    assert handed.message[3:6] == message[3:6]
    assert await seen.message.body.read() == await handed.message.body.read() == b"\x00\xff"


def test_a_damaged_body_stays_one() -> None:
    body = decode(encode(DamagedBody(5, "torn")))
    assert (type(body), body.size, body.reason) == (DamagedBody, 5, "torn")


@pytest.mark.parametrize("kind", [MQError, NoSuchQueue, ReceiptMismatch, NotServed, ServiceLost])
def test_errors_keep_their_class(kind: type[MQError]) -> None:
    error = decode(encode(kind("what is wrong")))
    assert (type(error), str(error), error.is_unsure) == (kind, "what is wrong", kind is ServiceLost)


def test_an_error_of_elsewhere_is_its_nearest_relative() -> None:
    class Special(NoSuchQueue):
        pass

    assert type(decode(encode(Special("gone")))) is NoSuchQueue


@given(st.binary(max_size=200))
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


def test_nothing_is_called_that_the_bytes_name() -> None:
    made = encode(Published(ID))
    with pytest.raises(Malformed):
        decode(made.replace(b"Published", b"BytesBody"))


def test_what_cannot_go_is_refused_here() -> None:
    with pytest.raises(TypeError, match="cannot be sent over a cluster link"):
        encode(object())
