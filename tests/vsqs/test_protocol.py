"""VSQS on disk, sentence by sentence, read by os and pathlib alone (docs/dev/specifications.md)."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from mq.errors import InvalidId, InvalidSetting, NoSuchQueue, StorageUnusable
from mq.storage.files.mount import Mount
from mq.vsqs import Queue, QueueFull
from tests.cases import for_each
from tests.vsqs.places import Place
from tests.vsqs.places import place as make_place


def receive(queue: Queue, visibility: float = 10) -> str | None:
    message = queue.receive(visibility, timeout=0)
    return None if message is None else message.id


# New


def test_a_message_is_created_exclusively_under_its_time_with_new_and_then_loses_that(place: Place) -> None:
    queue = place.open()
    at = place.clock.ms
    while_written = []
    place.calls.just_before("write", "*", lambda: while_written.extend(place.names()))
    assert queue.publish(b"hello\0world") == str(at)
    assert while_written == [f"{at}.new"]
    assert place.names() == [str(at)]
    assert (place.folder / str(at)).read_bytes() == b"hello\0world"
    opened = [call for call in place.calls.log if call.verb == "open" and call.detail == "new"]
    assert [call.path for call in opened] == [f"{at}.new"]


def test_the_folder_is_listed_after_the_creation_and_before_the_writing(place: Place) -> None:
    """A message that appeared at the same time, and was received before our look, is seen."""
    queue = place.open()
    at = place.clock.ms
    place.calls.just_before("lock", "*.new", lambda: place.put(f"{at}.{at + 5000}", b"theirs"))
    id = queue.publish(b"ours")
    assert id == str(at + 1)
    assert place.names() == [f"{at}.{at + 5000}", id]


@pytest.mark.parametrize("state", ["", ".99999999999999"])
def test_a_name_that_is_taken_is_not_used_again(place: Place, state: str) -> None:
    queue = place.open()
    at = place.clock.ms
    place.put(f"{at}{state}", b"theirs")
    assert queue.publish(b"ours") == str(at + 1)
    assert (place.folder / f"{at}{state}").read_bytes() == b"theirs"
    assert len(place.names()) == 2


def test_a_file_that_is_being_published_by_somebody_else_makes_us_take_the_next_time(place: Place) -> None:
    queue = place.open()
    at = place.clock.ms
    place.calls.just_before("open", f"{at}.new", lambda: place.put(f"{at}.new"))
    assert queue.publish(b"ours") == str(at + 1)
    assert place.clock.slept == 1
    assert place.names() == [f"{at}.new", str(at + 1)]


def test_two_messages_of_one_millisecond_have_two_names(place: Place) -> None:
    queues = [place.open(), place.open()]
    first = place.clock.ms
    ids = [queues[number % 2].publish(b"%d" % number) for number in range(6)]
    assert ids == [str(first + number) for number in range(6)]
    assert [receive(queues[0]) for _ in ids] == ids


def test_a_file_of_that_name_made_by_hand_is_not_replaced(place: Place) -> None:
    queue = place.open()
    at = place.clock.ms
    place.calls.just_before("rename" if place.renames else "link", "*", lambda: place.put(str(at), b"by hand"))
    assert int(queue.publish(b"ours")) > at
    assert (place.folder / str(at)).read_bytes() == b"by hand"
    assert len(place.names()) == 2


# Ready


def test_numbers_are_ordered_as_numbers(place: Place) -> None:
    for number in ("100", "99", "1000", "8"):
        place.put(number)
    queue = place.open()
    assert [receive(queue) for _ in range(5)] == ["8", "99", "100", "1000", None]


def test_files_with_extensions_are_not_consumed(place: Place) -> None:
    later = place.clock.ms + 60_000
    for name in ("1.new", f"2.{later}", "3.txt", "4.5.6", "5.new.new"):
        place.put(name)
    assert receive(place.open()) is None


def test_what_is_no_name_of_a_message_is_left_alone(place: Place) -> None:
    foreign = ["007", "-1", "+1", " 1", "1e3", "1.", ".1", "1.007", "notes.txt", "1234567890123456", "٣", "1\n"]
    for name in foreign:
        place.put(name)
    (place.folder / "10").mkdir()
    (place.folder / "11").symlink_to("notes.txt")
    os.mkfifo(place.folder / "12")
    before = place.names()
    queue = place.open()
    assert queue.size() == 0
    assert receive(queue) is None
    id = queue.publish(b"x")
    (place.folder / "13").symlink_to("notes.txt")
    os.mkfifo(place.folder / "14")
    (place.folder / "15").mkdir()
    assert receive(queue) == id
    assert receive(queue) is None
    assert queue.delete(id)
    assert place.names() == sorted([*before, "13", "14", "15"])


def test_a_received_message_carries_its_expiry(place: Place) -> None:
    queue = place.open()
    id = queue.publish(b"body")
    message = queue.receive(visibility_timeout=2.5, timeout=0)
    assert message is not None
    assert (message.id, message.body, message.expires_ms) == (id, b"body", place.clock.ms + 2501)
    assert place.names() == [f"{id}.{message.expires_ms}"]


@pytest.mark.parametrize("visibility", [0.0001, 1 / 3, 1e9])
def test_every_visibility_timeout_makes_a_name_that_is_understood(place: Place, visibility: float) -> None:
    queue = place.open()
    id = queue.publish(b"body")
    assert receive(queue, visibility) == id
    assert re.fullmatch(r"\d+\.\d+", place.names()[0])
    place.clock.ns += round(visibility * 1e9) + 2_000_000
    assert receive(place.open()) == id


@pytest.mark.parametrize("visibility", [0, -1, float("nan"), float("inf"), 1.1e9])
def test_other_visibility_timeouts_are_refused(queue: Queue, visibility: float) -> None:
    with pytest.raises(InvalidSetting, match="visibility_timeout"):
        queue.receive(visibility)


def test_nobody_else_gets_it(place: Place) -> None:
    one, other = place.open(), place.open()
    first, second = one.publish(b"1"), one.publish(b"2")
    assert receive(one) == first
    assert receive(other) == second
    assert receive(one) is None


def test_who_loses_a_race_takes_the_next(place: Place) -> None:
    one, other = place.open(), place.open()
    first, second = one.publish(b"1"), one.publish(b"2")
    one.size()
    taken = []
    verb = "rename" if place.renames else "link"
    place.calls.just_before(verb, first, lambda: taken.append(receive(other)))
    assert receive(one) == second
    assert taken == [first]
    assert len(place.names()) == 2


def test_who_loses_a_race_of_links_takes_its_own_back(folder: Path) -> None:
    """Both have linked; whoever takes the old name away has won."""
    with make_place(folder, "heard, links") as place:
        queue = place.open()
        first, second = queue.publish(b"1"), queue.publish(b"2")
        theirs = f"{first}.{place.clock.ms + 60_000}"
        place.calls.just_before("fsync", ".", lambda: (folder / first).rename(folder / theirs))
        message = queue.receive(timeout=0)
        assert message is not None
        assert place.names() == [theirs, f"{second}.{message.expires_ms}"]


# Deleted


def test_any_process_deletes_by_id_whatever_the_state(place: Place) -> None:
    one, other = place.open(), place.open()
    ready, hidden, expired = (one.publish(b"x") for _ in range(3))
    place.put(f"{place.clock.ms + 1000}.new")
    assert [receive(one) for _ in range(3)] == [ready, hidden, expired]
    os.rename(place.folder / next(name for name in place.names() if name.startswith(ready)), place.folder / ready)
    os.rename(
        place.folder / next(name for name in place.names() if name.startswith(expired)), place.folder / f"{expired}.5"
    )
    for id in (ready, hidden, expired):
        assert other.delete(id)
        assert not one.delete(id)
    assert [name for name in place.names() if not name.endswith(".new")] == []


def test_a_message_that_moves_while_it_is_deleted_is_deleted(place: Place) -> None:
    one, other = place.open(), place.open()
    id = one.publish(b"x")
    came = place.calls.just_before("unlink", id, lambda: receive(other))
    assert one.delete(id)
    assert came
    assert place.names() == []


def test_a_receiver_whose_time_ran_out_still_deletes(place: Place) -> None:
    one, other = place.open(), place.open()
    id = one.publish(b"x")
    message = one.receive(1, timeout=0)
    place.clock.ns += 2_000_000_000
    assert receive(other) == id
    assert message is not None
    assert message.delete()
    assert place.names() == []


@for_each("id", ["", "x", "../1", "1.new", "1.2", "01", "-1", " 1", "1\n", "1" * 16])
def test_an_id_that_names_no_message_is_refused(place: Place, id: str) -> None:
    place.put("1")
    with pytest.raises(InvalidId, match="is not a message ID"):
        place.open().delete(id)
    assert place.names() == ["1"]


# Requeuing


def test_an_expired_message_comes_back_to_its_old_place(place: Place) -> None:
    queue = place.open()
    first, second = queue.publish(b"1"), queue.publish(b"2")
    assert receive(queue, 1) == first
    place.clock.ns += 1_500_000_000
    assert receive(queue) == first
    assert receive(queue) == second


def test_it_is_not_requeued_in_the_millisecond_of_its_expiry(place: Place) -> None:
    queue = place.open()
    before, id = queue.publish(b"1"), queue.publish(b"2")
    assert receive(queue, 0.5) == before
    message = queue.receive(1, timeout=0)
    assert message is not None
    place.clock.ns = message.expires_ms * 1_000_000
    assert receive(queue) == before
    assert receive(queue) is None
    place.clock.ns += 1_000_000
    assert receive(queue) == id


def test_nothing_is_consumed_while_anything_is_expired(place: Place) -> None:
    """The old program went on with its scan, and delivered the next message first."""
    now = place.clock.ms
    place.put("5")
    place.put(f"4.{now - 1}")
    place.put(f"3.{now - 1}")
    queue = place.open()
    verb = "rename" if place.renames else "link"
    came = place.calls.just_before(verb, f"4.{now - 1}", lambda: place.put(f"2.{now - 1}"))
    assert [receive(queue) for _ in range(5)] == ["2", "3", "4", "5", None]
    assert came


def test_somebody_else_requeues_it_first(place: Place) -> None:
    now = place.clock.ms
    place.put(f"4.{now - 1}")
    place.put(f"3.{now - 1}")
    one, other = place.open(), place.open()
    taken = []
    verb = "rename" if place.renames else "link"
    place.calls.just_before(verb, f"3.{now - 1}", lambda: taken.append(receive(other)))
    assert receive(one) == "4"
    assert taken == ["3"]


# Beyond the text


def test_a_clock_that_was_set_back_breaks_no_order(place: Place) -> None:
    one, other = place.open(), place.open()
    first = one.publish(b"1")
    place.clock.ns -= 3600 * 10**9
    ids = [first, other.publish(b"2"), one.publish(b"3"), place.open().publish(b"4")]
    assert ids == [str(int(first) + number) for number in range(4)]
    assert [receive(one) for _ in ids] == ids


def test_an_id_is_not_given_twice_when_the_clock_was_set_back(place: Place) -> None:
    one, other = place.open(), place.open()
    other.size()
    first = one.publish(b"1")
    assert one.delete(first)
    place.clock.ns -= 3600 * 10**9
    assert int(one.publish(b"2")) > int(first)
    place.clock.ns += 10**6


def test_an_id_is_not_given_twice_though_its_message_came_and_went_meanwhile(folder: Path) -> None:
    """Its receiver may delete it once more, and would delete ours. Where nobody tells us, only the clock helps."""
    with make_place(folder, "heard, renames") as place:
        one, other = place.open(), place.open()
        at = place.clock.ms

        def come_and_go() -> None:
            assert other.publish(b"theirs") == str(at)
            assert receive(other) == str(at)
            assert other.delete(str(at))

        place.calls.just_before("open", f"{at}.new", come_and_go)
        assert one.publish(b"ours") == str(at + 1)


def test_a_program_that_begins_does_not_reuse_the_ids_of_this_millisecond(folder: Path) -> None:
    with make_place(folder, "heard, renames") as place:
        first = place.open()
        id = first.publish(b"1")
        assert first.delete(id)
        with Queue(folder, system=place.system) as second:
            assert second.publish(b"2") == str(int(id) + 1)


def test_a_delete_takes_away_no_other_message_that_got_the_id_meanwhile(folder: Path) -> None:
    with make_place(folder, "listed, renames") as place:
        queue = place.open()
        id = queue.publish(b"1")
        assert receive(queue) == id

        def reuse() -> None:
            place.calls.just_before("names", ".", lambda: place.put(id, b"another"))

        place.calls.just_before("unlink", f"{id}.*", reuse)
        assert queue.delete(id)
        assert (folder / id).read_bytes() == b"another"


def test_the_last_number_leaves_none_after_it(place: Place) -> None:
    place.put("9" * 15)
    with pytest.raises(StorageUnusable, match="has the highest possible message number"):
        place.open().publish(b"x")
    assert place.names() == ["9" * 15]


def test_capacity_counts_what_is_being_processed(place: Place) -> None:
    queue = place.open(capacity=2)
    first = queue.publish(b"1")
    queue.publish(b"2")
    assert receive(queue) == first
    with pytest.raises(QueueFull, match=r"the queue is full \(2 messages\)"):
        queue.publish(b"3")
    assert len(place.names()) == 2
    assert queue.delete(first)
    queue.publish(b"3")


def test_capacity_is_a_number(place: Place) -> None:
    with pytest.raises(InvalidSetting, match="capacity must be at least 1"):
        place.open(capacity=0)


def test_size_counts_ready_and_processed(place: Place) -> None:
    queue = place.open()
    for number in range(3):
        queue.publish(b"%d" % number)
    receive(queue)
    place.put("1.new")
    assert queue.size() == 3
    assert place.open().size() == 3


def test_a_block_that_ends_well_deletes_and_one_that_does_not_releases(place: Place) -> None:
    queue = place.open()
    first, second = queue.publish(b"1"), queue.publish(b"2")
    message = queue.receive(timeout=0)
    with pytest.raises(LookupError), message:
        raise LookupError
    assert place.names() == [first, second]
    with queue.receive(timeout=0) as message:
        assert message.id == first
    assert place.names() == [second]


def test_a_block_that_settled_its_message_is_left_so(place: Place) -> None:
    queue = place.open()
    id = queue.publish(b"1")
    with queue.receive(timeout=0) as message:
        assert message.release()
    assert place.names() == [id]
    message = queue.receive(timeout=0)
    with pytest.raises(LookupError), message:
        raise LookupError(message.delete())
    assert place.names() == []


def test_a_release_changes_nothing_once_the_time_ran_out(place: Place) -> None:
    one, other = place.open(), place.open()
    one.publish(b"1")
    message = one.receive(1, timeout=0)
    place.clock.ns += 2 * 10**9
    receive(other)
    before = place.names()
    assert not message.release()
    assert place.names() == before


def test_a_folder_that_is_not_there(place: Place) -> None:
    for path in (place.folder / "none", place.put("file")):
        with pytest.raises(NoSuchQueue, match="create it with mkdir"):
            Queue(path)
    with Queue(place.folder / "made", create=True) as queue:
        assert queue.size() == 0
    Queue(place.folder / "made", create=True).close()


def test_a_folder_that_goes_away(place: Place) -> None:
    """Also when another is put in its place: the queue is the folder, not the path."""
    queue = place.open()
    queue.size()
    moved = place.folder.rename(place.folder.with_suffix(".moved"))
    try:
        for act in (queue.size, lambda: queue.publish(b"x"), lambda: receive(queue), lambda: queue.delete("1")):
            with pytest.raises(NoSuchQueue):
                act()
        place.folder.mkdir()
        for act in (lambda: queue.publish(b"x"), lambda: receive(queue), lambda: queue.delete("1")):
            with pytest.raises(NoSuchQueue):
                act()
        assert place.names() == []
    finally:
        shutil.rmtree(moved)


def test_a_file_system_that_ignores_syncs_is_refused(place: Place) -> None:
    system = place.system._replace(mount=lambda path: Mount("overlay", flaw="ignores every sync"))
    with pytest.raises(StorageUnusable, match="ignores every sync"):
        Queue(place.folder, system=system)
