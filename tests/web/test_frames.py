"""The frame counter alone: however the bytes are cut, and over time."""

from __future__ import annotations

import pytest
from h2.exceptions import ProtocolError
from hpack import HPACKDecodingError
from hyperframe.frame import (
    AltSvcFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from mq.turns import TURN
from mq.web.hypercorn_server import (
    BYTES_AN_UPDATE,
    CONTROL_FRAMES,
    CONTROL_FRAMES_BEFORE_LOGIN,
    PERIOD_SECONDS,
    RUNNING,
    SETTINGS_BYTES,
    SPARE_RESETS,
    UPDATES_A_RESPONSE,
    Flood,
    FrameCounter,
    NoSettings,
    check_table_sizes,
)
from tests.cases import for_each

BARE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREFACE = BARE + SettingsFrame(0).serialize()
PING = PingFrame(0).serialize()
UPDATE = WindowUpdateFrame(0, window_increment=1).serialize()


def feed(counter: FrameCounter, data: bytes, now: float = 0) -> list[tuple[bytes, int]]:
    """The pieces of a read. Raises the error that taking them would."""
    pieces = list(counter.cut(data, now))
    assert b"".join(piece for piece, _ in pieces) == data
    for piece, _ in pieces:
        counter.check(piece, now)
    return pieces


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10, 17, 1000, 1 << 20])
def test_it_does_not_matter_how_the_bytes_are_cut(size: int) -> None:
    body = DataFrame(1, RstStreamFrame(1).serialize() * 300).serialize()  # looks like resets, and is none
    data = PREFACE + body + RstStreamFrame(1).serialize() * SPARE_RESETS
    counter = FrameCounter()
    for start in range(0, len(data), size):
        feed(counter, data[start : start + size])
    with pytest.raises(Flood, match="reset"):
        feed(counter, RstStreamFrame(1).serialize())


def test_control_frames_are_forgiven_in_time() -> None:
    counter = FrameCounter()
    feed(counter, PREFACE + PING * (CONTROL_FRAMES - 1), 0)  # SETTINGS is one, too
    for period in range(1, 3):
        feed(counter, PING * CONTROL_FRAMES, period * PERIOD_SECONDS)
    with pytest.raises(Flood, match="control"):
        feed(counter, PING, 2 * PERIOD_SECONDS)


def test_trailers_are_no_requests() -> None:
    counter = FrameCounter()
    feed(counter, PREFACE, 0)
    for _ in range(2 * RUNNING):
        feed(counter, HeadersFrame(1, b"", flags=["END_HEADERS"]).serialize(), 0)


CHEAP = {
    "WINDOW_UPDATE": UPDATE,
    "empty DATA": DataFrame(1).serialize(),
    "padded empty DATA": DataFrame(1, b"", pad_length=4, flags=["PADDED"]).serialize(),
    "PING": PING,
    "SETTINGS": SettingsFrame(0).serialize(),
    "PRIORITY": PriorityFrame(1, depends_on=3).serialize(),
    "GOAWAY": GoAwayFrame(0).serialize(),
    "ALTSVC": AltSvcFrame(1, b"", b"x").serialize(),
    "an unknown type": b"\0\0\0\xee" + bytes(5),
}


@for_each("frame", CHEAP.values())
@for_each("is_known, most", [(True, CONTROL_FRAMES), (False, CONTROL_FRAMES_BEFORE_LOGIN)])
def test_frames_that_do_nothing_for_a_request_are_limited(frame: bytes, is_known: bool, most: int) -> None:
    counter = FrameCounter(is_known=is_known)
    feed(counter, PREFACE + frame * (most - 1))
    with pytest.raises(Flood, match=f"more than {most} control frames"):
        feed(counter, frame)


@for_each("frame", [*CHEAP.values(), RstStreamFrame(1).serialize()])
def test_read_of_cheap_frames_is_cut_into_turns(frame: bytes) -> None:
    counter = FrameCounter()
    feed(counter, PREFACE)
    counter.note_sent(1 << 20)  # WINDOW_UPDATE frames without limit
    pieces = list(counter.cut(frame * SPARE_RESETS, 0))
    assert max(piece.count(frame[:9]) for piece, _ in pieces) <= 64
    assert max(units for _, units in pieces) < TURN + TURN // 8


def test_header_blocks_are_cut_into_turns_by_their_bytes() -> None:
    counter = FrameCounter()
    feed(counter, PREFACE)
    block = HeadersFrame(1, bytes(10_000), flags=["END_HEADERS"]).serialize()
    assert len(list(counter.cut(block * 6, 0))) == 3


def test_responses_account_for_window_updates() -> None:
    counter = FrameCounter()
    feed(counter, PREFACE)
    counter.note_response()
    counter.note_sent(BYTES_AN_UPDATE * 10_000)
    feed(counter, UPDATE * (10_000 + UPDATES_A_RESPONSE + CONTROL_FRAMES - 1))
    with pytest.raises(Flood, match="control"):
        feed(counter, UPDATE)


def test_first_frame_has_to_be_settings() -> None:
    for first in (PING, SettingsFrame(0, flags=["ACK"]).serialize(), UPDATE):
        with pytest.raises(NoSettings):
            feed(FrameCounter(), BARE + first)


def test_settings_of_a_frame_are_limited() -> None:
    counter = FrameCounter()
    feed(counter, PREFACE)
    feed(counter, settings_of(SETTINGS_BYTES))
    with pytest.raises(Flood, match="settings"):
        feed(counter, settings_of(SETTINGS_BYTES + 6))


def settings_of(size: int) -> bytes:
    return size.to_bytes(3) + b"\x04" + bytes(5) + b"\0\3\0\0\0\1" * (size // 6)


def test_frames_behind_a_request_to_upgrade_are_limited_to_one_turn() -> None:
    feeding = FrameCounter()
    feeding.check(PREFACE + PING * 50, 0)
    with pytest.raises(ProtocolError, match="upgrade"):
        FrameCounter().check(PREFACE + PING * 1000, 0)


@pytest.mark.parametrize(
    ("block", "is_valid"),
    [
        (b"", True),
        (b"\x20\x82", True),
        (b"\x3f\xe1\x1f\x20\x82", True),
        (b"\x20\x20\x20\x82", False),
        (b"\x20" * 9, False),
    ],
)
def test_table_sizes_of_a_header_block_are_limited(block: bytes, is_valid: bool) -> None:
    if is_valid:
        check_table_sizes(block)
    else:
        with pytest.raises(HPACKDecodingError):
            check_table_sizes(block)
