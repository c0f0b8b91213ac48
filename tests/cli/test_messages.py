"""send, receive, peek, delete, purge, redrive, move: against real endpoints."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from mq.cli import send
from mq.cli.receive import _sync_output
from mq.cli.streams import CannotWrite
from mq.client import Client, NotFound
from tests.cli.conftest import Mq
from tests.client.inside import Inside
from tests.client.scripted import refused


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    return [message.body for message in client.browse(queue)]


def test_standard_input_is_one_message(client: Client, mq: Mq) -> None:
    body = bytes(range(256)) * 3
    done = mq("send", "q", "--content-type", "x/y", "--attribute", "Colour=blue", input=body)
    (message,) = client.browse("q")
    assert (done.status, done.out) == (0, message.id + "\n")
    assert (message.body, message.content_type, message.attributes) == (body, "x/y", {"colour": "blue"})


def test_a_group_of_messages(client: Client, mq: Mq) -> None:
    refused = mq("send", "q", "-m", "a1", "--group", "a")
    assert refused.status != 0
    client.configure("q", groups=True)
    assert mq("send", "q", "--lines", "--group", "a", input=b"a1\na2\n").status == 0
    assert mq("send", "q", "-m", "b1", "--group", "b").status == 0
    got = list(iter(lambda: client.fetch("q"), None))
    assert [(message.body, message.group) for message in got] == [(b"a1", "a"), (b"b1", "b")]


def test_files_are_a_message_each(client: Client, mq: Mq, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 3)
    done = mq("send", "q", tmp_path / "a", tmp_path / "b", "--json")
    assert bodies(client) == [b"aaa", b"bbb"]
    assert [line["file"] for line in done.json] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert {line["new"] for line in done.json} == {True}


def test_lines_are_a_message_each(client: Client, mq: Mq) -> None:
    done = mq("send", "q", "--lines", input=b"one\n\ntwo\r\n\xff")
    assert bodies(client) == [b"one", b"two\r", b"\xff"]
    assert len(done.lines) == 3


def test_a_line_does_not_wait_for_the_next(client: Client, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from ``tail -f``: a real pipe that stays open."""
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
        lines = send._read_lines("-")
        os.write(writing, b"one\ntwo\nthr")
        assert next(lines) == [b"one", b"two"]
        os.write(writing, b"ee\n")
        assert next(lines) == [b"three"]
        os.close(writing)
        assert next(lines) == [b""]


def test_a_message_and_nothing_said(client: Client, mq: Mq) -> None:
    done = mq("send", "q", "-m", "hello", "-q")
    assert (done.out, done.error, bodies(client)) == ("", "", [b"hello"])


def test_the_same_key_is_one_message(client: Client, mq: Mq) -> None:
    first = mq("send", "q", "-m", "hello", "--key", "k")
    again = mq("send", "q", "-m", "hello", "--key", "k", "--json")
    assert again.json == [{"id": first.out.strip(), "new": False}]
    assert bodies(client) == [b"hello"]


def test_a_refused_line_is_told_and_1(client: Client, mq: Mq) -> None:
    client.configure("q", max_messages=2)
    done = mq("send", "q", "--lines", "--patience", 0, input="1\n2\n3\n")
    assert done.status == 1
    assert len(done.lines) == 2
    assert done.error.startswith("mq: message 3 of - was refused: ")
    assert bodies(client) == [b"1", b"2"]


def test_sending_nowhere_is_1(client: Client, mq: Mq) -> None:
    assert mq("send", "nowhere", "-m", "x").status == 1


def test_receiving_prints_and_removes(client: Client, mq: Mq) -> None:
    body = b"\xff\x00 no newline"
    client.publish("q", body)
    done = mq("receive", "q")
    assert (done.status, done.raw, done.error) == (0, body, "")
    assert client.queue("q").leased == 0
    assert mq("receive", "q").status == 3


def test_receiving_some(client: Client, mq: Mq) -> None:
    for body in ("1", "2\n", "3"):
        client.publish("q", body)
    assert mq("receive", "q", "--max", 2).out == "1\n2\n"
    done = mq("receive", "q", "--max", 2)
    assert (done.status, done.out) == (0, "3\n")


def test_kept_messages_stay_leased_and_can_be_deleted_by_receipt(client: Client, mq: Mq) -> None:
    client.publish("q", "hello", attributes={"a": "b"})
    (message,) = mq("receive", "q", "--keep", "--json").json
    assert message["body"] == "hello"
    assert message["attributes"] == {"a": "b"}
    assert client.queue("q").leased == 1
    assert mq("delete", "q", message["id"], "--receipt", "nonsense").status == 1
    assert mq("delete", "q", message["id"], "--receipt", message["receipt"]).status == 0
    assert client.queue("q").leased == 0


def test_what_could_not_be_written_comes_back(client: Client, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    client.publish("q", "hello")

    def full(file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mq.cli.receive._sync_output", full)
    with pytest.raises(OSError, match="No space"):
        mq("receive", "q")
    assert bodies(client) == [b"hello"]


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.EIO, pytest.raises(CannotWrite, match="Input/output error")), (errno.EINVAL, contextlib.nullcontext())],
)
def test_a_sync_that_the_disk_fails_is_an_error(
    number: int, outcome: contextlib.AbstractContextManager[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fail)
    with (tmp_path / "file").open("wb") as file, outcome:
        _sync_output(file)


def test_a_command_that_succeeds_removes(client: Client, mq: Mq, tmp_path: Path) -> None:
    sent = client.publish("q", b"hello", content_type="x/y", attributes={"the-colour": "blue"})
    names = "$MQ_QUEUE $MQ_MESSAGE_ID $MQ_RECEIVES $MQ_CONTENT_TYPE $MQ_ATTRIBUTE_THE_COLOUR"
    command = f'(cat; echo " {names}") > {tmp_path}/out'
    assert mq("receive", "q", "--exec", command).status == 0
    assert (tmp_path / "out").read_text() == f"hello q {sent.id} 1 x/y blue\n"
    assert client.queue("q").leased == 0


def test_a_command_that_fails_gives_back(client: Client, mq: Mq) -> None:
    client.publish("q", b"hello")
    done = mq("receive", "q", "--exec", "exit 7", "--retry-delay", 0)
    assert done.status == 1
    assert "the command exited with status 7" in done.error
    assert bodies(client) == [b"hello"]


def test_a_command_need_not_read(client: Client, mq: Mq) -> None:
    client.publish("q", bytes(500_000))
    assert mq("receive", "q", "--exec", "true").status == 0
    assert bodies(client) == []


def test_a_slow_command_keeps_its_lease(client: Client, mq: Mq) -> None:
    client.publish("q", b"hello")
    assert mq("receive", "q", "--visibility", 0.6, "--exec", "sleep 1.5").status == 0
    assert client.queue("q").ready == 0


def test_following_waits_until_it_is_stopped(client: Client, mq: Mq) -> None:
    """The program runs in the main thread, which a signal can reach; this test's other half beside it."""

    def beside() -> None:
        sent = [client.publish("q", body).id for body in ("one", "two")]
        while any(map(is_there, sent)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def is_there(id: str) -> bool:
        try:
            return bool(client.show("q", id))
        except NotFound:
            return False

    thread = threading.Thread(target=beside)
    thread.start()
    done = mq("receive", "q", "--follow", "--wait", 0.2)
    thread.join()
    assert (done.status, done.out) == (143, "one\ntwo\n")


def test_peeking_leaves_all_as_it_is(client: Client, mq: Mq) -> None:
    ids = [client.publish("q", body).id for body in (b"one\ntwo", b"\xff" * 60, b"3")]
    rows = [line.split("\t") for line in mq("peek", "q", "--max", 2).lines]
    assert [row[0] for row in rows] == ids[:2]
    assert rows[0][1:] == ["0", "7", "application/octet-stream", "one.two"]
    assert rows[1][4].endswith("…")
    (first, _, third) = mq("peek", "q", "--json").json
    assert (first["state"], first["body"], third["body"]) == ("ready", "one\ntwo", "3")
    assert mq("peek", "q", ids[1]).raw == b"\xff" * 60
    assert mq("peek", "q", ids[1], "--json").json[0]["id"] == ids[1]
    assert client.queue("q").ready == 3


def test_peeking_at_other_states(client: Client, mq: Mq) -> None:
    client.publish("q", "later", delay=100)
    held = client.publish("q", "held")
    client.fetch("q")
    assert mq("peek", "q").status == 3
    assert [line["body"] for line in mq("peek", "q", "--state", "delayed", "--json").json] == ["later"]
    (line,) = mq("peek", "q", "--state", "delayed", "--json").json
    assert 0 < (datetime.fromisoformat(line["at"]) - datetime.now(UTC)).total_seconds() <= 100
    (row,) = [row.split("\t") for row in mq("peek", "q", "--state", "delayed").lines]
    shown, told = datetime.fromisoformat(row[1]), datetime.fromisoformat(line["at"])
    assert shown == told.replace(microsecond=0)
    assert shown.utcoffset() == told.astimezone().utcoffset(), "the time of this machine"
    assert row[2:] == ["0", "5", "text/plain; charset=utf-8", "later"]
    (leased,) = mq("peek", "q", "--state", "leased", "--json").json
    assert "at" in leased
    assert (leased["id"], leased["receives"]) == (held.id, 1)


def test_deleting(client: Client, mq: Mq) -> None:
    ids = [client.publish("q", str(number)).id for number in range(3)]
    assert mq("delete", "q", ids[0]).status == 0
    assert mq("delete", "q", ids[0]).status == 1
    done = mq("delete", "q", ids[0], ids[1])
    assert (done.status, len(done.error.splitlines())) == (1, 1)
    assert done.error.startswith(f"mq: {ids[0]}: ")
    assert bodies(client) == [b"2"]


def test_purging(client: Client, mq: Mq) -> None:
    for number in range(3):
        client.publish("q", str(number))
    client.fetch("q")
    assert mq("purge", "q", "--yes").out == "2\n"
    assert mq("purge", "q", "--yes", "--json").json == [{"purged": 0}]
    assert client.queue("q").leased == 1


def test_moving(client: Client, mq: Mq) -> None:
    client.create_queue("p")
    ids = [client.publish("q", str(number)).id for number in range(5)]
    assert mq("move", "q", "p", "--max", 2).out == "2\n"
    assert [message.id for message in client.browse("p")] == ids[:2]
    assert mq("move", "q", "p", "--id", ids[4]).out == "1\n"
    assert mq("move", "q", "p", "--json").json == [{"moved": 2, "remaining": 0}]
    assert sorted(message.id for message in client.browse("p")) == sorted(ids)


def test_what_waits_gets_another_time(client: Client, mq: Mq) -> None:
    waits = client.publish("q", "later", delay=3600).id
    assert mq("reschedule", "q", waits, "--at", "2999-01-01T09:00").status == 1
    assert mq("reschedule", "q", waits).status == 2
    assert mq("reschedule", "q", waits, "--delay", 0).out == ""
    held = client.fetch("q", wait=5)
    assert held is not None
    assert held.id == waits
    done = mq("reschedule", "q", waits, "--delay", 0)
    assert (done.status, "not delayed" in done.error) == (1, True)
    client.remove(held)  # the delivery was left alone


def test_what_a_wrong_clock_put_off_is_seen_and_let_come(client: Client, mq: Mq) -> None:
    """As docs/on-disk.md says it."""
    far_off = [client.publish("q", "in years", delay=9 * 365 * 86_400).id for _ in range(2)]
    client.publish("q", "soon", delay=3600)
    rows = [row.split("\t") for row in mq("peek", "q", "--state", "delayed", "-n", 1000).lines]
    limit = str((datetime.now(UTC) + timedelta(days=2 * 365)).year)
    found = [row[0] for row in rows if row[1] > limit]
    assert found == far_off
    held = client.publish("q", "ready").id
    done = mq("reschedule", "q", "--delay", 0, far_off[0], held, far_off[1])
    assert (done.status, done.error.count(held), "not delayed" in done.error) == (1, 1, True)
    assert {message.id for message in client.browse("q")} == {*far_off, held}
    assert len(list(client.browse("q", state="delayed"))) == 1


def test_redriving(client: Client, mq: Mq) -> None:
    client.create_queue("dead")
    client.configure("q", max_receives=1, dead_letter_queue="dead")
    sent = client.publish("q", "hello")
    held = client.fetch("q")
    assert held is not None
    client.requeue(held)
    assert client.fetch("q") is None
    (dead,) = mq("peek", "dead", "--json").json
    assert dead["id"] == sent.id
    assert [death["queue"] for death in dead["dead_letter_history"]] == ["q"]
    assert mq("redrive", "dead").out == "1\n"
    assert bodies(client) == [b"hello"]


def test_more_than_a_batch_moves(client: Client, mq: Mq) -> None:
    client.create_queue("p")
    client.publish_many("q", [str(number) for number in range(2100)])
    assert mq("move", "q", "p").out == "2100\n"


def test_messages_that_stay_are_reported(client: Client, mq: Mq) -> None:
    client.create_queue("full")
    client.configure("full", max_messages=10)
    client.publish_many("q", [str(number) for number in range(300)])
    done = mq("move", "q", "full")
    assert (done.status, done.out) == (0, "10\n")
    assert "290 messages could not be moved from queue q, because queue full is full or does not exist" in done.error
    done = mq("move", "q", "full", "--json")
    assert done.json == [{"moved": 0, "remaining": 290}]


def test_a_daemon_that_is_away(daemon: Inside, client: Client, mq: Mq) -> None:
    daemon.broken = True
    for verb in (("send", "q", "-m", "x"), ("receive", "q"), ("queues",), ("top",), ("export", "q")):
        done = mq(*verb, "--patience", 0)
        assert done.status == 4
        assert len(done.error.splitlines()) == 1


def refuse(daemon: Inside, method: str) -> None:
    """Let somebody else have the message: requests of that method find that the lease is lost."""
    answer = daemon.handle_request

    def handle(request: httpx.Request) -> httpx.Response:
        return refused(412, "somebody else has it") if request.method == method else answer(request)

    daemon.handle_request = handle


@pytest.mark.parametrize("flags", [[], ["--exec", "true"]])
def test_a_lost_lease_is_told_and_1(daemon: Inside, client: Client, mq: Mq, flags: list[str]) -> None:
    client.publish("q", "hello")
    refuse(daemon, "DELETE")
    done = mq("receive", "q", *flags)
    assert done.status == 1
    assert "was not acknowledged and may be delivered again" in done.error


def test_a_lease_that_is_lost_meanwhile_is_told(daemon: Inside, client: Client, mq: Mq) -> None:
    client.publish("q", "hello")
    refuse(daemon, "PATCH")
    done = mq("receive", "q", "--visibility", 2, "--exec", "trap '' TERM; sleep 1.2")
    assert done.status == 0
    assert "may be processed twice: somebody else has it" in done.error


def test_a_lease_that_is_lost_when_a_command_has_failed_is_told(daemon: Inside, client: Client, mq: Mq) -> None:
    client.publish("q", "hello")
    refuse(daemon, "PATCH")
    done = mq("receive", "q", "--exec", "exit 3")
    assert done.status == 1
    assert "may be processed twice: somebody else has it" in done.error
    assert "will be delivered again" not in done.error


def test_a_command_whose_lease_is_lost_is_ended(daemon: Inside, client: Client, mq: Mq) -> None:
    client.publish("q", "hello")
    refuse(daemon, "PATCH")
    begun = time.monotonic()
    done = mq("receive", "q", "--visibility", 0.3, "--exec", "exec sleep 30")
    assert done.status == 1
    assert time.monotonic() - begun < 15


def test_a_command_that_answers_sigterm_with_0_has_not_done_its_work(
    daemon: Inside, client: Client, mq: Mq, tmp_path: Path
) -> None:
    client.publish("q", "hello")
    command = f"trap 'touch {tmp_path}/ended; exit 0' TERM; sleep 30 & wait"
    done = mq("receive", "q", "--visibility", 30, "--max-handling", 1.5, "--retry-delay", 0, "--exec", command)
    assert (tmp_path / "ended").exists()
    assert done.status == 1
    assert bodies(client) == [b"hello"]


def test_a_lost_lease_is_noticed_while_a_command_does_not_read(daemon: Inside, client: Client, mq: Mq) -> None:
    client.publish("q", b"x" * 1_000_000)
    refuse(daemon, "PATCH")
    begun = time.monotonic()
    done = mq("receive", "q", "--visibility", 0.9, "--exec", "exec sleep 30")
    assert done.status == 1
    assert time.monotonic() - begun < 15


def test_a_command_that_is_stopped_gives_back(client: Client, mq: Mq, tmp_path: Path) -> None:
    client.publish("q", "hello")

    def stop() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    begun = time.monotonic()
    done = mq("receive", "q", "--exec", f"touch {tmp_path}/begun; exec sleep 30")
    thread.join()
    assert done.status == 143
    assert time.monotonic() - begun < 15
    assert bodies(client) == [b"hello"]


def test_what_is_sent_for_a_time_is_delayed_and_one_that_is_none_is_refused(client: Client, mq: Mq) -> None:
    assert mq("send", "q", "--message", "x", "--at", "2031-05-01T09:00").status == 0
    assert [message.state for message in client.browse("q", state="delayed")] == ["delayed"]
    assert mq("send", "q", "--message", "x", "--at", "soon").status == 2
