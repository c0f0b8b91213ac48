"""RabbitMQ has said that the tests of this folder are right, as they stand here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.amqp import rabbit
from tests.amqp.clients import verdicts
from tests.amqp.clients.verdicts import AGAIN, FOLDER, Judge, digest_of, recorded
from tests.cases import for_each

NOT_ASKED = {Path(__file__).name, "test_workers.py"}
"""Of these the second is about what RabbitMQ's classic queues do not have, or mq's HTTP door says."""
FILES = [path.name for path in sorted(FOLDER.glob("test_*.py")) if path.name not in NOT_ASKED]


@for_each("file", FILES)
def test_a_file_was_judged_as_it_is(file: str) -> None:
    _, files = recorded()
    assert file in files, f"RabbitMQ was never asked: {AGAIN}"
    assert files[file].digest == digest_of(file), f"the tests were changed since RabbitMQ passed them: {AGAIN}"
    said = files[file].verdicts
    assert said
    assert all(verdict == "passed" or verdict.startswith("skipped: ") for verdict in said.values()), said


def test_nothing_is_kept_of_files_that_are_gone() -> None:
    assert set(recorded()[1]) == set(FILES)


@pytest.mark.skipif(not rabbit.is_installed(), reason="RabbitMQ is not installed: bash tests/setup-system.sh --yes")
def test_it_was_the_rabbitmq_that_is_here() -> None:
    assert recorded()[0] == rabbit.version(), AGAIN


def test_a_judge_keeps_what_was_asked_as_a_whole_and_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    monkeypatch.setattr(verdicts, "FILE", tmp_path / "verdicts.json")
    monkeypatch.setattr(verdicts, "UNDER_ALL", ())
    asked = [
        "test_good.py::a",
        "test_good.py::b",
        "test_bad.py::a",
        "test_bad.py::b",
        "test_half.py::a",
        "test_half.py::b",
    ]
    for name in asked:
        (tmp_path / name.partition("::")[0]).write_text(name)
    judge = Judge("3.10")
    judge.pytest_collection_finish(Session(tmp_path, asked))
    for name, outcome in zip(asked[:5], ["passed", "skipped", "passed", "failed", "passed"], strict=True):
        judge.pytest_runtest_logreport(report(name, "setup", "passed"))
        judge.pytest_runtest_logreport(report(name, "call", outcome))
        judge.pytest_runtest_logreport(report(name, "teardown", "passed"))
    judge.pytest_sessionfinish()
    version, files = recorded()
    assert (version, list(files)) == ("3.10", ["test_good.py"])
    assert files["test_good.py"] == (digest_of("test_good.py"), {"a": "passed", "b": "skipped: why"})


def report(name: str, when: Any, outcome: Any) -> pytest.TestReport:
    why = ("here", 1, "Skipped: why") if outcome == "skipped" else None
    return pytest.TestReport(name, ("", None, ""), {}, outcome, why, when)


class Session:
    """What of a session a judge looks at."""

    def __init__(self, folder: Path, nodeids: list[str]) -> None:
        self.items = [Item(folder / path, name) for path, name in (nodeid.split("::") for nodeid in nodeids)]


class Item(NamedTuple):
    path: Path
    name: str

    def get_closest_marker(self, name: str) -> bool:
        return name == "proof"
