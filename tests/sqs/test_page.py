"""docs/sqs.md names every action and attribute, and docs/dev/proof.md every observation of AWS."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

from mq.sqs.attributes import ATTRIBUTES
from mq.sqs.door import ACTIONS
from tests.e2e.daemon import TREE, Daemon

PAGE: Final = (TREE / "docs" / "sqs.md").read_text()


def section(title: str, page: str = PAGE) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_each_action_has_its_place() -> None:
    rows = [line.split("|")[2] for line in section("Actions").splitlines() if line.startswith("| ")][1:]
    assert sorted(name for names in rows for name in re.findall(r"[A-Z]\w+", names)) == sorted(ACTIONS)


def test_each_attribute_has_its_row() -> None:
    for name in ATTRIBUTES:
        assert name == "All" or name.partition("Number")[0] in section("Attributes"), name


def test_each_observation_of_aws_has_its_source_and_its_tests() -> None:
    proof = (TREE / "docs" / "dev" / "proof.md").read_text()
    lines = section("Where AWS is not as its documentation says", proof).splitlines()
    rows = [line.split("|")[1:-1] for line in lines]
    rows = [row for row in rows if len(row) == 4][2:]
    tests = (TREE / "tests" / "sqs" / "test_as_aws.py").read_text()
    assert len(rows) > 10
    for *_, source, named in rows:
        assert re.search(r"[\w-]+/[\w-]+(#\d+|, whose tests)", source), source
        found = re.findall(r"`(test_\w+)`", named)
        assert found
        for test in found:
            assert f"def {test}(" in tests, test


def test_each_action_takes_a_right() -> None:
    said = section("Users")
    for name in ACTIONS:
        covered = name in said or name.removesuffix("Batch") in said or "Permission" in name or name == "ListQueues"
        assert covered, name


@pytest.mark.slow
def test_the_first_block_runs(daemon: Daemon) -> None:
    block = PAGE.partition("```python\n")[2].partition("```")[0].replace(":8080", f":{daemon.port}")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=60)
    assert done.stdout == "hello\n", done.stderr
