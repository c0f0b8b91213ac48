"""What a store has confirmed, noted in a file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from mq.storage.confirmed import ConfirmedFile


def file_of(noting: ConfirmedFile) -> trio.Path:
    """The file that an operator is told to remove."""
    return trio.Path(noting.forgetting("mq/orders").removeprefix("remove "))


async def test_the_last_number_of_each_store_is_recalled(tmp_path: Path) -> None:
    noting = ConfirmedFile(tmp_path / "root" / "state")
    assert await noting.recall("mq/orders") == 0
    for number in (7, 1_234_567, 1_234_568):
        noting.note("mq/orders", number)
    noting.note("mq/../others", 3)
    again = ConfirmedFile(tmp_path / "root" / "state")
    assert await again.recall("mq/orders") == 1_234_568
    assert await again.recall("mq/../others") == 3
    assert await again.recall("mq/neither") == 0
    files = list((tmp_path / "root" / "state").iterdir())
    assert len(files) == 2, "a name stays in the folder"
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600


async def test_who_removes_the_file_is_asked_no_more(tmp_path: Path) -> None:
    """Also while it is noted in."""
    noting = ConfirmedFile(tmp_path)
    noting.note("mq/orders", 9)
    await file_of(noting).unlink()
    assert await noting.recall("mq/orders") == 0
    noting.note("mq/orders", 2)
    assert await noting.recall("mq/orders") == 2


async def test_what_is_no_number_refuses_nothing(tmp_path: Path) -> None:
    noting = ConfirmedFile(tmp_path)
    noting.note("mq/orders", 9)
    await file_of(noting).write_bytes(bytes(21))
    assert await noting.recall("mq/orders") == 0


async def test_a_folder_that_takes_no_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("no folder")
    noting = ConfirmedFile(tmp_path / "state")
    with caplog.at_level(logging.WARNING, "mq"):
        noting.note("mq/orders", 1)
        noting.note("mq/orders", 2)
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"cannot save the last confirmed change number of store mq/orders in folder {tmp_path / 'state'}"
    ]
