"""VSQS on Trio. Real time: threads, and the kernel's word, are what is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from mq.errors import InvalidId, NoSuchQueue
from mq.vsqs import Queue, QueueFull, view
from mq.vsqs.trio import open_queue

PATIENCE_SECONDS = 30


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture(params=["heard", "listed"])
def heard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(24, "no more instances")

    if request.param == "listed":
        monkeypatch.setattr(view, "FolderWatch", refuse)


@pytest.mark.usefixtures("heard")
async def test_publish_receive_delete(folder: Path) -> None:
    async with open_queue(folder) as queue:
        assert await queue.receive_now() is None
        ids = [await queue.publish(b"%d" % number) for number in range(3)]
        async with await queue.receive() as message:
            assert (message.id, message.body) == (ids[0], b"0")
        with pytest.raises(LookupError):
            async with await queue.receive():
                raise LookupError
        assert await queue.size() == 2
        message = await queue.receive()
        assert message.id == ids[1]
        assert await message.release()
        assert await queue.delete(ids[1])
        assert not await queue.delete(ids[1])
        assert names(folder) == [ids[2]]


@pytest.mark.usefixtures("heard")
async def test_every_receiver_that_waits_is_woken(folder: Path) -> None:
    """Many wait at once, on one queue object; messages come faster than they look."""
    got: list[str] = []
    tasks, each = 10, 5

    async def receiver() -> None:
        for _ in range(each):
            message = await queue.receive(60)
            got.append(message.id)

    with Queue(folder) as publisher, trio.fail_after(PATIENCE_SECONDS):
        async with open_queue(folder) as queue, trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(receiver)
            await trio.sleep(0.1)
            published = [await trio.to_thread.run_sync(publisher.publish, b"x") for _ in range(tasks * each)]
    assert sorted(got) == published


@pytest.mark.usefixtures("heard")
async def test_the_next_expiry_wakes_a_receiver(folder: Path) -> None:
    async with open_queue(folder) as queue:
        id = await queue.publish(b"x")
        assert (await queue.receive(0.2)).id == id
        with trio.fail_after(PATIENCE_SECONDS / 3):
            assert (await queue.receive()).id == id


@pytest.mark.usefixtures("heard")
async def test_a_cancelled_receiver_hides_nothing(folder: Path) -> None:
    async with open_queue(folder) as queue:
        for number in range(30):
            with trio.move_on_after(number * 0.0001):
                async with await queue.receive(3600):
                    await trio.sleep_forever()
            if number == 10:
                await queue.publish(b"x")
        assert [name.partition(".")[2] for name in names(folder)] == [""]


async def test_a_cancelled_block_releases(folder: Path) -> None:
    async with open_queue(folder) as queue:
        id = await queue.publish(b"x")
        with trio.CancelScope() as scope:
            async with await queue.receive():
                scope.cancel()
                await trio.sleep_forever()
        assert names(folder) == [id]


async def test_its_errors_are_the_same(folder: Path) -> None:
    with pytest.raises(NoSuchQueue):
        async with open_queue(folder / "none"):
            pass
    async with open_queue(folder / "new", create=True, capacity=1) as queue:
        await queue.publish(b"x")
        with pytest.raises(QueueFull):
            await queue.publish(b"x")
        with pytest.raises(InvalidId):
            await queue.delete("x")
