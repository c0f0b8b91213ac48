"""The frame counter alone: however the bytes are cut, and over time."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, RstStreamFrame

from mq.web.hypercorn_server import CONTROL_FRAMES, PERIOD_SECONDS, RUNNING, SPARE_RESETS, Flood, FrameCounter

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING = PingFrame(0).serialize()


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10, 17, 1000, 1 << 20])
def test_it_does_not_matter_how_the_bytes_are_cut(size: int) -> None:
    body = DataFrame(1, RstStreamFrame(1).serialize() * 300).serialize()  # looks like resets, and is none
    data = PREFACE + body + RstStreamFrame(1).serialize() * SPARE_RESETS
    counter = FrameCounter()
    for start in range(0, len(data), size):
        counter.feed(data[start : start + size], 0)
    with pytest.raises(Flood, match="reset"):
        counter.feed(RstStreamFrame(1).serialize(), 0)


def test_control_frames_are_forgiven_in_time() -> None:
    counter = FrameCounter()
    counter.feed(PREFACE, 0)
    for period in range(3):
        counter.feed(PING * CONTROL_FRAMES, period * PERIOD_SECONDS)
    with pytest.raises(Flood, match="control"):
        counter.feed(PING, 2 * PERIOD_SECONDS)


def test_trailers_are_no_requests() -> None:
    counter = FrameCounter()
    counter.feed(PREFACE, 0)
    for _ in range(2 * RUNNING):
        counter.feed(HeadersFrame(1, b"", flags=["END_HEADERS"]).serialize(), 0)
