"""The report: one page of HTML without other files, in light and dark colours."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from mq.spark.pipelines.audit import MEANINGS, UNSURE
from mq.spark.pipelines.plots import COLOURS, Point, as_steps, lines, seconds, spans

_MOST_ROWS: Final = 500
_LONG: Final = 24
"""Characters of a cell that may be broken into lines, so that no column is cut off."""
_MARKS: Final = {"p50": "p50", "p90": "p90", "p99": "p99", "p99_9": "p99.9", "longest": "longest"}

Row = Mapping[str, Any]
Cell = Callable[[Row], str | None]
"""A row's text in one column; None for unknown."""
Cells = Sequence[tuple[str, Cell]]
_UNKNOWN: Final = "<td class=unknown>unknown</td>"


class Report(NamedTuple):
    """What is on the page.

    Attributes:
        complaints: sentences about what the journal does not know.
        versions: of the programs that made it, by their names.
    """

    tables: Mapping[str, Sequence[Row]]
    complaints: Sequence[str]
    made: datetime
    versions: Mapping[str, str]


def as_page(report: Report) -> str:
    """The page, in HTML. Texts from outside are escaped."""
    parts = [
        f"<h1>Journal report</h1>{_introduction(report)}",
        _verdict(report),
        _depth(report.tables["depth"], report.tables),
        _throughput(report.tables["throughput"], report.tables["queues"]),
        _latency(report.tables["latency"]),
        _section("Queues", _table(report.tables["queues"], _QUEUES)),
        _section(
            "Poison messages", _table(report.tables["poison"], _POISON), "messages that were delivered repeatedly"
        ),
        _section("Segments", _table(report.tables["segments"], _SEGMENTS), "the files that were read"),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mq: journal report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _introduction(report: Report) -> str:
    segments = report.tables["segments"]
    runs = len({row["broker"] for row in segments})
    rows = sum(row["rows"] for row in segments)
    stores = ", ".join(sorted({f"{row['store']} on {row['host']}" for row in segments}))
    told = "".join(f"<li>{html.escape(text)}</li>" for text in report.complaints)
    brokers = ", ".join(sorted({row["version"] for row in segments}))
    programs = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return (
        f"<p>Created {report.made:%Y-%m-%d %H:%M:%S} UTC by {html.escape(programs)}"
        f"{f', from a journal of mq {html.escape(brokers)}' if brokers else ''}.</p>"
        f"<p>{html.escape(stores)}: {rows:,} rows in {len(segments):,} segments, {_plural(runs, 'run', 'runs')} "
        "of a broker.</p>" + (f"<div class=note><p>Gaps in the journal:</p><ul>{told}</ul></div>" if told else "")
    )


def _verdict(report: Report) -> str:
    if "places" not in report.tables:
        return _section("Conservation", "<p>Not audited, because other programs also moved messages of this store.</p>")
    places, exceptions = report.tables["places"], report.tables["exceptions"]
    total, unsure = (
        sum(row["messages"] for row in places if wanted in (None, row["place"])) for wanted in (None, UNSURE)
    )
    if exceptions:
        verdict = f'<p class="bad">{_plural(len(exceptions), "exception", "exceptions")} among {total:,} messages.</p>'
    else:
        verdict = f'<p class="good">Each of {total:,} messages is in exactly one place, according to the journal.</p>'
    if unsure:
        verdict += (
            f"<p>The state of {unsure:,} messages is unknown: they were last seen before a gap in the journal.</p>"
        )
    meanings = "".join(
        f"<li><b>{html.escape(what)}</b>: {html.escape(meaning)}</li>"
        for what, meaning in MEANINGS.items()
        if any(row["what"] == what for row in exceptions)
    )
    listed = f"<ul>{meanings}</ul>{_table(exceptions, _EXCEPTIONS)}" if exceptions else ""
    return _section("Conservation", verdict + listed + _table(places, _PLACES), "the location of every message")


def _depth(rows: Sequence[Row], tables: Mapping[str, Sequence[Row]]) -> str:
    """How many messages each of the fullest queues had over time. A line begins where that is known."""
    largest = Counter[str]()
    for row in rows:
        largest[row["queue"]] = max(largest[row["queue"]], row["depth"] or 0)
    end = max((row["begin"] for name in ("depth", "throughput") for row in tables[name]), default=None)
    series = {
        queue: as_steps([(row["begin"], row["depth"]) for row in rows if row["queue"] == queue], end)
        for queue, _ in largest.most_common(COLOURS)
        if end is not None
    }
    drawn = lines("Messages in the queue", series, "ready, leased or delayed")
    more = f"the {COLOURS} fullest queues" if len(largest) > COLOURS else ""
    unknown = "<p>Unknown: the journal has no complete list of messages to count from.</p>"
    return _section("Depth", drawn or (unknown if tables["queues"] else ""), more)


def _throughput(rows: Sequence[Row], queues: Sequence[Row]) -> str:
    busiest = [row["queue"] for row in queues][:COLOURS]
    plots = []
    step = max((row["seconds"] for row in rows), default=1)
    for what, title in (("publish", "Published"), ("remove", "Removed")):
        series: dict[str, list[Point]] = {
            queue: [(row["begin"], row[what] / row["seconds"]) for row in rows if row["queue"] == queue]
            for queue in busiest
        }
        drawn = {queue: points for queue, points in series.items() if points}
        plots.append(lines(title, drawn, "messages a second", step))
    more = f"the {COLOURS} busiest queues" if len(queues) > COLOURS else ""
    return _section("Throughput", "".join(plots), more)


def _latency(rows: Sequence[Row]) -> str:
    plots = []
    for what, title in (
        ("in queue", "In the queue, until delivered"),
        ("end to end", "From publish to removal"),
    ):
        wanted = {row["queue"]: [row[name] for name in _MARKS] for row in rows if row["what"] == what}
        plots.append(spans(title, dict(list(wanted.items())[:20]), list(_MARKS.values())))
    return _section("Latency", "".join(plots) + _table(rows, _LATENCY), "without what lies on both sides of a gap")


def _section(title: str, inside: str, more: str = "") -> str:
    small = f" <small>{html.escape(more)}</small>" if more else ""
    return f"<section><h2>{html.escape(title)}{small}</h2>{inside or '<p>None.</p>'}</section>"


def _table(rows: Sequence[Row], cells: Cells) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{html.escape(title)}</th>" for title, _ in cells)
    body = "".join("<tr>" + "".join(_cell(cell(row)) for _, cell in cells) + "</tr>" for row in rows[:_MOST_ROWS])
    left = len(rows) - _MOST_ROWS
    more = f"<p>{left:,} more are in the table.</p>" if left > 0 else ""
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"


def _cell(text: str | None) -> str:
    if text is None:
        return _UNKNOWN
    kind = " class=text" if len(text) > _LONG else ""
    return f"<td{kind}>{html.escape(text)}</td>"


def _formatted(name: str, format: str = "") -> Cell:
    return lambda row: None if row[name] is None else f"{row[name]:{format}}"


def _text(name: str) -> Cell:
    return _formatted(name)


def _number(name: str) -> Cell:
    return _formatted(name, ",")


def _share(name: str) -> Cell:
    return _formatted(name, ".2%")


def _instant(name: str) -> Cell:
    return _formatted(name, "%Y-%m-%d %H:%M:%S")


def _plural(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


_MEASURED: Final = {"in queue": "ready to delivered", "end to end": "published to removed"}
_QUEUES: Final[Cells] = [
    ("queue", _text("queue")),
    ("published", _number("published")),
    ("a second", _formatted("published_per_second", ",.2f")),
    ("bytes", _number("bytes")),
    ("leased", _number("leased")),
    ("redelivered", _share("redelivery_rate")),
    ("removed", _number("removed")),
    ("dead-lettered", _number("dead_lettered")),
    ("of published", _share("dead_letter_rate")),
    ("expired", _number("expired")),
]
_LATENCY: Final[Cells] = [
    ("queue", _text("queue")),
    ("from", lambda row: _MEASURED.get(row["what"], row["what"])),
    ("messages", _number("messages")),
    *((title, lambda row, name=name: seconds(row[name])) for name, title in _MARKS.items()),
]
_PLACES: Final[Cells] = [
    ("queue", _text("queue")),
    ("place", _text("place")),
    ("messages", _number("messages")),
]
_EXCEPTIONS: Final[Cells] = [
    ("what", _text("what")),
    ("id", _text("id")),
    ("queue", _text("queue")),
    ("seen", _instant("time")),
    ("details", _text("detail")),
]
_POISON: Final[Cells] = [
    ("id", _text("id")),
    ("queue", _text("queue")),
    ("deliveries", _number("receives")),
    ("dead-lettered", _number("dead_lettered")),
    ("last", _instant("last")),
]
_SEGMENTS: Final[Cells] = [
    ("broker", _text("broker")),
    ("segment", _number("segment")),
    ("rows", _number("rows")),
    ("missing", _number("missing")),
    ("before it", lambda row: "something is missing" if row["is_cut"] else "nothing is missing"),
    ("end", lambda row: "in order" if row["stops"] else "torn" if row["torn"] else None),
]

_STYLE: Final = """
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--dim:#59636e;--line:#d1d9e0;--good:#116329;--bad:#b42318;
--note:#fff8c5;--c0:#0969da;--c1:#bf5700;--c2:#1a7f37;--c3:#8250df;--c4:#a40e26;--c5:#0f766e}
@media(prefers-color-scheme:dark){:root{--fg:#e6edf3;--bg:#0d1117;--dim:#9198a1;--line:#3d444d;--good:#3fb950;
--bad:#ff7b72;--note:#2e2a1f;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#ff7b72;--c5:#39d0c0}}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:75rem;margin:0 auto;padding:1.5rem}
h1{font-size:1.6rem;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
small{color:var(--dim);font-weight:400}figure{margin:1rem 0 0}figcaption{font-weight:600}
svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:11px}
.grid{stroke:var(--line);stroke-width:1}.span{stroke:var(--dim);stroke-width:2}
.legend{margin:.2rem 0 0;color:var(--dim);font-size:.85rem}.legend span{display:inline-block;margin-right:1rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.35em}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;margin-top:.6rem}
th,td{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
td{vertical-align:top}td.text{white-space:normal;overflow-wrap:anywhere;min-width:9rem}td.unknown{color:var(--dim);font-style:italic}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.note{background:var(--note);padding:.1rem 1rem;border-radius:6px}
"""
