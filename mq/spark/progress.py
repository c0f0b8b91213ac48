"""The numbers in the progress of a stream, for a ``StreamingQueryListener``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class SourceProgress(NamedTuple):
    """How far a stream of ``mq`` is.

    Attributes:
        ready: messages that wait in all its queues.
        leased: messages that are leased there.
        delayed: messages that are delayed there.
        oldest_seconds: the age of the oldest message that waits.
    """

    consumer: str
    queues: tuple[str, ...]
    rows: int
    ready: int
    leased: int
    delayed: int
    oldest_seconds: float


def progress_of(progress: Any) -> list[SourceProgress]:
    """The progress of each source ``mq`` of a query.

    Spark passes what a source in Python reports as text, in ``latestOffset``; its ``metrics`` are for sources in Java.

    Args:
        progress: ``event.progress`` of ``onQueryProgress``, or ``query.lastProgress``.
    """
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    found = []
    for source in sources:
        end, latest = _offset(source, "endOffset"), _offset(source, "latestOffset")
        if "consumer" not in end or "oldestSeconds" not in latest:
            continue  # another format's
        places = end.get("queues") or {end.get("queue", ""): end}
        found.append(
            SourceProgress(
                consumer=str(end["consumer"]),
                queues=tuple(places),
                rows=int(source["numInputRows"] if isinstance(source, Mapping) else source.numInputRows),
                oldest_seconds=float(latest["oldestSeconds"]),
                **{name: int(latest[name]) for name in ("ready", "leased", "delayed")},
            )
        )
    return found


def _offset(source: Any, name: str) -> Mapping[str, Any]:
    value = source[name] if isinstance(source, Mapping) else getattr(source, name)
    parsed = json.loads(value) if isinstance(value, str) else value
    return parsed if isinstance(parsed, Mapping) else {}
