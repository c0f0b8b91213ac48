"""What one HTTP/2 client sends, counted by the frames' headers: RFC 9113, section 4.1. No sockets, no streams.

The limits are on what costs a server more than its client: requests that are reset as soon as they are made (rapid
reset, CVE-2023-44487), header blocks without end (CONTINUATION flood), and frames that only ask for an answer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

SPARE_RESETS: Final = 256
"""How many more resets than finished responses: twice the streams that may be open, so all may be given up at once."""
RUNNING: Final = 256
"""How many requests may be at work, with those whose stream is gone."""
HEADER_BLOCK_BYTES: Final = 64 * 1024
"""The longest header block as it is sent."""
HEADER_BLOCK_FRAMES: Final = 32
"""The most frames that a header block may come in."""
CONTROL_FRAMES: Final = 2000
"""How many frames that carry no request and no body may come in a period."""
PERIOD_SECONDS: Final = 60.0

_PREFACE_BYTES: Final = 24
_HEADER_BYTES: Final = 9


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PING = 0x6
    CONTINUATION = 0x9


class Flood(ProtocolError):
    """The client sends more of something than anybody needs."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class FrameCounter:
    """Follows the frames of one connection.

    Attributes:
        responses: how many have been finished; for the caller to count.
        ended: how many requests are no longer at work; for the caller to count.
    """

    def __init__(self) -> None:
        self.responses = 0
        self.ended = 0
        self._held = b""
        self._skip = _PREFACE_BYTES
        self._last_stream = 0
        self._opened = 0
        self._resets = 0
        self._block_bytes = 0
        self._block_frames = 0
        self._control_frames = 0
        self._period_ends = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes, from the connection preface on.

        Args:
            data: what came.
            now: in seconds, on any clock that only goes on.

        Raises:
            Flood: it is too much of something.
        """
        data = self._held + data
        at = self._skip
        while at + _HEADER_BYTES <= len(data):
            size = int.from_bytes(data[at : at + 3])
            self._count(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF, size, now)
            at += _HEADER_BYTES + size
        self._held = data[at:]
        self._skip = max(at - len(data), 0)

    def _count(self, kind: int, flags: int, stream: int, size: int, now: float) -> None:
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            self._count_block(size, is_first=kind == FrameType.HEADERS)
            if kind == FrameType.HEADERS and stream > self._last_stream:  # else these are trailers
                self._last_stream = stream
                self._opened += 1
                if self._opened - self.ended > RUNNING:
                    raise Flood(f"more than {RUNNING} requests at a time")
        elif kind == FrameType.RST_STREAM:
            self._resets += 1
            if self._resets > SPARE_RESETS + self.responses:
                raise Flood(f"{self._resets} streams reset, {self.responses} responses waited for")
        elif kind in (FrameType.PRIORITY, FrameType.SETTINGS, FrameType.PING):
            self._count_control(now)

    def _count_block(self, size: int, *, is_first: bool) -> None:
        self._block_bytes = size if is_first else self._block_bytes + size
        self._block_frames = 1 if is_first else self._block_frames + 1
        if self._block_bytes > HEADER_BLOCK_BYTES or self._block_frames > HEADER_BLOCK_FRAMES:
            raise Flood(f"a header block of {self._block_bytes} bytes in {self._block_frames} frames")

    def _count_control(self, now: float) -> None:
        if now >= self._period_ends:
            self._period_ends, self._control_frames = now + PERIOD_SECONDS, 0
        self._control_frames += 1
        if self._control_frames > CONTROL_FRAMES:
            raise Flood(f"more than {CONTROL_FRAMES} control frames in {PERIOD_SECONDS:.0f} seconds")
