"""What the page of web frameworks shows in Python is run, in Django and FastAPI themselves, against a daemon inside.
Its blocks for a shell are run with those of other pages (`test_readme.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mq import client as mq_client
from mq.client import AsyncClient, Client
from tests.client.inside import Inside, running
from tests.client.scripted import URL
from tests.documents import blocks

PAGE = Path(__file__).resolve().parent.parent / "docs" / "web-frameworks.md"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Every client of the page gets there."""
    with running() as inside:
        for kind in (Client, AsyncClient):
            monkeypatch.setattr(mq_client, kind.__name__, partial(kind, transport=inside), raising=False)
        yield inside


@pytest.fixture
def client(daemon: Inside) -> Iterator[Client]:
    with Client(URL, transport=daemon) as client:
        client.create_queue("orders")
        yield client


def shown(with_words: str) -> dict[str, Any]:
    """What the block with these words defines."""
    (block,) = (block for block in blocks(PAGE, "python") if with_words in block)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_django_publishes_after_the_commit_and_once(client: Client) -> None:
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    from django.db import connection, transaction

    ordered: Callable[[object], None] = shown("on_commit")["ordered"]

    @transaction.atomic
    def order(number: int, *, fails: bool = False) -> int:
        ordered(SimpleNamespace(pk=number))
        if fails:
            raise LookupError
        return client.queue("orders").ready

    try:
        assert [order(7), order(7)] == [0, 1]
        with pytest.raises(LookupError):
            order(8, fails=True)
        assert [message.body for message in client.browse("orders")] == [b"7"]
    finally:
        connection.close()


def test_fastapi_publishes_on_its_own_event_loop(client: Client) -> None:
    pytest.importorskip("fastapi")
    app = shown("lifespan")["app"]

    async def main() -> list[httpx.Response]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as browser,
        ):
            return [await browser.post("/orders", params={"item": item}) for item in (1, 2)]

    replies = asyncio.run(main())
    assert [reply.status_code for reply in replies] == [202, 202]
    assert [message.id for message in client.browse("orders")] == [reply.json()["id"] for reply in replies]


def test_the_worker_does_ten_at_a_time_and_gives_back_what_it_has_not_done(client: Client) -> None:
    client.publish_many("orders", [str(number) for number in range(10)])
    worker = shown("TaskGroup")

    async def main() -> None:
        at_work: set[str] = set()
        all_are = asyncio.Event()

        async def send(item: str) -> None:
            at_work.add(item)
            if len(at_work) == 10:
                all_are.set()
            await asyncio.Future()

        worker["send"] = send
        task = asyncio.create_task(worker["main"]())
        await all_are.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert client.queue("orders").ready == 10
