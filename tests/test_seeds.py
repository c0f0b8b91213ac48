"""What the seeds say of folders and files, looked at with nothing of mq's: only pathlib. docs/seeds.md names these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from mq.broker import Broker, BrokerConfig, open_broker
from mq.cli.mover import main as mover
from mq.cli.reaper import main as reaper
from mq.settings import Settings
from mq.web.endpoints import ROUTES

BODY = b"hello,\0world\n\xff"
FOLDERS = ("new", "queues", "delay", "remove")
PATIENCE_SECONDS = 20


async def until(true: Callable[[], object]) -> None:
    """Real time: the disk's work is done in threads."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not true():
            await trio.sleep(0.01)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def open_at(root: Path, **config: float | bool) -> AbstractAsyncContextManager[Broker]:
    return open_broker(f"posix:{root}", BrokerConfig(**config))


def tasks(nursery: trio.Nursery) -> Iterator[str]:
    for task in nursery.child_tasks:
        yield task.name
        for child in task.child_nurseries:
            yield from tasks(child)


async def test_first_start_makes_the_folders(temp_root: Path) -> None:
    async with open_at(temp_root):
        assert set(FOLDERS) <= set(names(temp_root))


async def test_each_queue_is_a_folder(temp_root: Path) -> None:
    async with open_at(temp_root) as broker:
        for queue in ("queue001", "queue002"):
            await broker.create_queue(queue)
        assert names(temp_root / "queues") == ["queue001", "queue002"]
        await broker.delete_queue("queue001")
        assert names(temp_root / "queues") == ["queue002"]


async def test_a_folder_made_by_hand_is_a_queue(temp_root: Path) -> None:
    (temp_root / "queues" / "queue001").mkdir(parents=True)
    async with open_at(temp_root) as broker:
        assert await broker.has_queue("queue001")


async def test_a_new_message_is_a_file_in_new_with_the_posted_bytes(temp_root: Path) -> None:
    async with open_at(temp_root, mover=False) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        assert names(temp_root / "new") == [f"queue001:{id}"]
        assert (temp_root / "new" / f"queue001:{id}").read_bytes() == BODY


async def test_a_delivered_message_is_a_file_named_by_its_id(temp_root: Path) -> None:
    async with open_at(temp_root) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        await until(lambda: names(temp_root / "queues" / "queue001") == [id])
        assert (temp_root / "queues" / "queue001" / id).read_bytes() == BODY
        assert names(temp_root / "new") == []


async def test_a_fetched_message_is_in_delay_until_its_timer_ends(temp_root: Path) -> None:
    async with open_at(temp_root, delay_seconds=0.2) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        message = await broker.fetch("queue001")
        assert message is not None
        (leased,) = names(temp_root / "delay")
        assert leased.partition(",")[0] == f"queue001:{id}"
        assert names(temp_root / "queues" / "queue001") == []
        await until(lambda: names(temp_root / "queues" / "queue001"))
        (again,) = names(temp_root / "queues" / "queue001")
        assert again.partition(",")[0] == id
        assert names(temp_root / "delay") == []


@pytest.mark.parametrize("place", ["new", "queues", "delay"])
async def test_a_removed_message_is_in_remove(temp_root: Path, place: str) -> None:
    async with open_at(temp_root, mover=place != "new", reaper=False) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        if place == "queues":
            await until(lambda: names(temp_root / "queues" / "queue001"))
        elif place == "delay":
            assert await broker.fetch("queue001") is not None
        await broker.remove("queue001", id)
        (removed,) = names(temp_root / "remove")
        assert removed.partition(",")[0] == f"queue001:{id}"
        assert names(temp_root / "new") == names(temp_root / "queues" / "queue001") == names(temp_root / "delay") == []


async def test_what_is_in_remove_is_unlinked(temp_root: Path) -> None:
    async with open_at(temp_root) as broker:
        await broker.create_queue("queue001")
        await broker.remove("queue001", await broker.publish("queue001", BODY))
        await until(lambda: names(temp_root / "remove") == [])


async def test_a_message_is_one_file_from_beginning_to_end(temp_root: Path) -> None:
    """The same inode in every folder: it is moved, and never written again."""

    def inodes() -> set[tuple[int, int]]:
        files = [path for folder in FOLDERS for path in (temp_root / folder).rglob("*") if path.is_file()]
        return {(path.stat().st_ino, path.stat().st_mtime_ns) for path in files}

    async with open_at(temp_root, reaper=False, delay_seconds=0.1) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        written = inodes()
        assert len(written) == 1
        assert await broker.fetch("queue001") is not None
        assert inodes() == written
        await until(lambda: names(temp_root / "queues" / "queue001"))
        assert inodes() == written
        await broker.remove("queue001", id)
        assert inodes() == written


async def test_workers_come_in_pairs(temp_root: Path) -> None:
    async with open_at(temp_root, workers=3):
        root = trio.lowlevel.current_root_task()
        assert root is not None
        running = [name for nursery in root.child_nurseries for name in tasks(nursery)]
        for worker in ("FetchWorker.run", "SaveWorker.run"):
            assert sum(worker in name for name in running) == 3


async def test_fetches_of_one_queue_do_not_cross(temp_root: Path) -> None:
    """As many fetches at once as one likes: together they get the first messages, each one of them."""
    fetched: list[str] = []

    async def fetch_one() -> None:
        message = await broker.fetch("queue001")
        assert message is not None
        fetched.append(message.id)

    async with open_at(temp_root) as broker:
        await broker.create_queue("queue001")
        published = [await broker.publish("queue001", b"%d" % number) for number in range(40)]
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(fetch_one)
    assert sorted(fetched) == sorted(published[:30])


def test_six_endpoints() -> None:
    """The seed's are there; whatever else is there, an application of the seed's never meets."""
    endpoints = {(method, route.path) for route in ROUTES for method in route.methods}
    assert endpoints >= {
        ("GET", (None,)),
        ("PUT", (None,)),
        ("DELETE", (None,)),
        ("GET", (None, "messages")),
        ("POST", (None, "messages")),
        ("DELETE", (None, "messages", None)),
    }


def test_the_seeds_defaults() -> None:
    assert (Settings().workers, Settings().peers, Settings().root) == (8, 0, "/tmp/mq")


def test_mover_needs_its_folders() -> None:
    for given in ([], ["--source", "/tmp"], ["--destination", "/tmp"]):
        done = CliRunner().invoke(mover, given)
        assert done.exit_code == 2
        assert "Missing option" in done.output


def test_the_programs_say_their_defaults() -> None:
    assert "/tmp/mq/remove" in CliRunner().invoke(reaper, ["--help"]).output
    delay = next(option for option in mover.params if option.name == "delay")
    assert float(delay.default or 0) == 0
