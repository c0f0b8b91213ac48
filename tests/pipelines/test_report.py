"""The page: well-formed, self-contained, and nothing from outside gets out of its place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from mq.spark.pipelines.audit import LOST, UNSURE
from mq.spark.pipelines.plots import lines, seconds, spans
from mq.spark.pipelines.report import Report, as_page

HOSTILE = "<script>alert('x')</script>\"&"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def tables(exceptions: int) -> dict[str, list[dict[str, Any]]]:
    queue = {
        "queue": HOSTILE,
        **dict.fromkeys(("published", "bytes", "leased", "redelivered", "removed", "dead_lettered", "expired"), 7),
        **dict.fromkeys(("published_per_second", "removed_per_second", "redelivery_rate", "dead_letter_rate"), 0.5),
    }
    times = [NOON + timedelta(seconds=number) for number in range(5)]
    wrong = {"what": LOST, "id": HOSTILE, "queue": HOSTILE, "time": NOON, "detail": HOSTILE}
    return {
        "queues": [queue],
        "throughput": [
            {"queue": HOSTILE, "begin": at, "seconds": 1, "publish": number, "lease": 0, "remove": 0}
            for number, at in enumerate(times)
        ],
        "latency": [
            {
                "queue": HOSTILE,
                "what": what,
                "messages": 3,
                "p50": 0.0,
                "p90": 0.1,
                "p99": 1.0,
                "p99_9": 5,
                "longest": 9,
            }
            for what in ("in queue", "end to end")
        ],
        "depth": [
            {"queue": HOSTILE, "begin": at, "seconds": 1, "depth": None if number == 2 else number}
            for number, at in enumerate(times)
        ],
        "poison": [{"id": HOSTILE, "queue": HOSTILE, "receives": 3, "dead_lettered": 1, "last": NOON}],
        "segments": [
            {
                "path": HOSTILE,
                "broker": HOSTILE,
                "host": HOSTILE,
                "store": HOSTILE,
                "version": HOSTILE,
                "segment": 0,
                "rows": 9,
            }
            | {"missing": 2, "is_cut": True, "stops": False, "torn": True}
        ],
        "places": [{"queue": HOSTILE, "place": place, "messages": 3} for place in ("ready", UNSURE)],
        "exceptions": [wrong] * exceptions,
    }


def report(tables: dict[str, list[dict[str, Any]]], complaints: Sequence[str] = ()) -> Report:
    return Report(tables, complaints, NOON + timedelta(hours=1), {"mq": "1.2.3", "Spark": "4.9"})


class Checker(HTMLParser):
    """Every element is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("exceptions", [0, 1, 700])
def test_the_page_is_whole_and_needs_nothing_besides_itself(exceptions: int) -> None:
    page = as_page(report(tables(exceptions), [HOSTILE]))
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    assert not checker.names & {"script", "link", "img", "iframe"}
    assert {"svg", "table", "figure"} <= checker.names
    assert "prefers-color-scheme:dark" in page
    assert "http" not in page
    assert "nan" not in page.lower().replace("finance", "")
    assert ("700 exceptions among 6 messages" in page) == (exceptions == 700)
    assert ("200 more are in the table" in page) == (exceptions == 700)
    assert ("is in exactly one place, according to the journal" in page) == (exceptions == 0)
    assert "The state of 3 messages is unknown" in page


def test_the_page_says_when_and_by_what_it_was_made() -> None:
    page = as_page(report(tables(0)))
    assert "Created 2026-11-21 13:00:00 UTC by mq 1.2.3, Spark 4.9, from a journal of mq &lt;script" in page


def test_unknown_values_are_shown_as_unknown() -> None:
    known = tables(1)
    shown = as_page(report(known)).count(">unknown<")
    unknown = tables(1)
    for name in ("published_per_second", "redelivery_rate", "dead_letter_rate"):
        unknown["queues"][0][name] = None
    unknown["exceptions"][0] |= {"queue": None, "time": None}
    unknown["segments"][0] |= {"torn": False}  # it may have been killed, or go on
    assert as_page(report(unknown)).count(">unknown<") == shown + 6
    assert shown == 0
    assert "Unknown: the journal has no complete list" in as_page(report({**known, "depth": []}))


def test_depth_keeps_its_value_until_the_next_and_stops_where_it_is_unknown() -> None:
    [depth] = re.findall(r"<h2>Depth.*?</svg>", as_page(report({**tables(0), "throughput": []})))
    lines = re.findall(r'<polyline points="([^"]+)"', depth)
    assert [len(line.split()) for line in lines] == [4, 3]  # 0 until 1 s, 1 until it is unknown at 2 s; from 3 s on


def test_each_time_is_labelled_once() -> None:
    for length in (0, 1, 7, 59, 300, 4000, 40_000, 90_000, 700_000, 90_000_000):
        drawn = lines("t", {"q": [(NOON, 1.0), (NOON + timedelta(seconds=length), 2.0)]}, "")
        labels = re.findall(r'<text class="time"[^>]*>([^<]+)</text>', drawn)
        assert 1 <= len(labels) <= 7, length
        assert len(set(labels)) == len(labels), length
        places = [float(place) for place in re.findall(r'class="time" x="([^"]+)"', drawn)]
        assert all(after - before > 60 for before, after in pairwise(places)), length


def test_an_empty_journal_makes_a_page_too() -> None:
    empty: dict[str, list[dict[str, Any]]] = {name: [] for name in tables(0)}
    page = as_page(report(empty))
    assert "<svg" not in page
    assert "Each of 0 messages" in page


def test_lines_lie_where_their_numbers_say() -> None:
    drawn = lines(
        "t", {"q": [(NOON, 0.0), (NOON + timedelta(seconds=10), 5.0), (NOON + timedelta(seconds=20), 10.0)]}, ""
    )
    figure = ElementTree.fromstring(drawn.partition("<p class")[0])
    (line,) = figure.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y0 > y2


def test_no_line_is_drawn_across_idle_time() -> None:
    times = [NOON + timedelta(seconds=number) for number in (0, 1, 2, 600, 601, 900)]
    drawn = lines("t", {"q": [(at, 5.0) for at in times]}, "", step=1)
    figure = ElementTree.fromstring(drawn.partition("<p class")[0])
    assert [len(line.attrib["points"].split()) for line in figure.iter("polyline")] == [3, 2]
    assert len(list(figure.iter("circle"))) == 1
    tables_of_idle = tables(0) | {
        "depth": [],
        "throughput": [
            {"queue": HOSTILE, "begin": at, "seconds": 1, "publish": 5, "lease": 0, "remove": 5} for at in times
        ],
    }
    assert as_page(report(tables_of_idle)).count("<polyline") == 4


def test_spans_are_on_one_logarithmic_scale() -> None:
    drawn = spans("t", {"q": [0.001, 0.1, 10.0]}, ["a", "b", "c"])
    figure = ElementTree.fromstring(drawn.partition("<p class")[0])
    a, b, c = (float(circle.attrib["cx"]) for circle in figure.iter("circle"))
    assert b - a == pytest.approx(c - b, abs=0.2)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0000015, "1.5 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (600, "10 min"), (36_000, "10 h")],
)
def test_times_are_told_as_people_read_them(value: float, text: str) -> None:
    assert seconds(value) == text
