"""Which way to sync is chosen: by how many files there are, and by what either way has cost."""

from __future__ import annotations

import pytest

from mq.storage.files.barrier import MOST_FILES, RETRY_AFTER, SyncCosts


class Stopwatch:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.costs = SyncCosts(lambda: self.now)

    def sync_files(self, files: int, seconds: float) -> None:
        with self.costs.of_files(files):
            self.now += seconds

    def sync_everything(self, seconds: float) -> None:
        with self.costs.of_everything():
            self.now += seconds


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch()


@pytest.mark.parametrize(("files", "everything"), [(0, False), (1, False), (2, True), (MOST_FILES + 1, True)])
def test_as_long_as_nothing_is_known_one_file_is_synced_by_itself_and_more_with_everything(
    watch: Stopwatch, files: int, everything: bool
) -> None:
    assert watch.costs.prefer_everything(files) is everything
    watch.sync_everything(9.0)
    assert watch.costs.prefer_everything(files) is everything
    watch.sync_files(1, 0.001)
    assert watch.costs.prefer_everything(files) is (files > MOST_FILES)


def test_the_cheaper_way_for_so_many_files_is_taken(watch: Stopwatch) -> None:
    watch.sync_files(1, 0.01)
    watch.sync_everything(0.1)
    assert [watch.costs.prefer_everything(files) for files in (1, 9, 10, 11)] == [False, False, True, True]


def test_never_are_more_files_kept_open_than_that(watch: Stopwatch) -> None:
    watch.sync_files(1, 0.001)
    watch.sync_everything(1000.0)
    assert [watch.costs.prefer_everything(files) for files in (MOST_FILES, MOST_FILES + 1)] == [False, True]


def test_what_was_too_dear_is_tried_again_but_takes_a_twentieth_of_the_time_at_most(watch: Stopwatch) -> None:
    watch.sync_files(1, 0.01)
    watch.sync_everything(1.0)
    watch.now += RETRY_AFTER * 1.0
    assert not watch.costs.prefer_everything(10)
    watch.now += 0.01
    assert watch.costs.prefer_everything(10)
    watch.sync_everything(1.0)
    assert not watch.costs.prefer_everything(10)


def test_the_latest_costs_count_most_and_one_alone_does_not_decide(watch: Stopwatch) -> None:
    for _ in range(50):
        watch.sync_files(4, 0.04)
        watch.sync_everything(0.01)
    watch.sync_everything(0.1)
    assert watch.costs.prefer_everything(4)
    for _ in range(9):
        watch.sync_everything(0.1)
    assert not watch.costs.prefer_everything(4)


def test_a_sync_that_failed_says_nothing_of_what_syncing_costs(watch: Stopwatch) -> None:
    def fail() -> None:
        with watch.costs.of_everything():
            watch.now += 100.0
            raise RuntimeError("broken")

    watch.sync_files(1, 0.01)
    with pytest.raises(RuntimeError, match="broken"):
        fail()
    watch.sync_everything(0.01)
    assert watch.costs.prefer_everything(2)
