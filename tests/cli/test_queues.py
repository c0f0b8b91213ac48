"""queues, queue, top, bench: against real endpoints."""

from __future__ import annotations

import click
import httpx
import pytest

from mq.broker.api import PLACES
from mq.cli import top
from mq.cli.bench import Timed
from mq.cli.queues import create_command
from mq.cli.terminal import aligned
from mq.client import Client, NotFound
from tests.cli.conftest import Mq
from tests.client.inside import Inside


def test_listing(client: Client, mq: Mq) -> None:
    client.create_queue("a")
    client.configure("a", paused=True)
    client.publish("q", "1")
    client.publish("q", "2")
    client.fetch("q")
    rows = {row[0]: row for row in (line.split("\t") for line in mq("queues").lines)}
    assert rows["a"][1:4] == ["0", "0", "0"]
    assert rows["a"][5:8] == ["0", "disk", "paused"]
    assert rows["q"][1:5] == ["1", "1", "0", "0s"]
    found = {line["name"]: line for line in mq("queues", "--json").json}
    assert (found["q"]["ready"], found["q"]["leased"], found["q"]["consumers"]) == (1, 1, 0)


def test_making_setting_showing_and_deleting(client: Client, mq: Mq) -> None:
    assert mq("queue", "create", "dead").status == 0
    assert mq("queue", "create", "new", "max-receives=5", "dead_letter_queue=dead").status == 0
    assert mq("queue", "set", "new", "visibility=1.5", "paused=true", "overflow=drop-head").status == 0
    (shown,) = mq("queue", "show", "new", "--json").json
    assert shown["name"] == "new"
    assert shown["max_receives"] == 5
    assert shown["dead_letter_queue"] == "dead"
    assert (shown["visibility"], shown["paused"], shown["overflow"]) == (1.5, True, "drop-head")
    mq("queue", "set", "new", "visibility=default")
    assert mq("queue", "show", "new", "--json").json[0]["visibility"] is None
    assert "paused\ttrue" in mq("queue", "show", "new").lines
    assert mq("queue", "delete", "new", "--yes").status == 0
    with pytest.raises(NotFound):
        client.queue("new")


def test_a_wrong_setting_changes_nothing(client: Client, mq: Mq) -> None:
    done = mq("queue", "set", "q", "paused=true", "nonsense=1")
    assert done.status == 1
    assert "nonsense" in done.error
    assert client.queue("q").settings["paused"] is False


def test_pausing_and_resuming(client: Client, mq: Mq) -> None:
    def pauses() -> tuple[object, object]:
        settings = client.queue("q").settings
        return settings["paused"], settings["publish_paused"]

    for flags, both, shown in (
        ((), (True, False), "paused"),
        (("--publishing",), (False, True), "publishing paused"),
        (("--publishing", "--delivery"), (True, True), "all paused"),
    ):
        assert mq("pause", "q", *flags).status == 0
        assert pauses() == both
        assert [line.split("\t")[-1] for verb in ("queues", "top") for line in mq(verb).lines] == [shown] * 2
        assert mq("resume", "q").status == 0
        assert pauses() == (False, False)
    mq("pause", "q", "--publishing", "--delivery")
    mq("resume", "q", "--publishing")
    assert pauses() == (True, False)
    mq("pause", "q", "--publishing")
    done = mq("send", "q", "--patience", 0, input="x")
    assert (done.status, "mq resume q" in done.error) == (4, True)


def test_top_without_eyes_shows_it_once(client: Client, mq: Mq) -> None:
    client.create_queue("full")
    client.publish("full", "1")
    assert [line.split("\t")[0] for line in mq("top").lines] == ["full", "q"]
    full, empty = mq("top", "--json").json
    assert (full["name"], full["ready"], empty["name"]) == ("full", 1, "q")
    assert full["published_per_second"] > 0
    assert full["removed_per_second"] == empty["published_per_second"] == 0


def test_top_goes_on_until_it_is_stopped(
    daemon: Inside, client: Client, mq: Mq, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        daemon.broken = True
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    monkeypatch.setattr(top.time, "sleep", sleep)
    done = mq("top", "--every", 3, "--patience", 0)
    assert (done.status, pauses) == (0, [3.0, 3.0])
    assert done.lines[2].startswith("QUEUE")
    assert done.lines[-1].startswith("mq: cannot connect to")


def test_bench_without_a_daemon_is_4(daemon: Inside, mq: Mq) -> None:
    daemon.broken = True
    done = mq("bench", "--patience", 0)
    assert (done.status, done.out, len(done.error.splitlines())) == (4, "", 1)


def test_bench_on_a_daemon_that_goes_away_is_4(daemon: Inside, client: Client, mq: Mq) -> None:
    answer = daemon.handle_async_request

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            raise httpx.ConnectError("refused")
        return await answer(request)

    daemon.handle_async_request = handle
    done = mq("bench", "--patience", 0)
    assert (done.status, done.out, len(done.error.splitlines())) == (4, "", 1)
    assert [queue.name for queue in client.queues()] == ["q"]


def test_bench_prints_what_it_has_when_a_step_fails(daemon: Inside, client: Client, mq: Mq) -> None:
    answer = daemon.handle_async_request
    fetched = 0

    async def handle(request: httpx.Request) -> httpx.Response:
        nonlocal fetched
        fetched += request.method == "GET"
        if fetched > 1 or (request.url.path.count("/") == 1 and request.method == "DELETE"):
            raise httpx.ReadTimeout("too slow")
        return await answer(request)

    daemon.handle_async_request = handle
    done = mq("bench", "--patience", 0, "--duration", 0.1, "--clients", 1, "--json")
    assert [(line["verb"], line["count"] > 0) for line in done.json] == [
        ("publish", True),
        ("fetch", True),
        ("remove", True),
    ]
    assert done.json[1]["count"] == 1
    (left,) = [queue.name for queue in client.queues() if queue.name != "q"]
    kept, failed = done.error.splitlines()
    assert kept == f"mq: queue {left} was not deleted. To delete it, run mq queue delete {left} --yes"
    assert "too slow" in failed
    assert done.status == 4


def test_bench_in_a_pipe(client: Client, mq: Mq) -> None:
    rows = [line.split("\t") for line in mq("bench", "--duration", 0.1, "--clients", 1).lines]
    assert [(row[0], len(row)) for row in rows] == [("publish", 7), ("fetch", 7), ("remove", 7)]


def test_top_fits_its_terminal(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        client.create_queue(f"queue{number}")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "10")
    screen = top._screen(client)
    assert len(screen) == 9
    assert max(map(len, screen)) == 20


def test_columns_stand_under_one_another() -> None:
    assert aligned(("A", "B"), [("long", "1"), ("x", "")]) == ["A     B", "long  1", "x"]


@pytest.mark.slow
def test_bench_measures_and_leaves_nothing(client: Client, mq: Mq) -> None:
    done = mq("bench", "--duration", 0.2, "--clients", 2, "--size", "1KiB", "--json")
    assert [line["verb"] for line in done.json] == ["publish", "fetch", "remove"]
    published, fetched, removed = [line["count"] for line in done.json]
    assert published > 0
    assert 0 < removed <= fetched <= published
    assert all(0 < line["p50_ms"] <= line["p90_ms"] <= line["p99_ms"] <= line["max_ms"] for line in done.json)
    assert [queue.name for queue in client.queues()] == ["q"]


def test_percentiles() -> None:
    timed = Timed("x", 1.0, [number / 1000 for number in range(100, 0, -1)])
    assert [round(timed.percentile(share)) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert Timed("x", 1.0, []).percentile(0.5) == 0.0


def test_the_stores_are_those_of_the_broker() -> None:
    [option] = [each for each in create_command.params if each.name == "store"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == PLACES


def test_a_queue_is_made_where_one_says(client: Client, mq: Mq) -> None:
    assert mq("queue", "create", "here", "--store=memory").status == 0
    assert client.queue("here").name == "here"
    refused = mq("queue", "create", "there", "--store=cluster")
    assert refused.status != 0
    assert "this daemon is not part of a cluster" in refused.error
