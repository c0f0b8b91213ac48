"""A message with two names, as a crash between link and unlink leaves it, is one message."""

from __future__ import annotations

import os
from pathlib import Path

from mq.vsqs import Queue
from tests.vsqs.places import Place
from tests.vsqs.places import place as make_place


def both(place: Place, *names: str) -> None:
    first = place.put(names[0], b"body")
    for name in names[1:]:
        os.link(first, place.folder / name)


def receive(queue: Queue) -> str | None:
    message = queue.receive(timeout=0)
    return None if message is None else message.id


def test_ready_and_handed_out_is_handed_out(place: Place) -> None:
    end = place.clock.ms + 5000
    both(place, "5", f"5.{end}")
    queue = place.open()
    assert queue.size() == 1
    assert receive(queue) is None
    place.clock.ns = (end + 1) * 10**6
    assert receive(queue) == "5"
    assert len(place.names()) == 1


def test_of_two_leases_the_later_counts(place: Place) -> None:
    now = place.clock.ms
    both(place, f"5.{now - 1}", f"5.{now + 5000}")
    queue = place.open()
    assert receive(queue) is None
    assert queue.size() == 1
    place.clock.ns += 5001 * 10**6
    assert receive(queue) == "5"
    assert len(place.names()) == 1


def test_both_expired_is_ready_once(place: Place) -> None:
    now = place.clock.ms
    both(place, f"5.{now - 1}", f"5.{now - 2}", "5")
    queue = place.open()
    assert receive(queue) == "5"
    assert receive(queue) is None
    assert len(place.names()) == 1


def test_two_who_make_it_ready_at_once_do_not_lose_it(folder: Path) -> None:
    """The second finds it ready, and takes its old name away before the first does."""
    with make_place(folder, "heard, links") as place:
        old = place.put(f"5.{place.clock.ms - 1}", b"body")
        queue = place.open()
        came = place.calls.just_before("unlink", old.name, old.unlink)
        assert receive(queue) == "5"
        assert came


def test_one_who_deletes_it_while_it_is_made_ready_deletes_it(folder: Path) -> None:
    with make_place(folder, "heard, links") as place:
        old = place.put(f"5.{place.clock.ms - 1}", b"body")
        queue, other = place.open(), place.open()
        place.calls.just_before("fsync", ".", lambda: other.delete("5"))
        assert receive(queue) is None
        assert not old.exists()
        assert place.names() == []


def test_it_is_deleted_under_all_its_names(place: Place) -> None:
    both(place, "5", f"5.{place.clock.ms + 5000}", "5.1")
    assert place.open().delete("5")
    assert place.names() == []


def test_a_published_one_that_kept_its_first_name_is_published_once(place: Place) -> None:
    both(place, "5", "5.new")
    queue = place.open()
    place.clock.ns += 6 * 10**9
    assert receive(queue) == "5"
    assert receive(queue) is None
    assert [name for name in place.names() if name.endswith(".new")] == []


def test_a_release_finds_the_old_name_still_there(place: Place) -> None:
    queue = place.open()
    id = queue.publish(b"body")
    message = queue.receive(timeout=0)
    assert message is not None
    os.link(place.folder / f"{id}.{message.expires_ms}", place.folder / id)
    assert message.release()
    assert place.names() == [id]
