"""export and import: a queue to a file and back, and on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from mq.client import Client
from tests.cli.conftest import Mq
from tests.client.inside import Inside

Told = tuple[bytes, str, dict[str, str]]


def told(client: Client, queue: str) -> list[Told]:
    return [(found.body, found.content_type, dict(found.attributes)) for found in client.browse(queue)]


@pytest.fixture
def filled(client: Client) -> Client:
    """A queue with a message in each state."""
    client.publish("q", "held")
    client.fetch("q")
    client.publish("q", "ready", attributes={"a": "ü"})
    client.publish("q", b"\xff\x00")
    client.publish("q", "later", delay=100)
    client.create_queue("p")
    return client


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar", "a.tar.gz"])
def test_there_and_back(filled: Client, mq: Mq, tmp_path: Path, name: str) -> None:
    exported = mq("export", "q", tmp_path / name)
    assert (exported.status, exported.out, exported.error) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert mq("import", "p", tmp_path / name).out == "4\n"
    text, binary = "text/plain; charset=utf-8", "application/octet-stream"
    assert told(filled, "p") == [
        (b"later", text, {}),
        (b"held", text, {}),
        (b"ready", text, {"a": "ü"}),
        (b"\xff\x00", binary, {}),
    ]
    found = filled.queue("q")
    assert (found.ready, found.leased, found.delayed) == (2, 1, 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_message_groups_are_kept(client: Client, mq: Mq, tmp_path: Path, name: str) -> None:
    """Else a queue with groups hands out what was imported at once, in no group's order."""
    for queue in ("q", "p"):
        client.create_queue(queue)
        client.configure(queue, groups=True)
    client.publish("q", "1", group="a")
    client.publish("q", "2", group="a")
    client.publish("q", "3")
    mq("export", "q", tmp_path / name)
    mq("import", "p", tmp_path / name)
    assert [(found.body, found.group) for found in client.browse("p")] == [(b"1", "a"), (b"2", "a"), (b"3", None)]
    assert [line.get("group") for line in mq("peek", "p", "--json").json] == ["a", "a", None]
    assert [client.fetch("p"), client.fetch("p"), client.fetch("p")][2] is None


def test_a_queue_without_groups_refuses_them_until_they_are_left_out(client: Client, mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"body": "1", "group": "a"}\n{"body": "2"}\n')
    client.create_queue("q")
    done = mq("import", "q", tmp_path / "a", "--run", "x")
    assert (done.status, done.out) == (1, "")
    assert "message 1 was refused: queue q does not support message groups" in done.error
    assert mq("import", "q", tmp_path / "a", "--run", "x", "--no-groups", "--json").json == [{"stored": 1, "there": 1}]
    assert sorted((found.body, found.group) for found in client.browse("q")) == [(b"1", None), (b"2", None)]
    (tmp_path / "a").write_text('{"body": "1", "group": 7}')
    assert (
        'line 1 is not a valid message: "content_type", "content_encoding" and "group" must be strings'
        in mq("import", "q", tmp_path / "a").error
    )


def test_through_pipes(filled: Client, mq: Mq) -> None:
    exported = mq("export", "q", "--state", "ready")
    assert [line["body"] for line in exported.json if "body" in line] == ["ready"]
    assert mq("import", "p", "--json", input=exported.raw).json == [{"stored": 2, "there": 0}]
    exported = mq("export", "q", "--format", "tar", "--state", "ready")
    assert mq("import", "p", "--format", "tar", input=exported.raw).out == "2\n"


def test_more_than_a_page(client: Client, mq: Mq, tmp_path: Path) -> None:
    bodies = [str(number).encode() for number in range(1234)]
    client.publish_many("q", bodies)
    client.create_queue("p")
    mq("export", "q", tmp_path / "a")
    assert mq("import", "p", tmp_path / "a").out == "1234\n"
    assert [found.body for found in client.browse("p")] == bodies


def test_a_message_that_moves_meanwhile_is_there_once(daemon: Inside, client: Client, mq: Mq) -> None:
    """Its lease ends between the look at what is leased and the look at what is ready."""
    client.publish("q", "held")
    held = client.fetch("q")
    assert held is not None
    answer = daemon.handle_request

    def answer_and_end_the_lease(request: httpx.Request) -> httpx.Response:
        response = answer(request)
        if "state=leased" in str(request.url):
            daemon.handle_request = answer
            client.requeue(held)
        return response

    daemon.handle_request = answer_and_end_the_lease
    assert [line["body"] for line in mq("export", "q").json] == ["held"]


def test_a_failed_export_leaves_no_file(daemon: Inside, client: Client, mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the one before")
    assert mq("export", "nowhere", tmp_path / "a").status == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "the one before")]
    assert mq("export", "q", tmp_path / "nowhere" / "a").status == 1


def test_a_run_goes_on_where_it_stopped(client: Client, mq: Mq, tmp_path: Path) -> None:
    lines = [json.dumps({"body": str(number)}) for number in range(5)]
    (tmp_path / "a").write_text("\n".join(lines))
    client.configure("q", max_messages=3)
    done = mq("import", "q", tmp_path / "a", "--patience", 0)
    assert (done.status, done.out) == (1, "")
    stopped, reason = done.error.splitlines()
    assert stopped.startswith("mq: messages stored: 3. To resume the import, run the same command with --run ")
    assert reason.startswith("mq: message 4 was refused: ")
    client.configure("q", max_messages=None)
    client.take("q")
    done = mq("import", "q", tmp_path / "a", "--run", stopped.rpartition(" ")[2], "--json")
    assert done.json == [{"stored": 2, "there": 3}]
    assert [found.body for found in client.browse("q")] == [b"1", b"2", b"3", b"4"]


def test_another_run_stores_all_again(client: Client, mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"body": "x"}')
    for run in ("1", "2", "2"):
        mq("import", "q", tmp_path / "a", "--run", run)
    mq("import", "q", tmp_path / "a")
    mq("import", "q", tmp_path / "a", "--no-keys")
    assert client.queue("q").ready == 4


def test_what_is_no_message_stops_it(client: Client, mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"body": "x"}\nnonsense\n')
    done = mq("import", "q", tmp_path / "a")
    assert done.status == 1
    assert "line 2" in done.error
