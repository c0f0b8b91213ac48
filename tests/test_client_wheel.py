"""Two distributions of one tree: the slim client and the rest share no file, and the client stands by itself.

Built, not downloaded: what the wheel needs is linked from this Python's own packages, and nothing else is in reach.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.e2e.daemon import Daemon

builders = pytest.importorskip("hatchling.builders.wheel", reason="builds wheels: needs hatchling")

TREE: Final = Path(__file__).resolve().parent.parent
HALVES: Final = {"mq": TREE, "mq-client": TREE / "mq-client"}

EXTRAS: Final = ("amqp", "otel", "trio")
ONLY_UNIX: Final = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
"""What of Python's own is not there on Windows, or hardly of use."""

SPEAKS: Final = """
import asyncio
import mq
from mq.client import AsyncClient, Client
assert mq.MessageId and mq.__file__.startswith(sys.path[0]), mq.__file__
with Client({url!r}) as client:
    client.create_queue("letters")
    client.publish("letters", "hello")
    with client.receive("letters", wait=20) as message:
        print(message.body.decode())
async def again():
    async with AsyncClient({url!r}) as client:
        await client.publish("letters", "hello again")
        async with client.receive("letters", wait=20) as message:
            print(message.body.decode())
asyncio.run(again())
foreign = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - ALLOWED
assert not foreign, foreign
try:
    import mq.broker
except ModuleNotFoundError as error:
    print(error)
"""
CONNECTS: Final = """
import asyncio
from mq.client import Unreachable
from mq.client.amqp import connect
async def main():
    try:
        async with connect("amqp://127.0.0.1:{port}"):
            pass
    except Unreachable as error:
        print(error)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """As `tools/dist.py` builds them, for elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MQ_RELEASE", "1")
        patch.delenv("MQ_COMPILED", raising=False)
        return {name: build(name, tmp_path_factory.mktemp(name)) for name in HALVES}


def build(name: str, folder: Path, version: str = "standard") -> Path:
    return Path(next(builders.WheelBuilder(str(HALVES[name])).build(directory=str(folder), versions=[version])))


def files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def needs(wheel: Path, extra: str = "") -> dict[str, str]:
    """Name -> what else is said of it, of what this distribution needs with that extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)]
    fits = [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {each.name: f"@ {each.url}" if each.url else str(each.specifier) for each in fits}


def test_no_file_is_in_both_and_none_is_in_neither(wheels: dict[str, Path]) -> None:
    halves = {name: files(wheel) for name, wheel in wheels.items()}
    assert not set(halves["mq"]) & set(halves["mq-client"])
    assert len(halves["mq-client"]) == len(set(halves["mq-client"]))
    there = {
        str(path.relative_to(TREE))
        for package in ("mq", "pyspark_mq")
        for path in (TREE / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    assert {*halves["mq"], *halves["mq-client"]} == there


def test_mq_depends_on_the_client_of_its_version(wheels: dict[str, Path]) -> None:
    wanted = needs(wheels["mq"])
    assert wanted["mq-client"] == f"=={metadata.version('mq')}"
    assert "httpx" not in wanted
    assert needs(wheels["mq"], "cluster").items() - wanted.items() == {("mq-etcd", ">=0.1.0")}


def test_from_the_tree_the_client_comes_from_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install .` asks no index for it, and takes none that it has built before: pip would keep the wheel of
    a folder that is named as a name and a version are, such as `mq-client`. Hence the dot."""
    monkeypatch.delenv("MQ_RELEASE", raising=False)
    wheel = build("mq", tmp_path)
    wanted = needs(wheel)
    assert wanted["mq-client"] == f"@ {(TREE / 'mq-client').as_uri()}/."
    for extra, plugin in {
        "cluster": "etcd",
        "native": "native",
        "postgres": "postgres",
    }.items():
        folder = TREE / "plugins" / f"mq-{plugin}"
        assert needs(tmp_path / "mq-0.1.0-py3-none-any.whl", extra)[folder.name] == f"@ {folder.as_uri()}/."


def test_an_editable_mq_has_both_halves(tmp_path: Path, wheels: dict[str, Path]) -> None:
    """A copy of the client beside it would hide the tree."""
    wanted = needs(build("mq", tmp_path, "editable"))
    assert "mq-client" not in wanted
    assert needs(wheels["mq-client"]).items() <= wanted.items()


def test_one_package_has_one_floor() -> None:
    floors: dict[str, set[str]] = {}
    for folder in HALVES.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for group in (project["dependencies"], *project["optional-dependencies"].values()):
            for need in (Requirement(line) for line in group):
                floors.setdefault(need.name, set()).add(str(need.specifier))
    assert {name: said for name, said in floors.items() if len(said - {""}) > 1} == {}


# Alone


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def test_it_imports_what_every_system_has_and_what_it_names(wheels: dict[str, Path]) -> None:
    own = [name for name in files(wheels["mq-client"]) if name.endswith(".py")]
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in own}
    named = {name.replace("-", "_") for extra in ("", *EXTRAS) for name in needs(wheels["mq-client"], extra)}
    named = {"opentelemetry" if name == "opentelemetry_api" else name for name in named}
    for name in own:
        for module in imported(TREE / name):
            first = module.partition(".")[0]
            if first == "mq":
                assert module in modules, f"{name} imports {module}"
            else:
                assert first in named or first in sys.stdlib_module_names - ONLY_UNIX, f"{name} imports {module}"


def closure(wanted: set[str]) -> set[str]:
    """Those distributions and what they need, without extras."""
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        found.add(name)
        for need in map(Requirement, metadata.requires(name) or []):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                wanted |= {need.name} - found
    return found


def link(distribution: str, site: Path) -> set[str]:
    """Make what a distribution brought importable from `site`. Returns the names of its modules."""
    brought = {
        file.parts[0] for file in metadata.files(distribution) or [] if file.parts[0] not in ("..", "__pycache__")
    }
    for name in brought:
        target = Path(str(metadata.distribution(distribution).locate_file(name)))
        if not (site / name).exists():
            (site / name).symlink_to(target)
    return {name.partition(".")[0] for name in brought}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log") as running:
        yield running


def run_alone(wheel: Path, site: Path, program: str, extra: str = "") -> list[str]:
    """What a program prints where there is that wheel, what it needs, and Python. `ALLOWED` are its modules."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    allowed = {"mq", "__main__"}.union(*(link(name, site) for name in closure(set(needs(wheel, extra)))))
    begin = f"import sys; sys.path.insert(0, {str(site)!r}); ALLOWED = {allowed!r}\n"
    command = [sys._base_executable, "-I", "-S", "-c", begin + program]
    here = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_alone_it_publishes_and_receives(wheels: dict[str, Path], tmp_path: Path, daemon: Daemon) -> None:
    program = SPEAKS.format(url=f"http://127.0.0.1:{daemon.port}")
    said = run_alone(wheels["mq-client"], tmp_path / "site", program)
    assert said == ["hello", "hello again", "No module named 'mq.broker'"]


@pytest.mark.slow
def test_alone_with_its_extra_it_speaks_amqp(wheels: dict[str, Path], tmp_path: Path, free_port: int) -> None:
    (said,) = run_alone(wheels["mq-client"], tmp_path / "site", CONNECTS.format(port=free_port), "amqp")
    assert said.startswith(f"no server answers at amqp://127.0.0.1:{free_port}: ")
