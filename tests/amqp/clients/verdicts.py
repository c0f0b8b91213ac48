"""What RabbitMQ said to the tests that it, too, has to pass; written down, so that it need not be asked each time.

``make judge`` asks it, and writes the file. A test whose text is another one than the one that was judged has no
verdict any more.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import pytest

FOLDER: Final = Path(__file__).parent
FILE: Final = FOLDER / "verdicts.json"
UNDER_ALL: Final = ("celery_tasks.py", "node/package-lock.json", "node/talk.mjs", "servers.py")
UNDER: Final = {
    "test_frameworks.py": (
        "programs/requirements.txt",
        *(f"programs/talk_{name}.py" for name in ("dramatiq", "faststream", "nameko", "taskiq")),
    ),
    "test_header_types.py": ("header_types.json", "header_types.py"),
    "test_other_languages.py": ("programs/talk.php", "programs/Talk.java"),
}
"""File -> the programs that it runs, and what else decides about its tests."""
AGAIN: Final = "make judge, or pytest tests/amqp/clients -m proof --judge, asks RabbitMQ again"


class Judged(NamedTuple):
    """Of one file of tests.

    Attributes:
        digest: of the text that was judged.
        verdicts: by the test's name: "passed", or "skipped" and why.
    """

    digest: str
    verdicts: dict[str, str]


def digest_of(file: str) -> str:
    """Of a file's text, and of what all of them rest on."""
    seen = hashlib.sha256()
    for name in (file, *UNDER_ALL, *UNDER.get(file, ())):
        seen.update((FOLDER / name).read_bytes())
    return seen.hexdigest()[:16]


def recorded() -> tuple[str, dict[str, Judged]]:
    """Which RabbitMQ it was, and what it said, by file."""
    told = json.loads(FILE.read_text())
    return told["rabbitmq"], {file: Judged(**judged) for file, judged in told["files"].items()}


class Judge:
    """Listens to a session, and writes down what RabbitMQ said in it."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._asked: dict[str, set[str]] = defaultdict(set)
        self._said: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.path.parent == FOLDER and item.get_closest_marker("proof"):
                self._asked[item.path.name].add(item.name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path, _, name = report.nodeid.partition("::")
        file = Path(path).name
        if name not in self._asked[file]:
            return
        if report.failed:
            self._said[file][name] = "failed"
        elif report.skipped:
            assert isinstance(report.longrepr, tuple)
            self._said[file][name] = report.longrepr[2].replace("Skipped: ", "skipped: ")
        else:
            self._said[file].setdefault(name, "passed")

    def pytest_sessionfinish(self) -> None:
        """What was asked as a whole, and passed, is kept."""
        before = recorded() if FILE.exists() else ("", {})
        files = before[1] if before[0] == self._version else {}
        for file, asked in self._asked.items():
            if set(self._said[file]) == asked and "failed" not in self._said[file].values():
                files[file] = Judged(digest_of(file), dict(sorted(self._said[file].items())))
        known = {file: judged._asdict() for file, judged in sorted(files.items())}
        FILE.write_text(json.dumps({"rabbitmq": self._version, "files": known}, indent=1) + "\n")
