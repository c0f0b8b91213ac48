"""A folder of 100,000 ready messages costs a consumer no more for each than one of 100."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mq.vsqs import Queue

FEW, MANY = 100, 100_000
TURNS = 40

pytestmark = pytest.mark.slow


def fill(folder: Path, messages: int) -> Queue:
    """As many publishers left them, long ago."""
    folder.mkdir()
    for number in range(messages):
        (folder / str(1_000_000 + number)).touch()
    queue = Queue(folder)
    assert queue.size() == messages
    return queue


class Calls:
    """Counts the calls of functions, Python's and C's, while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _saw(self, _frame: object, event: str, _arg: object) -> None:
        self.count += event in ("call", "c_call")


def test_a_long_backlog_costs_no_more_and_hides_nothing(folder: Path) -> None:
    """Counted in calls, for a clock on the wall measures the machine: what looked at each message would make one."""
    queues = {FEW: fill(folder / "few", FEW), MANY: fill(folder / "many", MANY)}
    calls = {FEW: Calls(), MANY: Calls()}
    for queue in queues.values():
        first = queue.receive(timeout=0)  # the first one lists the folder
        assert first is not None
        assert first.delete()
    for _ in range(TURNS - 1):
        for size, queue in queues.items():
            with calls[size]:
                message = queue.receive(timeout=0)
            assert message is not None
            assert message.delete()
    assert 0 < calls[MANY].count <= 1.1 * calls[FEW].count
    assert queues[MANY]._view.listings == 1

    many = queues[MANY]
    (folder / "many" / "7").touch()  # another program's, of which the clock was behind
    (folder / "many" / str(1_000_000 + TURNS)).unlink()
    (folder / "many" / str(1_000_001 + TURNS)).rename(folder / "many" / f"{1_000_001 + TURNS}.99999999999999")
    received = [many.receive(timeout=0) for _ in range(2)]
    assert [message.id for message in received if message] == ["7", str(1_000_002 + TURNS)]
    assert many.size() == MANY - TURNS
    assert many._view.listings == 1
    for queue in queues.values():
        queue.close()
