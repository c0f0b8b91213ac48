"""The progress of a stream as numbers, from objects of a listener and from dictionaries."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mq.spark.progress import SourceProgress, progress_of

LATEST = {"ready": 7, "leased": 10, "delayed": 1, "oldestSeconds": 2.5}
ONE = {"consumer": "nightly", "queue": "orders", "batch": 3, "rows": 10}
SEVERAL = {"consumer": "nightly", "queues": {"a": {"batch": 1}, "b": {"batch": 2}}}


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"endOffset": end, "latestOffset": latest, "numInputRows": 10}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize(("end", "queues"), [(ONE, ("orders",)), (SEVERAL, ("a", "b"))])
def test_progress_is_numbers(end: Any, queues: tuple[str, ...], as_object: bool, as_text: bool) -> None:
    sources: list[Any] = [
        source({"topic": {"0": 5}}, {"topic": {"0": 9}}),  # Kafka's
        source(end, LATEST),
        source(end, None),  # nothing was reported yet
    ]
    if as_text:
        sources = [
            {**each, **{name: json.dumps(each[name]) for name in ("endOffset", "latestOffset")}} for each in sources
        ]
    progress: Any = {"sources": sources}
    if as_object:
        progress = SimpleNamespace(sources=[SimpleNamespace(**each) for each in sources])
    assert progress_of(progress) == [SourceProgress("nightly", queues, 10, 7, 10, 1, 2.5)]
