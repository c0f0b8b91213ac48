"""Durations and sizes as people write them: ``30``, ``1.5h``, ``10m``; ``65536``, ``64KiB``, ``10MB``."""

from __future__ import annotations

import math
import re
from typing import Final

DURATION_EXAMPLES: Final = "30, 1.5h, 10m or 7d"
SIZE_EXAMPLES: Final = "65536, 64KiB or 10MB"

_DURATION: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,30})?(e-[0-9]{1,3}|ms|s|m|h|d|w)?", re.ASCII)
"""Programs write a difference of two times as 0.30000000000000004 or 1e-07."""
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration: a number of seconds, or a number with ms, s, m, h, d or w.

    Raises:
        ValueError: the text is not a duration, or negative.
    """
    text = text.strip()
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a valid duration. Use a value such as {DURATION_EXAMPLES}")
    number = text.rstrip("mshdw")
    unit = text[len(number) :]
    return float(number) * _SECONDS[unit] if unit else float(number)


def show_duration(seconds: float) -> str:
    """Return a duration in the largest unit in which it is a short number, such as ``12h``; ``0`` stays a number."""
    for unit in ("d", "h", "m"):
        number = seconds / _SECONDS[unit]
        if number >= 1 and math.isclose(number, round(number, 1)):
            return f"{round(number, 1):.15g}{unit}"
    return f"{seconds:.15g}{'s' if seconds else ''}"


def show_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as ``1 message`` or ``2 messages``; `plural` if it does not just add an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def parse_size(text: str) -> int:
    """Return the bytes of a size: a number of bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB.

    Raises:
        ValueError: the text is not a size, or not a whole number of bytes.
    """
    matched = _SIZE.fullmatch(text.strip())
    factor = None if matched is None else _BYTES.get(matched[2].lower())
    if matched is None or factor is None:
        raise ValueError(f"{text!r} is not a valid size. Use a value such as {SIZE_EXAMPLES}")
    size = float(matched[1]) * factor if "." in matched[1] else int(matched[1]) * factor
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def show_size(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it, such as ``64KiB``."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB"):
        factor = _BYTES[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return "1 byte" if size == 1 else str(size)
