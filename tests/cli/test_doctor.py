"""The verb doctor: what it says, and when it changes something. What it finds is tested with the store."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import pytest
import trio

from mq.broker import open_broker
from mq.broker.background_check import KEY, KIND, PassProgress
from mq.message import MessageIds
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.format import RootUse, note_use
from mq.storage.files.layout import Layout
from mq.storage.files.records import encode_record
from tests.cli.conftest import Mq


@pytest.fixture
def root(temp_root: Path) -> Path:
    """A root with a message, a torn one and a foreign file."""

    async def fill() -> None:
        async with open_broker(f"posix:{temp_root}") as broker:
            await broker.create_queue("a")
            await broker.publish("a", b"one")

    trio.run(fill)
    (temp_root / "new" / f"a:{MessageIds().new()}").touch()
    (temp_root / "delay" / "foreign\n").touch()
    return temp_root


def test_it_tells_and_changes_nothing(root: Path, mq: Mq) -> None:
    before = sorted(root.rglob("*"))
    done = mq("doctor", root)
    assert done.status == 5
    foreign, torn, sum = done.lines
    assert foreign.startswith(f"foreign  '{root}/delay/foreign\\n': ")
    assert torn.startswith(f"torn     {root}/new/a:")
    assert sum == "checked 2 messages: 1 foreign, 1 torn"
    assert sorted(root.rglob("*")) == before
    sum = mq("doctor", root, "--json").json[-1]
    assert sum == {"messages": 2, "unchecked": 0, "served": False, "findings": {"torn": 1, "foreign": 1}}


def test_it_names_the_engine_of_the_root_and_the_reason(root: Path, mq: Mq) -> None:
    done = mq("doctor", root)
    assert re.fullmatch(r"engine (logged|stepwise): .+\n", done.error)
    told = next(line for line in mq("doctor", root, "--json").json if "engine" in line)
    assert done.error.startswith(f"engine {told['engine']}: {told['why']}")


def test_it_repairs_when_asked(root: Path, mq: Mq) -> None:
    done = mq("doctor", root, "--repair")
    assert done.status == 5  # the foreign file is still there
    assert done.lines[-1] == "checked 1 message: 1 foreign"
    assert (root / "delay" / "foreign\n").exists()


def test_it_moves_away_when_asked_and_says_so(root: Path, mq: Mq, tmp_path: Path) -> None:
    done = mq("doctor", root, "--repair", "--quarantine", tmp_path / "q")
    assert done.status == 0
    assert f"moved    '{root}/delay/foreign\\n' to '{tmp_path}/q/delay/foreign\\n'" in done.lines
    assert done.lines[-1] == "checked 1 message: no problems found"
    assert os.listdir(tmp_path / "q" / "delay") == ["foreign\n"]


def test_programs_are_told_what_was_moved(root: Path, mq: Mq, tmp_path: Path) -> None:
    told = mq("doctor", root, "--quarantine", tmp_path / "q", "--json").json
    assert [line["finding"] for line in told if "finding" in line] == ["foreign", "torn", "torn"]
    assert [line for line in told if "moved" in line] == [
        {"moved": f"'{root}/delay/foreign\\n'", "to": f"'{tmp_path}/q/delay/foreign\\n'"}
    ]


def test_while_a_daemon_serves_it_only_looks(root: Path, mq: Mq, tmp_path: Path) -> None:
    with (root / "state" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = mq("doctor", root, "--pause", 0)
        assert done.status == 5
        assert " (while a daemon is running)" in done.lines[-1]
        for flags in (["--repair"], ["--quarantine", tmp_path]):
            done = mq("doctor", root, *flags)
            assert (done.status, done.out) == (2, "")
            assert "stop mq, mq-mover and mq-reaper first" in done.error
    assert (root / "delay" / "foreign\n").exists()


def test_loss_of_a_log_is_refused_listed_and_accepted(root: Path, mq: Mq) -> None:
    (root / "delay" / "foreign\n").unlink()
    note_use(LinuxCalls(), Layout.under(str(root)), RootUse.LOG)
    done = mq("doctor", root)
    assert done.status == 5
    assert done.lines[0].startswith(f"log      {root}/state/log: the log is damaged: {root}/state/log is missing; ")
    refused = mq("doctor", root, "--repair")
    assert (refused.status, len(refused.error.splitlines())) == (2, 1)
    assert f"mq doctor --accept-loss {json.dumps(str(root))}" in refused.error
    done = mq("doctor", root, "--accept-loss")
    assert f"lost     {root}/state/log: {root}/state/log is missing" in done.lines
    assert done.lines[-1] == "checked 1 message: no problems found"
    assert done.status == 0


def test_unreadable_record_is_moved_aside_and_not_deleted(root: Path, mq: Mq, tmp_path: Path) -> None:
    [record] = (root / "state" / "records" / "queue").iterdir()
    content = record.read_bytes().replace(b"created", b"createD")
    record.write_bytes(content)
    done = mq("doctor", root)
    assert f"record   {record}: the content does not match its checksum" in done.lines
    mq("doctor", root, "--quarantine", tmp_path / "q")
    assert not record.exists()
    assert (tmp_path / "q" / record.relative_to(root)).read_bytes() == content


def test_record_that_makes_no_sense_is_found(root: Path, mq: Mq) -> None:
    [record] = (root / "state" / "records" / "queue").iterdir()
    record.write_bytes(encode_record("a", {"created": "yesterday"}))
    done = mq("doctor", root)
    assert done.status == 5
    assert any(
        line.startswith(f"record   {record}: the value is not valid for a record of kind queue") for line in done.lines
    )


def test_it_tells_how_far_the_background_check_is_and_what_it_has_found(root: Path, mq: Mq) -> None:
    progress = PassProgress(began_ms=1_700_000_000_000, queue="a", after=-1, checked=20, total=40)
    damaged = [["a", "the-id", "the content does not match its checksum"]]

    async def put(record: dict[str, object]) -> None:
        async with open_broker(f"posix:{root}") as broker:
            await broker.declarations.put(KIND, KEY, record)

    assert not any(line.startswith("background verification") for line in mq("doctor", root).lines)
    trio.run(put, {**progress._asdict(), "damaged": damaged})
    found, passes = mq("doctor", root).lines[-2:]
    assert (
        found
        == "background verification: message the-id in queue a is damaged: the content does not match its checksum"
    )
    assert passes.endswith(
        "no pass has been completed yet; current pass: 20 of 40 messages, started at 2023-11-14T22:13:20Z"
    )
    assert mq("doctor", root, "--json").json[-1] == {"check": progress._asdict(), "damaged": damaged}
    trio.run(put, {**PassProgress(ended_ms=1_700_000_000_000)._asdict(), "damaged": []})
    assert (
        mq("doctor", root).lines[-1]
        == "background verification of messages: the last complete pass finished at 2023-11-14T22:13:20Z"
    )


def test_no_root_is_2(mq: Mq, tmp_path: Path) -> None:
    done = mq("doctor", tmp_path)
    assert (done.status, len(done.error.splitlines())) == (2, 1)


def test_a_sound_root_is_0(root: Path, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    mq("doctor", root, "--repair")
    (root / "delay" / "foreign\n").unlink()
    monkeypatch.setenv("MQ_ROOT", str(root))
    done = mq("doctor", "--no-bodies")
    assert (done.status, done.out) == (0, "checked 1 message: no problems found\n")
