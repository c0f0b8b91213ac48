"""The folders and files that the specifications describe, read by pathlib alone (docs/dev/specifications.md)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
import trio
from click.testing import CliRunner

from mq.broker import Broker, BrokerConfig, Draft, Published, open_broker
from mq.broker.commit import Committer
from mq.broker.waiters import BatchChannel
from mq.cli import main
from mq.cli.mover import main as mover
from mq.cli.reaper import main as reaper
from mq.message import Message
from mq.settings import Settings, load_settings
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.options import StorageOptions
from mq.web.endpoints import ROUTES, STRICT_ROUTES, Endpoints
from mq.web.exchange import Request
from simulation.calls import RecordingCalls
from tests.web.talking import stream

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
        await until(lambda: names(temp_root / "new") == [])  # where a move is a link and an unlink, it has both names


async def test_a_fetched_message_is_in_delay_until_its_timer_ends(temp_root: Path) -> None:
    async with open_at(temp_root, visibility_seconds=0.2) as broker:
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
        await until(lambda: names(temp_root / "delay") == [])  # by a link and an unlink it has both names for a moment


async def remove_from(broker: Broker, root: Path, place: str) -> str:
    """Publish a message, bring it to that folder, remove it there: its id."""
    await broker.create_queue("queue001")
    id = await broker.publish("queue001", BODY)
    if place == "queues":
        await until(lambda: names(root / "queues" / "queue001"))
    elif place == "delay":
        assert await broker.fetch("queue001") is not None
    await broker.remove("queue001", id)
    return id


@pytest.mark.parametrize("place", ["new", "queues", "delay"])
async def test_where_another_program_reaps_a_removed_message_is_in_remove(temp_root: Path, place: str) -> None:
    async with open_at(temp_root, mover=place != "new", reaper=False) as broker:
        id = await remove_from(broker, temp_root, place)
        (removed,) = names(temp_root / "remove")
        assert removed.partition(",")[0] == f"queue001:{id}"
        assert names(temp_root / "new") == names(temp_root / "queues" / "queue001") == names(temp_root / "delay") == []


@pytest.mark.parametrize("place", ["queues", "delay"])
async def test_by_default_a_removed_message_is_gone_with_the_answer(temp_root: Path, place: str) -> None:
    """The broker is the reaper, too: of a removal and its unlink in one batch only the unlink is left to do."""
    async with open_at(temp_root) as broker:
        await remove_from(broker, temp_root, place)
        assert files_of(temp_root) == set()


async def test_where_another_program_moves_a_message_that_was_removed_in_new_is_gone_soon(temp_root: Path) -> None:
    """The broker finds it by looking at the store, and its reaper unlinks it in a batch of its own."""
    async with open_at(temp_root, mover=False) as broker:
        await remove_from(broker, temp_root, "new")
        await until(lambda: files_of(temp_root) == set())


async def test_what_is_in_remove_is_unlinked(temp_root: Path) -> None:
    """Whoever left it there: a broker that does not reap has."""
    async with open_at(temp_root, reaper=False) as broker:
        await remove_from(broker, temp_root, "queues")
    assert names(temp_root / "remove")
    async with open_at(temp_root):
        await until(lambda: names(temp_root / "remove") == [])


@asynccontextmanager
async def open_recorded(root: Path, calls: RecordingCalls, **config: float | bool) -> AsyncIterator[Broker]:
    """A broker, every call of whose store is written down."""
    mount = Mount("test", atomic_rename=True, ordered=True)
    storage = FolderStorage("test:", str(root), calls, StorageOptions(), mount=lambda path: mount)
    await storage.open()
    try:
        async with open_broker(storage, BrokerConfig(**config)) as broker:
            yield broker
    finally:
        await storage.aclose()


def steps_of(calls: RecordingCalls, id: str) -> list[str]:
    """What was done to the names of a message from its arrival in new/ on, without what its name goes on with."""
    verbs = ("rename", "link", "unlink")
    arrival, *steps = [re.sub(f"({id})[^ ]*", "ID", each) for each in calls.said(*verbs) if id in each]
    assert arrival == "rename state/stage/ID new/queue001:ID"
    return steps


@pytest.mark.parametrize("place", ["new", "queues", "delay", "waiting"])
async def test_to_the_letter_each_step_is_a_move_between_folders(temp_root: Path, place: str) -> None:
    """Also where somebody waits, who would else get it from new/; and what is removed is unlinked only then."""
    calls = RecordingCalls(LinuxCalls(), str(temp_root))
    async with open_recorded(temp_root, calls, strict=True, mover=place != "new") as broker:
        await broker.create_queue("queue001")
        fetched: list[Message | None] = []

        async def wait() -> None:
            fetched.append(await broker.fetch("queue001", wait=PATIENCE_SECONDS))

        async with trio.open_nursery() as nursery:
            if place == "waiting":
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
            id = await broker.publish("queue001", BODY)
            if place == "queues":
                await until(lambda: names(temp_root / "queues" / "queue001"))
            elif place == "delay":
                await wait()
        assert [message.id for message in fetched if message] == ([id] if place in ("delay", "waiting") else [])
        await broker.remove("queue001", id)
        await until(lambda: files_of(temp_root) == set())
    moves = ["rename new/queue001:ID queues/queue001/ID", "rename queues/queue001/ID delay/queue001:ID"]
    count = {"new": 0, "queues": 1}.get(place, 2)
    last = ("new/queue001:ID", "queues/queue001/ID", "delay/queue001:ID")[count]
    assert steps_of(calls, id) == [
        *moves[:count],
        f"rename {last} remove/queue001:ID",
        "unlink remove/queue001:ID",
    ]


async def test_to_the_letter_what_expires_goes_through_remove(temp_root: Path) -> None:
    calls = RecordingCalls(LinuxCalls(), str(temp_root))
    async with open_recorded(temp_root, calls, strict=True) as broker:
        await broker.create_queue("queue001")
        [published] = await broker.publish_many("queue001", [Draft(BODY, ttl=0.001)])
        assert isinstance(published, Published)
        await until(lambda: files_of(temp_root) == set())
        assert steps_of(calls, published.id)[-2:] == [
            "rename queues/queue001/ID remove/queue001:ID",
            "unlink remove/queue001:ID",
        ]


@pytest.mark.parametrize("peers", [0, 1])
async def test_a_message_is_one_file_from_beginning_to_end(temp_root: Path, peers: int) -> None:
    """The same inode in every folder: it is moved, and never written again; alone and among others."""
    async with open_at(temp_root, visibility_seconds=0.1, peers=peers) as broker:
        await broker.create_queue("queue001")
        id = await broker.publish("queue001", BODY)
        written = files_of(temp_root)
        assert len(written) == 1
        assert await broker.fetch("queue001") is not None
        assert files_of(temp_root) == written
        await until(lambda: names(temp_root / "queues" / "queue001"))
        assert files_of(temp_root) == written
        await broker.remove("queue001", id)
        await until(lambda: files_of(temp_root) == set())


def files_of(root: Path) -> set[tuple[int, int]]:
    """(inode, time of the last write) of every message's file."""
    found = set()
    for path in (path for folder in FOLDERS for path in (root / folder).rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it was moved or unlinked since it was listed
            if path.is_file():
                found.add((path.stat().st_ino, path.stat().st_mtime_ns))
    return found


async def test_workers_come_in_pairs(temp_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every one of them works: none only stands there."""
    worked: set[str] = set()

    def note_task() -> None:
        task = trio.lowlevel.current_task()
        worked.add(f"{task.name.rpartition('.broker.')[2]} {id(task)}")

    drain, commit_next = BatchChannel.drain, Committer.commit_next

    async def drain_noted(channel: BatchChannel[object], limit: int) -> list[object]:
        taken = await drain(channel, limit)
        note_task()
        return taken

    async def commit_noted(committer: Committer) -> None:
        note_task()
        await commit_next(committer)

    monkeypatch.setattr(BatchChannel, "drain", drain_noted)
    monkeypatch.setattr(Committer, "commit_next", commit_noted)
    async with open_at(temp_root, workers=3, peers=1) as broker:  # else a fetch of what is READY needs no worker
        for number in range(12):  # a worker that has worked goes to the end of the line, so each has its turn
            await broker.create_queue(f"queue{number}")
            await broker.publish(f"queue{number}", BODY)
            assert await broker.fetch(f"queue{number}") is not None
    for worker in ("FetchWorker.run", "SaveWorker.run"):
        assert sum(worker in name for name in worked) == 3, (worker, worked)


async def test_fetches_of_one_queue_do_not_cross(temp_root: Path) -> None:
    """As many fetches at once as one likes: who asked first gets the first message."""
    asked: list[int] = []
    fetched: dict[int, str] = {}

    async def fetch_one(number: int) -> None:
        asked.append(number)
        message = await broker.fetch("queue001")
        assert message is not None
        fetched[number] = message.id

    async with open_at(temp_root) as broker:
        await broker.create_queue("queue001")
        published = [await broker.publish("queue001", b"%d" % number) for number in range(40)]
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(fetch_one, number)
    assert [fetched[number] for number in asked] == published[:30]


ENDPOINTS = {
    ("GET", (None,)),
    ("PUT", (None,)),
    ("DELETE", (None,)),
    ("GET", (None, "messages")),
    ("POST", (None, "messages")),
    ("DELETE", (None, "messages", None)),
}
"""The seed's, each as a method and the segments of a path."""

ADDED = {
    ("HEAD", (None,)),
    ("PATCH", (None,)),
    ("GET", (None, "messages", None)),
    ("HEAD", (None, "messages", None)),
    ("PATCH", (None, "messages", None)),
}
"""What mq adds where only words of the seed's stand in the path. Everything else has a word of mq's own."""


def test_six_endpoints() -> None:
    """An application of the seed's meets these, and nothing else where it goes."""
    words = {None, "messages"}
    endpoints = {(method, route.path) for route in ROUTES for method in route.methods if words.issuperset(route.path)}
    assert endpoints == ENDPOINTS | ADDED


def test_to_the_letter_there_are_six_endpoints() -> None:
    assert {(method, route.path) for route in STRICT_ROUTES for method in route.methods} == ENDPOINTS


REFUSED = {
    ("GET", "/-/live"): 404,
    ("GET", "/-/metrics"): 404,
    ("GET", "/-/openapi.json"): 404,
    ("POST", "/queue001/purge"): 404,
    ("HEAD", "/queue001"): 405,
    ("PATCH", "/queue001"): 405,
    ("POST", "/queue001/messages/batch"): 405,
    ("GET", "/queue001/messages/4ad814ab-213e-11e3-a9a3-0025904f6e08"): 405,
    ("PUT", "/queue002?store=disk"): 400,
    ("GET", "/queue001/messages?max=2"): 400,
}


async def test_to_the_letter_nothing_else_is_there(temp_root: Path) -> None:
    async with open_at(temp_root, strict=True) as broker:
        endpoints = Endpoints(broker, 100, strict=True)

        async def ask(method: str, target: str, headers: Mapping[str, str] = MappingProxyType({})) -> int:
            path, _, query = target.partition("?")
            request = Request(method, path.encode(), query.encode(), headers, stream(BODY), None)
            return (await endpoints.handle(request)).status

        assert await ask("PUT", "/queue001") == 201
        assert {asked: await ask(*asked) for asked in REFUSED} == REFUSED
        for header in ("x-message-delay", "x-message-ttl", "idempotency-key", "x-message-attribute-a"):
            assert await ask("POST", "/queue001/messages", {header: "1"}) == 400
        assert await ask("POST", "/queue001/messages", {"content-type": "text/plain"}) == 201
        assert not await broker.has_queue("queue002")


@pytest.mark.parametrize("store", ["memory:", "layered:posix:/tmp/mq", "fake:/root"])
def test_to_the_letter_is_for_folders(store: str) -> None:
    done = CliRunner().invoke(main, ["serve", "--strict", "--port", "0", "--storage", store])
    assert done.exit_code == 2
    assert done.output == f'mq: --strict requires a storage backend that uses folders (posix or tmpfs), not "{store}"\n'


def test_to_the_letter_amqp_is_served_where_a_port_is_given() -> None:
    assert not load_settings({"strict": "true"}, {}).serves_amqp
    assert load_settings({"strict": "true", "amqp_port": "5672"}, {}).serves_amqp
    for settings in (Settings(strict=True), Settings(strict=True, amqp_port=5672)):
        assert settings.served_store == "posix:/tmp/mq"  # nothing is only in memory


def test_the_seeds_defaults() -> None:
    assert (Settings().workers, Settings().peers, Settings().root) == (8, 0, "/tmp/mq")


def test_mover_needs_its_folders() -> None:
    for given in ([], ["--source", "/tmp"], ["--destination", "/tmp"]):
        done = CliRunner().invoke(mover, given)
        assert done.exit_code == 2
        assert "missing option" in done.output


def test_the_programs_say_their_defaults() -> None:
    assert "/tmp/mq/remove" in CliRunner().invoke(reaper, ["--help"]).output
    delay = next(option for option in mover.params if option.name == "delay")
    assert float(delay.default or 0) == 0
