"""The compiled mq is the same program: what mypyc makes something else of is not written, and the same tests pass."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from tests.cases import for_each

TREE: Final = Path(__file__).resolve().parent.parent
TOOL: Final = TREE / "tools" / "from_compiled.py"
PLACE: Final = TREE / "build" / "compiled"
IMPOSSIBLE: Final = 3
LEAST_OPTIMISED: Final = "--level=0"  # compiles in half the time; what it does is the same

PURE: Final = {"len", "min", "max", "int.from_bytes"}
"""What may be called between a slice's brackets."""

MUST_BE_COMPILED: Final = """
import importlib, sys
storage = ("mq.storage.interface", "mq.storage.files.logged.steps")
for name in ("mq.lifecycle", "mq.broker.catalog", "mq.broker.index", *storage):
    assert importlib.import_module(name).__file__.endswith(".so"), f"{name} is not compiled"
"""

TRACES: Final = """
from simulation.run import digest, run_seed
for seed in range(50):
    report = run_seed(seed)
    print(seed, digest([report]), report.violations)
"""

SAME_TESTS: Final = {
    "broker": [
        f"tests/broker/test_{topic}.py" for topic in ("broker", "dead_letters", "keys", "message_groups", "times")
    ],
    "storage": [
        "tests/storage/test_records.py",
        "tests/storage/test_conformance.py",
        "-k=posix or not conformance",
    ],
    "groups on a log": ["tests/storage/test_logged.py", "-k=group"],
    "amqp": [
        *(f"tests/amqp/test_{topic}.py" for topic in ("deliveries", "publishes", "served_connection")),
        "-k=not (a_get_that_fails or went_just_before or deleted_meanwhile)",
    ],
    "cluster": ["tests/cluster/test_nodes.py"],
    "kill -9": ["tests/e2e/test_kill.py::test_one_daemon_loses_nothing_acknowledged", "-k=disk", "--kills=4"],
}
"""By what they are about. Left out are those that change a constant or a method of what is compiled."""


def compiled_patterns() -> list[str]:
    build = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    patterns: list[str] = build["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return patterns


def compiled_modules() -> list[Path]:
    return sorted(path for pattern in compiled_patterns() for path in each_path(pattern))


def each_path(pattern: str) -> Iterator[Path]:
    before, _, rest = pattern.partition("{")
    among, _, after = rest.partition("}")
    return (TREE / f"{before}{name}{after}" for name in among.split(","))


# What mypyc makes something else of


@for_each("path", compiled_modules())
def test_no_slice_has_an_effect_between_its_brackets(path: Path) -> None:
    """mypyc computes the bounds of a slice twice where it does not know the type: what they do is done twice."""
    for slices in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Slice)):
        called = {ast.unparse(node.func) for node in ast.walk(slices) if isinstance(node, ast.Call)}
        effects = [node for node in ast.walk(slices) if isinstance(node, ast.Await | ast.NamedExpr)]
        assert called <= PURE, f"line {slices.lineno}: compute it before the slice"
        assert not effects, f"line {slices.lineno}: compute it before the slice"


@for_each("path", compiled_modules())
def test_no_generator_is_asynchronous(path: Path) -> None:
    """mypyc compiles none, and says so only where a compiler is."""
    for function in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.AsyncFunctionDef)):
        yields = [node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom)]
        assert not yields, f"line {function.lineno}: put {function.name} into a module that is not compiled"


@for_each("path", compiled_modules())
def test_no_named_tuple_has_a_field_of_a_class_below_it(path: Path) -> None:
    """Python leaves the annotation a string; what mypyc makes reads the class, and crashes when it is imported. It
    reads none of a union or of a list."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    lines = {each.name: each.lineno for each in classes}
    for each in classes:
        if "NamedTuple" not in map(ast.unparse, each.bases):
            continue
        fields = [node.annotation for node in each.body if isinstance(node, ast.AnnAssign)]
        named = [field.id for field in fields if isinstance(field, ast.Name)]
        later = [name for name in named if lines.get(name, 0) > each.lineno]
        assert later == [], f"line {each.lineno}: move {each.name} below {later}"


def test_the_modules_of_a_folder_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TREE / "tools")
    from wheel_hook import modules_in

    folders = [path.rpartition("/")[0] for path in modules_in(TREE, compiled_patterns())]
    groups = [folder for folder, _ in groupby(folders)]
    assert len(groups) > 1
    assert len(groups) == len(set(groups))


def test_the_tests_that_it_must_pass_are_there() -> None:
    paths = [test.partition("::")[0] for tests in SAME_TESTS.values() for test in tests if not test.startswith("-")]
    assert [path for path in paths if not (TREE / path).is_file()] == []


# What it makes


@pytest.fixture(scope="module")
def compiled() -> None:
    built = subprocess.run([sys.executable, TOOL, LEAST_OPTIMISED], capture_output=True, text=True, check=False)
    if built.returncode == IMPOSSIBLE:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stdout + built.stderr


def run(arguments: list[str], place: Path = PLACE) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
def test_the_same_seeds_give_the_same_calls_to_the_disk() -> None:
    """Every call, its arguments and their order: not only the same verdict."""
    both = [run(["-c", MUST_BE_COMPILED + TRACES]), run(["-c", TRACES], TREE)]
    (made, _), (plain, _) = (process.communicate(timeout=300) for process in both)
    assert [process.returncode for process in both] == [0, 0], made + plain
    assert made == plain


@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("what", SAME_TESTS)
def test_the_same_tests_pass(what: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-m", "not root and not cluster"]
    done = run(
        ["-c", f"{MUST_BE_COMPILED}\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))", *options, *SAME_TESTS[what]]
    )
    told, _ = done.communicate(timeout=300)
    assert done.returncode == 0, told
