"""Insight: a made-up journal with everything wrong that can be, and a real one of daemons that were killed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from mq.cli import main as mq_main
from mq.cli.commands import FINDINGS
from mq.cli.pipeline import main
from mq.errors import InvalidSetting
from mq.lifecycle import Kind
from mq.spark.pipelines.audit import (
    CAME_BACK,
    DAMAGED,
    DELETED,
    EXPIRED,
    LOST,
    NOWHERE,
    REMOVED,
    TWICE,
    TWO_PLACES,
    UNSURE,
    read_damaged,
)
from mq.spark.pipelines.insight import insight
from mq.spark.pipelines.session import open_session
from tests.e2e.clients import QUEUE, Clients
from tests.e2e.daemon import Daemon
from tests.e2e.history import Published, Removed
from tests.pipelines.stories import DELAYED, NEW, READY, Clock, Story
from tests.pipelines.stories import REMOVED as GONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def exceptions_in(tables: Any) -> set[tuple[str, str]]:
    return {(row["what"], row["id"]) for row in tables["exceptions"]}


def places_in(tables: Any) -> dict[tuple[str, str], int]:
    return {(row["queue"], row["place"]): row["messages"] for row in tables["places"]}


@pytest.mark.in_turn(3)
def test_the_audit_finds_what_is_wrong_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    clock = Clock()
    journal = tmp_path / "journal"
    journal.mkdir()
    wrong: set[tuple[str, str]] = set()

    first = Story(journal, clock, "1-aaaa")
    first.start({"q": [], "grave": [], "temp": []})
    wrong.add((NOWHERE, first.tell(first.ids.new(), (Kind.LEASE, READY, DELAYED), (Kind.REMOVE, DELAYED, GONE))))
    excused = first.tell(first.ready(), (Kind.LEASE, READY, DELAYED))
    first.gap(7)
    first.tell(excused, (Kind.LEASE, READY, DELAYED), (Kind.REMOVE, DELAYED, GONE))  # it was requeued in the gap
    for _ in range(50):
        first.done(first.ready())
    offered = first.tell(first.ids.new(), (Kind.PUBLISH, None, NEW), (Kind.LEASE, NEW, DELAYED), receives=1)
    first.tell(offered, (Kind.REMOVE, DELAYED, GONE), (Kind.REAP, GONE, None), receives=1)
    first.tell(first.ids.new(), (Kind.PUBLISH, None, NEW), (Kind.REMOVE, NEW, GONE), (Kind.REAP, GONE, None))
    stays = first.ready()
    wrong.add((LOST, first.ready()))
    back = first.done(first.ready())
    wrong.add((CAME_BACK, back))
    two = first.tell(first.ready(), (Kind.LEASE, READY, DELAYED), (Kind.LEASE, READY, DELAYED), receives=1)
    wrong.add((TWO_PLACES, two))
    twice = first.ready()
    first.tell(twice, (Kind.PUBLISH, None, NEW), (Kind.DELIVER, NEW, READY))
    wrong.add((TWICE, twice))
    slow = first.ready()
    clock.now_ns += 60 * 10**9
    first.done(slow)
    first.tell(first.ready(), (Kind.EXPIRE, READY, GONE))
    dead = first.ready()
    for receives in (1, 2, 3):
        first.tell(dead, (Kind.LEASE, READY, DELAYED), (Kind.REQUEUE, DELAYED, READY), receives=receives)
    first.tell(dead, (Kind.DEAD_LETTER, READY, READY), to="grave", receives=3)
    first.ready("temp")
    first.ready("temp")
    first.tell(first.ids.new(), (Kind.REAP, GONE, None), queue="temp")  # the folder of the deleted queue
    first.ready("other")  # it is deleted, too: the next life does not find it
    arrives, vanishes = (first.tell(first.ids.new(), (Kind.PUBLISH, None, NEW)) for _ in range(2))
    first.stop(arrives, vanishes)

    second = Story(journal, clock, "2-bbbb")
    second.start({"q": [stays, back, two, twice, arrives], "grave": [dead]})
    wrong.add((TWO_PLACES, two))  # leased, and found READY after a stop in order
    second.ready()  # removed after the last row that was written, or not
    second.die()

    third = Story(journal, clock, "3-cccc")
    third.start({"q": [stays, twice, back, two, arrives], "grave": [dead]})
    third.ready()
    third.stop()

    unknown = first.ids.new()
    wrong |= {(DAMAGED, stays), (DAMAGED, unknown)}
    told = tmp_path / "doctor"
    lines = [
        {"finding": "damaged", "path": "/r", "detail": f"<{number}>", "id": i}
        for number, i in enumerate((stays, unknown))
    ]
    lines += [{"finding": "torn", "path": "/r", "detail": "", "id": first.ids.new()}, {"messages": 9, "unchecked": 0}]
    told.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = insight(spark, [str(journal)], str(tmp_path / "out"), doctor=str(told))
    tables = found.report.tables
    damaged = [
        (row["queue"], row["detail"], row["time"] is None) for row in tables["exceptions"] if row["what"] == DAMAGED
    ]
    assert sorted(damaged, key=str) == [("q", "<0>", False), (None, "<1>", True)]
    assert exceptions_in(tables) == wrong
    assert places_in(tables) == {
        ("grave", "ready"): 1,
        ("other", DELETED): 1,
        ("q", EXPIRED): 1,
        ("q", LOST): 1,
        ("q", "ready"): 6,
        ("q", REMOVED): 55,
        ("q", UNSURE): 2,
        ("temp", DELETED): 2,
    }
    assert [(row["id"], row["receives"], row["dead_lettered"]) for row in tables["poison"]] == [(str(dead), 3, 1)]
    [q] = [row for row in tables["queues"] if row["queue"] == "q"]
    assert (q["published"], q["dead_lettered"], q["expired"]) == (66, 1, 1)
    assert (q["leased"], q["redelivered"], q["redelivery_rate"]) == (61, 2, 2 / 61)
    [waited] = [row for row in tables["latency"] if row["queue"] == "q" and row["what"] == "in queue"]
    assert (waited["messages"], waited["p50"], waited["longest"]) == (59, 1.0, 61.0)  # two of them straight from NEW
    assert (q["published_per_second"] or 0) > 0
    depths: dict[str, list[int | None]] = defaultdict(list)
    for row in tables["depth"]:
        depths[row["queue"]].append(row["depth"])
    assert depths["q"][0] == 0  # the first census, of empty queues
    assert None in depths["q"]  # behind the gap
    assert depths["q"][-1] == 6
    assert depths["temp"][-1] == depths["other"][-1] == 0  # they were deleted
    complaints = "\n".join(found.report.complaints)
    assert "7 transitions are missing" in complaints
    assert "a broker was killed" in complaints
    for name, rows in tables.items():
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == rows
    page = found.page.read_text()
    assert all(id in page for _, id in wrong)
    assert "<svg" in page
    assert "&lt;1&gt;" in page


@pytest.mark.parametrize("text", ["", "no JSON", "[]\n", '{"finding": "damaged"}\n{"messages": 1}\n', '{"id": "1"}\n'])
def test_what_no_doctor_has_printed_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSetting, match="cannot read the file given with --doctor"):
        read_damaged(str(tmp_path / "nowhere"))
    (tmp_path / "found").write_text(text)
    with pytest.raises(InvalidSetting, match="is not the output of mq doctor --json"):
        read_damaged(str(tmp_path / "found"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The journal of a daemon under load that was killed twice, stopped, and robbed of one message; another one came
    back from the dead, and the body of a third was cut."""
    place = tmp_path_factory.mktemp("killed")
    root, journal = place / "root", place / "journal"
    daemon = Daemon(root, place / "log", "--visibility", "1", "--journal", str(journal))
    clients = Clients([daemon])
    with daemon:
        clients.create_queue()
        with ThreadPoolExecutor() as pool:
            consumers = [pool.submit(clients.consume, number, Random(number)) for number in range(2)]
            for kill in range(3):
                publishers = [pool.submit(publish, clients, f"{kill}-{number}", 60) for number in range(3)]
                if kill < 2:
                    publishers[0].result()
                    daemon.kill()
                    killed_at = time.monotonic()
                    daemon.start()
                for publisher in publishers:
                    publisher.result()
            clients.stop.set()
            for consumer in consumers:
                consumer.result()
        clients.stop.clear()
        begun = len(clients.history)
        publish(clients, "late", 4)
        back, lost, cut, *_ = [event.id for event in clients.history[begun:] if isinstance(event, Published)]
        daemon.stop()
        (file,) = root.glob(f"*/{QUEUE}/{back}")
        shutil.copy2(file, place / "copy")
        daemon.start()
        with clients.caller() as caller:
            assert caller.call("DELETE", f"/{QUEUE}/messages/{back}").status == 202
        daemon.stop()
        shutil.copy2(place / "copy", root / "queues" / QUEUE / back)
        (root / "queues" / QUEUE / lost).unlink()
        daemon.start()
        daemon.stop()
        os.truncate(root / "queues" / QUEUE / cut, 1)
        doctor = place / "doctor"
        doctor.write_text(CliRunner().invoke(mq_main, ["doctor", str(root), "--json"]).stdout)
    acknowledged = {event.id for event in clients.history if isinstance(event, Published) and event.id}
    there = [name.partition(",")[0].rpartition(":")[2] for name in os.listdir(root / "delay")]
    there += [name.partition(",")[0] for name in os.listdir(root / "queues" / QUEUE)]
    removed = {event.id for event in clients.history if isinstance(event, Removed) and event.asked < killed_at}
    return {
        "journal": journal,
        "back": back,
        "lost": lost,
        "cut": cut,
        "doctor": doctor,
        "acknowledged": acknowledged,
        "there": set(there),
        "removed before a kill": removed,
    }


def publish(clients: Clients, name: str, count: int) -> None:
    with clients.caller() as caller:
        for number in range(count):
            clients.publish(caller, f"{name}-{number}".encode())


@pytest.mark.in_turn(3)
def test_a_planted_loss_and_a_planted_duplicate_are_found_among_kills(
    spark: SparkSession, killed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.spark.pipelines.session.open_session", lambda master: NotStopped(spark))
    out = tmp_path / "out"
    asked = ["insight", str(killed["journal"]), "--out", str(out), "--doctor", str(killed["doctor"]), "--json"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == FINDINGS, result.output
    told = json.loads(result.stdout)
    wrong = {(row["what"], row["id"]) for row in told["exceptions"]}
    assert wrong == {(LOST, killed["lost"]), (CAME_BACK, killed["back"]), (DAMAGED, killed["cut"])}
    assert sum("killed" in text for text in told["incomplete"]) == 2
    places = told["places"]
    assert places[LOST] == 1
    assert places.get("ready", 0) + places.get("leased or delayed", 0) == len(killed["there"])
    known = sum(places.values())
    assert known <= len(killed["acknowledged"]) + 10  # some were stored, and the answer was cut off
    unwritten = killed["acknowledged"] & killed["removed before a kill"]  # all that is not found after the last second
    assert known >= len(killed["acknowledged"] - unwritten)
    [latency] = [row for row in pq.read_table(out / "latency.parquet").to_pylist() if row["what"] == "end to end"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["longest"] < 600


class NotStopped:
    """The module's session, which its user must not end."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Others need it."""


def test_several_brokers_are_not_audited_and_strange_journals_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot read the journal"):
        insight(spark, [str(tmp_path / "nowhere")], str(tmp_path / "out"))
    journal = tmp_path / "journal"
    journal.mkdir()
    with pytest.raises(InvalidSetting, match="no journal files in"):
        insight(spark, [str(journal)], str(tmp_path / "out"))
    story = Story(journal, Clock(), "1-aaaa", peers=1)
    story.start({"<script>alert(1)</script>": []})
    story.ready("<script>alert(1)</script>")
    story.stop()
    found = insight(spark, [str(journal)], str(tmp_path / "out"))
    assert "exceptions" not in found.report.tables
    page = found.page.read_text()
    assert "Not audited" in page
    assert "<script" not in page


def test_the_session_is_the_one_there_is(spark: SparkSession) -> None:
    assert open_session() is spark
