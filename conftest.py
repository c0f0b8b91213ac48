"""How tests are shared out among processes (``pytest -n 2 --dist=loadfile``), and which took longest.

A file's tests run in one process, one after another, so that they share its fixtures. Two tables say otherwise.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

WITH_SPARK: Final = ("cluster", "come_and_go", "real_data", "session", "staged", "tables", "versions")
TOGETHER: Final = {"tests/pipelines/": "spark", **{f"tests/spark/test_{name}.py": "spark" for name in WITH_SPARK}}
"""Folder or file -> group: its tests run in one process with all others of the group. Two Spark sessions at a time are
too many. The other tests in tests/spark start none."""
APART: Final = (
    "tests/crash/test_powercut.py",
    "tests/e2e/test_exec.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/test_wrong_clock.py",
    "tests/fair/test_jobs.py",
    "tests/faults/test_call_sites.py",
    "tests/faults/test_full_disk.py",
    "tests/oracle/test_oracle.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/simulation/test_seeds.py",
)
"""Files with many long tests that share no fixture: each test goes where there is time."""

SERVERS: Final = ("plugins/mq-etcd/", "plugins/mq-postgres/")
"""Folders whose tests start servers that take seconds, in each process that runs one."""

SLOWEST: Final = 10
PROCESSOR_SECONDS: Final = "processor seconds"
BEGAN: Final = pytest.StashKey[float]()

# Collecting

# Or else every process of every run compiles all tests anew, with their assertions: 12 s of processor time.
sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what collecting makes is garbage: looking for it takes a third of the time, in each process. Nor is it
    while the tests run: half of the processor time of those in process went into walking through all tests again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Sharing out


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that all processes end together. What ``make proof`` alone runs ``make quick`` leaves out; and what servers
    have to be started for."""
    leave_out_of_turn(items)
    for item in items:
        if item.get_closest_marker("proof") or item.nodeid.startswith(SERVERS):
            item.add_marker("slow")
    items.sort(key=_turn)


def leave_out_of_turn(items: list[pytest.Item]) -> None:
    """Leave to ``make proof`` those of the marked tests of a file that are not in turn with this commit."""
    places = Counter[str]()
    for item in items:
        if (mark := item.get_closest_marker("in_turn")) is not None:
            from tests.commit import commit_number  # the tests of this file have no such module

            (parts,), file = mark.args, file_of(item.nodeid)
            if (places[file] + commit_number()) % parts:
                item.add_marker("proof")
            places[file] += 1


def _turn(item: pytest.Item) -> int:
    """The groups that take longest are begun first, and what comes in small pieces fills up."""
    if item.get_closest_marker("slow") is None:
        return 3
    if file_of(item.nodeid) in APART:
        return 2
    return int(group_of(item.nodeid) == file_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if file_of(nodeid) in APART else group_of(nodeid)

    config.option.loadscopereorder = False  # the order is that of the tests
    return ByGroup(config, log)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """The group that the test's folder belongs to, else its file."""
    return next((group for folder, group in TOGETHER.items() if nodeid.startswith(folder)), file_of(nodeid))


# Which took longest


def _processor_seconds() -> float:
    """Of this process, and of its children and the daemons that have ended."""
    prepared = sys.modules.get("tests.e2e.prepared")
    return sum(os.times()[:4]) + (prepared.processor_seconds if prepared else 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        report.user_properties.append((PROCESSOR_SECONDS, _processor_seconds() - item.stash[BEGAN]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The groups that took longest, all together, and processes that had no test left: where to look when it takes too
    long."""
    seconds, processor, ended = Counter[str](), Counter[str](), dict[str, float]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[group_of(report.nodeid)] += report.duration
                processor[group_of(report.nodeid)] += dict(report.user_properties).get(PROCESSOR_SECONDS, 0)
                worker = getattr(report, "worker_id", "")
                ended[worker] = max(ended.get(worker, 0), report.stop)
    if len(seconds) > SLOWEST:
        terminalreporter.section(f"the {SLOWEST} slowest groups of {len(seconds)}")
        for group, took in [*seconds.most_common(SLOWEST), ("all", seconds.total())]:
            spent = processor.total() if group == "all" else processor[group]
            terminalreporter.line(f"{took:7.1f} s, {spent:7.1f} s of them on a processor: {group}")
        idle = ", ".join(f"{worker} {max(ended.values()) - at:.1f} s" for worker, at in sorted(ended.items()) if worker)
        terminalreporter.line(f"without a test before the end: {idle or 'nobody'}")
