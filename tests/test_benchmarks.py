"""The benchmarks run, and their bare loop does what mq does: as many files, moves and syncs. Nothing is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq.broker import open_broker

bare = pytest.importorskip("benchmarks.bare", reason="a source package has no benchmarks")
embedded = pytest.importorskip("benchmarks.embedded")
reference = pytest.importorskip("benchmarks.reference")
recorded = pytest.importorskip("benchmarks.recorded")

TREE = Path(__file__).resolve().parent.parent
MESSAGES = 20


@pytest.mark.proof
def test_benchmarks_print_their_figures(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--root",
        str(tmp_path),
        "--rounds",
        "1",
        "--messages",
        str(MESSAGES),
    ]
    done = subprocess.run([*command, "embedded", "reference"], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for figure in ("durable publish", "fetch and remove", "AMQP publish + confirm", "HTTP publish", "SQS SendMessage"):
        assert figure in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proof
def test_no_operation_takes_much_more_than_was_reached(tmp_path: Path) -> None:
    figures = reference.measure(str(tmp_path), rounds=3, messages=400)
    bounds = [1.3 * reached for reached in reference.REACHED]
    assert [each for each, bound in zip(figures, bounds, strict=True) if each.value > bound] == []


async def test_bare_loop_does_what_mq_did(temp_root: Path) -> None:
    async with recorded.open_recorded(f"{temp_root}/mq") as storage, open_broker(storage) as broker:
        await broker.create_queue("q")
        storage.take_groups()
        published = await embedded.phase(storage, MESSAGES, 4, lambda: embedded.publish_one(broker))
        between = await embedded.settled(storage, published.groups, MESSAGES)
        consumed = await embedded.phase(storage, MESSAGES, 4, lambda: embedded.consume_one(broker))
        rest = await embedded.settled(storage, consumed.groups, MESSAGES)
    loop = bare.BareLoop(f"{temp_root}/bare", embedded.BODY)
    try:
        loop.run([*published.groups, *between])
        assert {folder: files(temp_root / "bare" / folder) for folder in ("new", "queues/q")} == {
            "new": 0,
            "queues/q": MESSAGES,
        }
        loop.run([*consumed.groups, *rest])
        assert files(temp_root / "bare") == 1, "nothing but the log"
    finally:
        loop.close()
    assert sum(group.written for group in published.groups) == MESSAGES
    # What was published a moment ago is in memory, but to the letter.
    assert sum(group.reads for group in consumed.groups) == 0
    removed = [number for group in consumed.groups for _, number in (*group.moves, *group.removals)]
    assert sum(removed) == 2 * MESSAGES  # leased, and removed


def files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
