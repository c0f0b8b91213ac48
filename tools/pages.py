"""Writes the parts of the pages that are made from the code: ``python tools/pages.py`` (``make pages``).

Such a part stands between ``<!-- made: NAME -->`` and ``<!-- end -->``. ``tests/test_docs.py`` fails while a page does
not have what this program would write.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml
from prometheus_client.core import Metric

from mq.broker.api import Health, Membership, NeighborLink
from mq.lifecycle import diagram
from mq.observers.metrics import Durations, Metrics
from mq.settings import LINES
from mq.web.endpoints import OPERATIONS
from mq.web.openapi import REFUSALS
from mq.web.prometheus import TIMED, Scrape, families

TREE: Final = Path(__file__).resolve().parent.parent
TOLERANCE: Final = 0.2
"""A figure of the architecture's page stays as it is until the code differs from it by this part."""
_PART: Final = re.compile(r"(?P<head><!-- made: (?P<name>\w+) -->\n)(?P<text>.*?)(?P<end><!-- end -->)", re.DOTALL)
_INFO_LABELS: Final = {"mq_queue": ["queue", "store"], "mq_build": ["version"]}


def settings(_: str) -> Iterator[str]:
    """The table of the daemon's settings."""
    yield "| flag | environment | key in the file | default | |"
    yield "|---|---|---|---|---|"
    for line in LINES:
        yield f"| `{line.flag}` | `{line.variable}` | `{line.name}` | {line.shown or 'off'} | {line.help} |"


def requests(_: str) -> Iterator[str]:
    """The table of HTTP operations: those of a queue first."""
    yield "| request | right | does | answers |"
    yield "|---|---|---|---|"
    for operation in sorted(OPERATIONS, key=lambda each: not each.path.startswith("/QUEUE")):
        statuses = ", ".join(map(str, operation.answers))
        yield f"| `{operation.line}` | {operation.right} | {operation.text} | {statuses} |"


def refusals(_: str) -> Iterator[str]:
    """The table of the statuses with which HTTP refuses."""
    yield "| status | means |"
    yield "|---|---|"
    for status, text in REFUSALS.items():
        yield f"| {status} | {text} |"


def metrics(_: str) -> Iterator[str]:
    """The table of metrics, as a scrape of everything shows them."""
    yield "| metric | labels | means |"
    yield "|---|---|---|"
    for family in metric_families():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ["le"] if family.type == "histogram" else _INFO_LABELS.get(family.name, family._labelnames)
        yield f"| `{family.name}{suffix}` | {', '.join(labels)} | {family.documentation} |"


def metric_families() -> Iterator[Metric]:
    """Every metric, without values of its own."""
    return families(_everything())


def _everything() -> Scrape:
    """A scrape in which no metric is missing."""
    link = NeighborLink("10.9.0.2:5671", "b", is_up=True, is_inbound_up=True, latency_seconds=0.0)
    return Scrape(
        version="",
        totals=Metrics().totals(set(), 1),
        queues=(),
        is_ready=True,
        room=os.statvfs("/"),
        now_ns=0,
        durations={name: Durations([("+Inf", 0)], 0.0) for name in TIMED},
        cluster=Membership("a", "master", (), 1, True, 1, 0, 5, 4.0, (link,)),
        health=Health(),
    )


LIMITS: Final = (
    ("a queue's name", "mq.message.QUEUE_NAME_BYTES", "bytes: letters, digits and `. _ @ -`"),
    ("a message over SQS, attributes included", "mq.sqs.attributes.LARGEST_MESSAGE", "bytes"),
    ("a message's attributes over HTTP", "mq.web.parameters.MOST_ATTRIBUTES", ""),
    ("these together, with the type", "mq.web.parameters.LARGEST_ATTRIBUTES_BYTES", "bytes"),
    ("a message's attributes over SQS", "mq.sqs.messages.MOST_ATTRIBUTES", ""),
    ("a lease", "mq.broker.config.LONGEST_LEASE_SECONDS", "seconds (12 hours)"),
    ("a delay", "mq.broker.settings.LONGEST_DELAY_SECONDS", "seconds (10 years); over SQS 900"),
    ("a time to live", "mq.broker.settings.LONGEST_TTL_SECONDS", "seconds (10 years)"),
    ("the time for which keys are remembered", "mq.broker.settings.LONGEST_KEY_WINDOW_SECONDS", "seconds (30 days)"),
    ("the reason of a failure", "mq.broker.dead_letters.LONGEST_REASON", "characters"),
    ("a message group's name", "mq.message.LONGEST_GROUP", "visible ASCII characters"),
    ("a batch over HTTP", "mq.web.parameters.LARGEST_BATCH", "messages"),
    ("a batch over SQS", "mq.sqs.message_actions.LARGEST_BATCH", "messages"),
    ("a wait for a message over HTTP", "mq.web.parameters.LONGEST_WAIT_SECONDS", "seconds"),
    ("a wait for a message over SQS", "mq.sqs.attributes.LONGEST_WAIT", "seconds"),
    ("time from an answer to the next request", "mq.web.serve.KEEP_ALIVE_SECONDS", "seconds (`--keep-alive`)"),
    ("time for a request's head", "mq.web.serve.HEAD_SECONDS", "seconds"),
    ("silence of an HTTP connection that waits for no answer", "mq.web.serve.SILENT_SECONDS", "seconds"),
    ("the head of a plain HTTP/1.1 request", "mq.web.fast_http1.LARGEST_HEAD", "bytes"),
    ("lines of the head of an HTTP/1.1 request", "mq.web.refusals.MOST_LINES", "(431)"),
    ("streams of an HTTP/2 connection", "mq.web.hypercorn_server.STREAMS", ""),
    ("the same before its login, with `--users`", "mq.web.hypercorn_server.STREAMS_BEFORE_LOGIN", ""),
    ("idle HTTP/2 frames in a minute", "mq.web.hypercorn_server.CONTROL_FRAMES", ""),
    ("the same before its login, with `--users`", "mq.web.hypercorn_server.CONTROL_FRAMES_BEFORE_LOGIN", ""),
    ("a header block over HTTP/2", "mq.web.hypercorn_server.HEADER_BLOCK_BYTES", "bytes"),
    ("heartbeats of an AMQP connection in a minute", "mq.amqp.protocol.connection.MOST_HEARTBEATS", ""),
    ("open files that connections leave to the store", "mq.doors.connections.MOST_RESERVED_HANDLES", ""),
    ("console sessions of a user", "mq.web.login_sessions.SESSIONS_PER_USER", ""),
    ("console sessions in all", "mq.web.login_sessions.MOST_SESSIONS", ""),
    ("batch consumers of a queue", "mq.broker.batch_consumers.MOST_CONSUMERS", ""),
    ("parts of a committed write job", "mq.broker.write_jobs.MOST_PARTS", ""),
    ("messages of a claim", "mq.broker.batch_consumers.LARGEST_CLAIM", ""),
    ("schedules", "mq.schedules.scheduler.MOST_SCHEDULES", ""),
    ("messages of all schedules together", "mq.schedules.scheduler.MOST_BYTES", "bytes"),
    ("schedules of a user", "mq.schedules.scheduler.SCHEDULES_PER_USER", "(`--schedules-per-user`)"),
    (
        "messages a second of a user's schedules",
        "mq.schedules.scheduler.MESSAGES_PER_SECOND",
        "(`--schedules-per-user`)",
    ),
    ("the body of a schedule's message", "mq.schedules.schedule.LARGEST_BODY", "bytes"),
    ("a cron line", "mq.schedules.schedule.LONGEST_LINE", "characters"),
    ("queues with metrics of their own", "mq.web.prometheus.MOST_QUEUES", ""),
)
"""What is limited, the constant that says to how much, and its unit."""


def limits(_: str) -> Iterator[str]:
    """The table of limits that constants of the code set."""
    yield "| of | at most |"
    yield "|---|---|"
    for what, constant, unit in LIMITS:
        module, _, name = constant.rpartition(".")
        yield f"| {what} | {getattr(importlib.import_module(module), name):,.0f} {unit}".rstrip() + " |"


def transitions(_: str) -> Iterator[str]:
    """The picture of the states of a message."""
    yield "```mermaid"
    yield diagram().rstrip("\n")
    yield "```"


def packages(shown: str) -> Iterator[str]:
    """The size of each package of mq."""
    before = {name: (int(files), int(lines.replace(",", ""))) for name, files, lines in _ROW.findall(shown)}
    yield "| package | what it is | files | lines |"
    yield "|---|---|---|---|"
    for folder in sorted(path.parent for path in (TREE / "mq").rglob("__init__.py")):
        name = ".".join(folder.relative_to(TREE).parts)
        texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
        files, lines = before.get(name, (0, 0))
        files, lines = _steady(files, len(texts)), _steady(lines, sum(text.count("\n") for text in texts))
        if len(texts) > 1:
            yield f"| `{name}` | {_first_sentence(folder / '__init__.py')} | {files} | {lines:,} |"


_ROW: Final = re.compile(r"^\| `([\w.]+)` \| .* \| (\d+) \| ([\d,]+) \|$", re.MULTILINE)


def _steady(shown: int, found: int) -> int:
    return shown if abs(shown - found) <= max(1, TOLERANCE * found) else found


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).partition(". ")[0]
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", sentence.replace("``", "`")).rstrip(".")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, except what only mkdocs can make."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: None)


def navigation(_: str) -> Iterator[str]:
    """A link to each page of the site, by section."""
    sections = yaml.load((TREE / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"]
    for title, entries in (item for section in sections for item in section.items()):
        if not isinstance(entries, str):
            yield f"## {title}"
            yield ""
            for text, place in (item for entry in entries for item in entry.items() if item[1] != "pages.md"):
                yield f"* [{text}]({os.path.relpath(_source(place), TREE / 'docs')})"
            yield ""


def _source(place: str) -> Path:
    """Where the page at `place` of the site is in the tree: tools/site_pages.py adds those outside docs/."""
    stem = place.removesuffix(".md")
    paths = (TREE / path for path in (f"docs/{place}", f"{stem}/README.md", f"{stem.upper()}.md"))
    return next(path for path in paths if path.exists())


PARTS: Final[Mapping[str, Mapping[str, Callable[[str], Iterator[str]]]]] = {
    "docs/settings.md": {"settings": settings},
    "docs/http.md": {"requests": requests, "refusals": refusals},
    "docs/limits.md": {"limits": limits},
    "docs/metrics.md": {"metrics": metrics},
    "docs/pages.md": {"navigation": navigation},
    "docs/dev/architecture.md": {"transitions": transitions, "packages": packages},
}
"""Page -> its parts by name, each with what makes its lines from what the page shows now."""


def made(path: str, text: str) -> str:
    """Return the text of a page with its parts as the code has them.

    Raises:
        ValueError: the page lacks one of its parts.
    """
    parts = PARTS[path]
    if [part["name"] for part in _PART.finditer(text)] != list(parts):
        raise ValueError(f"{path} has to have these parts, in this order: {', '.join(parts)}")

    def put(part: re.Match[str]) -> str:
        lines = "\n".join(parts[part["name"]](part["text"]))
        return f"{part['head']}{lines}\n{part['end']}"

    return _PART.sub(put, text)


if __name__ == "__main__":
    for name in PARTS:
        page = TREE / name
        old = page.read_text(encoding="utf-8")
        new = made(name, old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")
