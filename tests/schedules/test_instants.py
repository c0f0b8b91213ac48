"""At which instants schedules fire: also where a clock leaves out an hour, or shows one twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import InvalidSetting
from mq.schedules.schedule import CronLine, Every, Instants, Never
from mq.schedules.scheduler import shown_instant
from tests.cases import for_each

BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def shown(instant_ms: int) -> str:
    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat()[:16]


def some(instants: Instants, after: str, count: int) -> list[str]:
    """The next ones, in UTC. What is the latest at each of them, and just before, agrees."""
    found: list[str] = []
    before_ms = after_ms = ms(after)
    for _ in range(count):
        next_ms = instants.following(after_ms)
        assert next_ms is not None
        assert instants.latest(after_ms, next_ms) == next_ms
        assert instants.latest(after_ms, next_ms - 1) is None
        assert instants.latest(before_ms, next_ms) == next_ms
        found.append(shown(next_ms))
        after_ms = next_ms
    return found


@for_each(
    "line, zone, after, instants",
    [
        ("0 3 * * *", "UTC", "2026-11-23T02:59:59Z", ["2026-11-23T03:00", "2026-11-24T03:00"]),
        ("0 3 * * *", "UTC", "2026-11-23T03:00:00Z", ["2026-11-24T03:00"]),
        ("*/20 9-10 * * MON", "UTC", "2026-11-23T09:50Z", ["2026-11-23T10:00", "2026-11-23T10:20", "2026-11-23T10:40"]),
        ("30 8 L * *", "Asia/Kolkata", "2026-02-01T00:00Z", ["2026-02-28T03:00", "2026-03-31T03:00"]),
        # 2026-03-29, 2:00 to 3:00 is left out
        ("30 2 * * *", BERLIN, "2026-03-28T00:00Z", ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]),
        ("*/30 * * * *", BERLIN, "2026-03-29T00:00Z", ["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"]),
        ("0,30 2,3 * * *", BERLIN, "2026-03-29T00:00Z", ["2026-03-29T01:00", "2026-03-29T01:30", "2026-03-30T00:00"]),
        # 2026-10-25, 2:00 to 3:00 comes twice
        ("30 2 * * *", BERLIN, "2026-10-25T00:00Z", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("30 2 * * *", BERLIN, "2026-10-25T01:15Z", ["2026-10-26T01:30"]),
        ("30 * * * *", BERLIN, "2026-10-25T00:00Z", ["2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"]),
    ],
)
def test_a_cron_line_fires(line: str, zone: str, after: str, instants: list[str]) -> None:
    assert some(CronLine(line, zone), after, len(instants)) == instants


def test_what_has_been_missed_for_years_is_found_at_once() -> None:
    line = CronLine("* * * * *", BERLIN)
    assert line.latest(ms("1970-01-01T00:00Z"), ms("2026-11-23T02:59:59Z")) == ms("2026-11-23T02:59Z")
    assert CronLine("0 0 29 2 *", "UTC").latest(ms("1970-01-01T00:00Z"), ms("2027-05-01T00:00Z")) == ms(
        "2024-02-29T00:00Z"
    )


def test_every_so_many_seconds_is_counted_from_its_start() -> None:
    every = Every(90.0, ms("2026-11-23T00:00:15Z"))
    assert every.following(ms("2026-11-23T00:00:15Z")) == ms("2026-11-23T00:01:45Z")
    assert every.following(ms("1970-01-01T00:00Z")) == ms("1970-01-01T00:00:15Z"), "a clock that is years behind"
    assert every.latest(ms("2026-11-23T00:00:15Z"), ms("2026-11-23T00:10:00Z")) == ms("2026-11-23T00:09:15Z")
    assert every.latest(ms("2026-11-23T00:09:15Z"), ms("2026-11-23T00:10:00Z")) is None


@for_each(
    "line",
    [
        *(
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "x * * * *",
        ),
        *("*/0 * * * *", "5-1 * * * *", "@daily * * * *", "0 0 30 2 *", "²L * * * *", "* * * * ²L", "1 " * 300),
    ],
)
def test_what_is_no_cron_line_is_refused(line: str) -> None:
    with pytest.raises(InvalidSetting, match="cron"):
        CronLine(line, "UTC")


@given(st.text("0123456789*/,-#LW MONFEB@H", max_size=40).map(lambda text: f"{text} * * * *"[-60:]))
def test_any_text_is_a_line_or_refused(line: str) -> None:
    try:
        instants = CronLine(line, BERLIN)
    except InvalidSetting:
        return
    following = instants.following(ms("2026-11-23T00:00Z"))
    assert following is None or following > ms("2026-11-23T00:00Z")


@for_each(
    "zone",
    ["", "Europe", "europe/berlin/", "/etc/passwd", "../UTC", "Europe/Nowhere", "x" * 500, "Ü", "\0", "posixrules/"],
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSetting, match="unknown time zone"):
        CronLine("0 3 * * *", zone)


def test_a_schedule_that_cannot_be_read_never_fires() -> None:
    assert (Never().following(0), Never().latest(0, 1)) == (None, None)


def test_an_instant_is_shown_in_every_year() -> None:
    assert shown_instant(ms("2030-05-01T09:00+02:00")) == "2030-05-01T07:00:00Z"
    assert shown_instant(1_500) == "1970-01-01T00:00:01.500Z"
    assert shown_instant(10**18) == "9999-12-31T00:00:00Z", "a name on the disk may say anything"
