"""schedule: made, listed, shown and deleted from the command line."""

from __future__ import annotations

from pathlib import Path

from mq.client import Client
from tests.cli.conftest import Mq


def test_making_listing_showing_deleting(client: Client, mq: Mq, tmp_path: Path) -> None:
    when = ("--cron", "0 0 29 2 *", "--zone", "Europe/Berlin")
    assert mq("schedule", "put", "leap", "q", *when, "-m", "hello", "--attribute", "A=b", "--priority", 3).out == ""
    [row] = mq("schedule", "list").lines
    assert row.split("\t")[:3] == ["leap", "q", "0 0 29 2 * Europe/Berlin"]
    [shown] = mq("schedule", "show", "leap", "--json").json
    assert shown["message"] == {"body": "hello", "attributes": {"a": "b"}, "priority": 3}
    assert shown["next"].endswith("-02-28T23:00:00Z")
    (tmp_path / "body").write_bytes(b"\xff")
    assert mq("schedule", "put", "often", "q", tmp_path / "body", "--every", 90, "--unless-waiting").status == 0
    assert [each["name"] for each in mq("schedule", "list", "--json").json] == ["leap", "often"]
    assert "unless_waiting\ttrue" in mq("schedule", "show", "often").lines
    assert mq("schedule", "delete", "leap", "--yes").status == 0
    assert client.schedules()["schedules"][0]["name"] == "often"
    assert mq("schedule", "delete", "leap", "--yes").status == 1


def test_the_list_is_read_to_its_end(client: Client, mq: Mq, monkeypatch) -> None:
    pages = {None: {"schedules": [{"name": "a"}], "next": "a"}, "a": {"schedules": [{"name": "b"}], "next": None}}
    monkeypatch.setattr(Client, "schedules", lambda self, after=None: pages[after])
    assert mq("schedule", "list", "--json").json == [{"name": "a"}, {"name": "b"}]


def test_what_makes_no_sense_is_said(client: Client, mq: Mq, tmp_path: Path) -> None:
    put = ("schedule", "put", "s", "q")
    for wrong in (
        ("-m", "x"),
        ("-m", "x", "--every", 5, "--cron", "* * * * *"),
        ("-m", "x", "--every", 5, "--zone", "UTC"),
        ("-m", "x", "--every", 0),
    ):
        assert mq(*put, *wrong).status == 2
    for wrong, why in (
        (("--cron", "0 25 * * *"), "bad hour"),
        (("--cron", "* * * * *", "--zone", "Mars"), "unknown time zone"),
    ):
        done = mq(*put, "-m", "x", *wrong)
        assert (done.status, why in done.error, len(done.error.splitlines())) == (1, True, 1)
    assert mq("schedule", "put", "s", "none", "-m", "x", "--every", 5).status == 1
