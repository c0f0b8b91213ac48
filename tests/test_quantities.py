"""Durations and sizes, as people write them."""

from __future__ import annotations

import pytest

from mq.quantities import parse_duration, parse_size, show_duration, show_size


def test_a_duration_is_a_number_of_seconds_or_has_a_unit() -> None:
    written = {"30": 30, "1.5h": 5400, "30s": 30, "10m": 600, "2h": 7200, "7d": 604_800, "2w": 1_209_600, "0": 0}
    assert {text: parse_duration(text) for text in written} == written
    assert parse_duration("250ms") == 0.25
    assert parse_duration(" 5s ") == 5


def test_a_duration_may_be_any_positive_number_as_programs_write_it() -> None:
    for seconds in (0.1 + 0.2, 1e-07, 2.225073858507203e-309, 1.4642156611551475e-07, 1 / 3, 123456.78901234567):
        assert parse_duration(repr(seconds)) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "-1s", "s", "1 h", "1y", "1H", "1e3", "nan", "inf", "1h30m", "١s", "1.s"]
)
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"Use a value such as 30, 1\.5h, 10m or 7d"):
        parse_duration(text)


def test_a_duration_is_shown_in_its_largest_short_unit() -> None:
    shown = {0: "0", 0.001: "0.001s", 75: "75s", 120: "2m", 5400: "1.5h", 43_200: "12h", 315_576_000: "3652.5d"}
    assert {seconds: show_duration(seconds) for seconds in shown} == shown
    for seconds in (*shown, 3600, 86_401, 1e9, 61):
        assert parse_duration(show_duration(seconds)) == seconds


def test_a_size_is_a_number_of_bytes_or_has_a_unit() -> None:
    written = {
        "5": 5,
        "64KiB": 65_536,
        "10MB": 10_000_000,
        "1.5GiB": 1_610_612_736,
        "3 MiB": 3 << 20,
        "2tb": 2 * 10**12,
    }
    assert {text: parse_size(text) for text in written} == written


@pytest.mark.parametrize("text", ["", "-1", "KiB", "1.5", "1.0001kB", "1XB", "1e3", "0x10"])
def test_anything_else_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_size(text)


def test_a_size_is_shown_in_the_largest_unit_that_divides_it() -> None:
    shown = {0: "0", 1: "1 byte", 1000: "1000", 1024: "1KiB", 10**7: "10MB", 3 << 30: "3GiB", 10**18: "1000000TB"}
    assert {size: show_size(size) for size in shown} == shown
