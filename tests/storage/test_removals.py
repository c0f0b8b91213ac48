"""A removal in one step: an unlink of the message where it is, where names keep their order."""

from __future__ import annotations

import errno

import pytest

from mq.broker.consuming import removing
from mq.lifecycle import State
from mq.storage.interface import Move, Result, Sharing, Unlink
from tests.storage.disks import MOUNTS, open_disk
from tests.storage.test_batch import shown, syncing


@pytest.mark.parametrize(("state", "place"), [(State.NEW, "new/q:ID"), (State.READY, "queues/q/ID")])
async def test_it_is_one_call(state: State, place: str) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(state)
        shown(disk)
        assert await disk.one(Unlink(entry)) is Result.DONE
        assert shown(disk) == [f"unlink {place}"]
        assert not disk.files("new", "queues", "remove")


async def test_one_that_must_be_durable_is_synced_where_it_was() -> None:
    """Nothing is changed in remove/, so to sync that would bring nothing."""
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY)
        shown(disk)
        await disk.commit(Unlink(entry, durable=True))
        assert shown(disk) == ["unlink queues/q/ID", *syncing("queues/q")]


async def test_many_that_must_be_durable_share_a_sync() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entries = [await disk.bring(state) for state in (State.READY, State.NEW, State.DELAYED)]
        shown(disk)
        await disk.commit(*[Unlink(entry, durable=True) for entry in entries])
        assert shown(disk)[3:] == syncing("delay")


async def test_where_a_name_could_come_back_it_is_moved_first() -> None:
    async with open_disk(MOUNTS["unordered"]) as disk:
        entry = await disk.bring(State.READY)
        shown(disk)
        assert not disk.storage.description.removes
        await disk.commit(*removing([entry], in_one_step=False, durable=False))
        assert "rename queues/q/ID remove/q:ID" in shown(disk)


async def test_among_peers_it_is_one_step_too_and_one_of_them_wins() -> None:
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        peer = disk.another(sharing=Sharing.PEERS)
        await peer.open()
        shown(disk)
        await disk.commit(Unlink(entry))
        assert "unlink queues/q/ID" in shown(disk)
        late = await peer.commit([Move(entry, State.DELAYED, entry.meta._replace(receipt="0" * 16)), Unlink(entry)])
        assert [outcome.result.name for outcome in late] == ["GONE"] * 2
        await peer.aclose()


async def test_each_has_its_own_outcome_among_others() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        one, lost, other = [await disk.bring(State.READY) for _ in range(3)]
        removed = await disk.bring(State.REMOVED)
        lost = lost._replace(queue="elsewhere")
        lease = Move(other, State.DELAYED, other.meta._replace(receipt="0" * 16))
        outcomes = await disk.commit(Unlink(removed), Unlink(one), Unlink(lost), lease, Unlink(removed))
        results = [outcome.result.name for outcome in outcomes]
        assert results == ["DONE", "DONE", "GONE", "DONE", "GONE"]
        assert outcomes[3].entry is not None
        assert outcomes[3].entry.state is State.DELAYED


async def test_one_that_is_refused_is_where_it_was() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("unlink", errno.EDQUOT)
        assert await disk.one(Unlink(entry)) is Result.FULL
        disk.heal()
        assert await disk.storage.scan(State.READY, "q") == [entry]
