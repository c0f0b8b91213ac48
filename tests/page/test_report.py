"""The report of ``mq-pipeline insight`` in a browser: no column is cut off, and axe finds nothing serious."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mq.spark.pipelines.report import Report, as_page
from tests.page.hand import Hand
from tests.page.test_page import serious

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ID = "e35cf0cc-e9f3-11f1-b588-8b689111e499"
LARGE = 123_456_789
CUT_OFF = """[...document.querySelectorAll("main, .scroll, table, figure, svg")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 ||
                      each.getBoundingClientRect().right > document.documentElement.clientWidth)
    .map((each) => each.outerHTML.slice(0, 80))"""
OVERLAPPING = """[...document.querySelectorAll("svg")].flatMap((plot) => {
    const boxes = [...plot.querySelectorAll("text.time")].map((text) => text.getBoundingClientRect());
    return boxes.slice(1).filter((box, number) => box.left < boxes[number].right).map((box) => box.left);
})"""


def report() -> Report:
    """Seven queues over a quarter of an hour, one with the longest name, with numbers as wide as they come."""
    random = Random(7)
    names = ["orders", "orders.eu", "mail", "q" * 100, "audit", "x", "dead"]
    times = [NOON + timedelta(seconds=10 * number) for number in range(90)]
    names_of_counts = ("published", "bytes", "leased", "redelivered", "removed", "dead_lettered", "expired")
    counts = dict.fromkeys(names_of_counts, LARGE)
    unknown = dict.fromkeys(("published_per_second", "redelivery_rate", "dead_letter_rate"))
    known = {"published_per_second": 123_456.78, "redelivery_rate": 0.9999, "dead_letter_rate": 1.0}
    percentiles = {"p50": 0.0123, "p90": 0.987, "p99": 1.5, "p99_9": 59.2, "longest": 119.5}
    depths = {name: random.randint(0, 50) for name in names}
    depth, throughput = [], []
    for at in times:
        for name in names:
            depths[name] = max(0, depths[name] + random.randint(-9, 10))
            is_known = not 40 < (at - NOON).seconds // 10 < 50
            depth.append({"queue": name, "begin": at, "seconds": 10, "depth": depths[name] if is_known else None})
            flow = {"publish": random.randint(0, 90), "lease": 1, "remove": random.randint(0, 90)}
            throughput.append({"queue": name, "begin": at, "seconds": 10, **flow})
    segment: dict[str, Any] = {
        "broker": f"{LARGE}-host.example-{ID}",
        "host": "here",
        "version": "1.2.3",
        "store": "posix:/var/lib/mq",
    }
    segment |= dict.fromkeys(("segment", "rows", "missing"), LARGE)
    tables: dict[str, list[dict[str, Any]]] = {
        "queues": [{"queue": name, **counts, **(known if number else unknown)} for number, name in enumerate(names)],
        "throughput": throughput,
        "depth": depth,
        "latency": [
            {"queue": name, "what": what, "messages": LARGE, **percentiles}
            for name in names
            for what in ("in queue", "end to end")
        ],
        "poison": [
            {"id": ID, "queue": name, "receives": LARGE, "dead_lettered": LARGE, "last": NOON} for name in names
        ],
        "segments": [{**segment, "is_cut": True, "stops": stops, "torn": False} for stops in (True, False)],
        "places": [{"queue": name, "place": "leased or delayed", "messages": LARGE} for name in names],
        "exceptions": [
            {
                "what": "in two places",
                "id": ID,
                "queue": name,
                "time": NOON,
                "detail": f"was: ready in {name} - then: lease",
            }
            for name in names
        ],
    }
    complaints = ["7 transitions are missing from 1-host.journal, because the disk was full or slow"]
    return Report(tables, complaints, NOON + timedelta(hours=1), {"mq": "1.2.3", "Spark": "4.3.0", "Python": "3.11.7"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_cuts_no_column_off(browser: Any, tmp_path: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="there is no axe here: make dev").Axe()
    page = tmp_path / "report.html"
    page.write_text(as_page(report()), "utf-8")
    with Hand.at(browser, f"file://{tmp_path}", color_scheme=scheme, viewport={"width": 1100, "height": 900}) as hand:
        hand.open("report.html")
        assert hand.tab.evaluate(CUT_OFF) == []
        assert hand.tab.evaluate(OVERLAPPING) == []
        assert hand.tab.locator("svg").count() == 5
        assert serious(axe, hand) == []
