"""One distribution: what its wheel has and needs, and what of it works where there is no Linux."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

builders = pytest.importorskip("hatchling.builders.wheel", reason="builds wheels: needs hatchling")

TREE: Final = Path(__file__).resolve().parent.parent
ELSEWHERE: Final = {
    "macos": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    "windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
LINUX_ONLY: Final = {"inotify_simple", "uvloop", "mq-native"}
NOT_ELSEWHERE: Final = (
    *("crypt", "fcntl", "grp", "inotify_simple", "pwd", "readline"),
    *("resource", "syslog", "termios", "tty"),
)
"""Modules that Windows, or macOS, lacks."""
BEGIN: Final = f"""
import sys
for name in {NOT_ELSEWHERE!r}:
    sys.modules[name] = None
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MQ_RELEASE", "1")
        patch.delenv("MQ_COMPILED", raising=False)
        return build(tmp_path_factory.mktemp("wheel"))


def build(folder: Path) -> Path:
    return Path(next(builders.WheelBuilder(str(TREE)).build(directory=str(folder), versions=["standard"])))


def needs(wheel: Path, extra: str = "") -> dict[str, str]:
    """Name -> what else is said of it, of what the wheel needs with that extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)]
    fits = [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {each.name: f"@ {each.url}" if each.url else str(each.specifier) for each in fits}


def test_the_wheel_has_all_files_of_its_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        there = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert len(there) == len(set(there))
    assert set(there) == {
        str(path.relative_to(TREE))
        for package in ("mq", "pyspark_mq")
        for path in (TREE / package).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }


def test_developers_needs_are_no_published_extras(wheel: Path) -> None:
    groups = tomllib.loads((TREE / "pyproject.toml").read_text())["dependency-groups"]
    assert groups.keys() == {"bench", "dev", "test"}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        extras = re.findall(r"^Provides-Extra: (.+)$", archive.read(name).decode(), re.MULTILINE)
    assert not groups.keys() & set(extras)


def test_a_released_wheel_names_plugins_by_version(wheel: Path) -> None:
    assert needs(wheel, "cluster").items() - needs(wheel).items() == {("mq-etcd", ">=0.1.0")}


def test_from_the_tree_plugins_come_from_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install '.[cluster]'` asks no index for it. The dot at the end: pip would keep the wheel of a folder whose
    name reads like a name and a version."""
    monkeypatch.delenv("MQ_RELEASE", raising=False)
    wheel = build(tmp_path)
    for extra, plugin in {"cluster": "etcd", "native": "native", "postgres": "postgres"}.items():
        folder = TREE / "plugins" / f"mq-{plugin}"
        assert needs(wheel, extra)[folder.name] == f"@ {folder.as_uri()}/."


def test_one_package_has_one_floor() -> None:
    table = tomllib.loads((TREE / "pyproject.toml").read_text())
    lists = [table["project"]["dependencies"], *table["project"]["optional-dependencies"].values()]
    floors: dict[str, set[str]] = {}
    for each in (*lists, *table["dependency-groups"].values()):
        for need in (Requirement(line) for line in each if isinstance(line, str)):
            if need.name != "mq":
                floors.setdefault(need.name, set()).add(str(need.specifier))
    assert {name: said for name, said in floors.items() if len(said) > 1} == {}


def test_groups_have_what_the_extras_need() -> None:
    """Groups repeat it."""
    table = tomllib.loads((TREE / "pyproject.toml").read_text())
    extras = {line for each in table["project"]["optional-dependencies"].values() for line in each}
    assert {line for line in extras if not line.startswith("mq[")} <= set(table["dependency-groups"]["test"])


# Where there is no Linux


@pytest.mark.parametrize("system", ELSEWHERE)
def test_nothing_that_only_linux_has_is_needed_elsewhere(system: str) -> None:
    """Goes through all that mq needs there, by what is installed here: it asks no index."""
    environment = {**ELSEWHERE[system], "extra": ""}
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    wanted = list(map(Requirement, project["dependencies"]))
    found: set[str] = set()
    while wanted:
        need = wanted.pop()
        if need.name in found or (need.marker is not None and not need.marker.evaluate(environment)):
            continue
        found.add(need.name)
        try:
            wanted += map(Requirement, metadata.requires(need.name) or [])
        except metadata.PackageNotFoundError:  # what only that system has, such as colorama
            continue
    assert {"click", "httpx", "trio", "anyio"} <= found
    assert not found & LINUX_ONLY


@pytest.mark.slow
@pytest.mark.parametrize("system", ELSEWHERE)
def test_an_index_has_all_that_is_needed_elsewhere(system: str, tmp_path: Path) -> None:
    """Resolves for another platform. Needs uv, which the environment of the tests does not have, and the network."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed: pip install uv")
    command = [
        uv,
        "pip",
        "compile",
        str(TREE / "pyproject.toml"),
        f"--python-platform={system}",
        "--python-version=3.11",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    if "error sending request" in done.stderr or "dns error" in done.stderr:
        pytest.skip(f"no index answers: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    assert "inotify" not in done.stdout


def run_elsewhere(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_clients_are_imported_without_linux() -> None:
    done = run_elsewhere("""
import mq, mq.client, mq.client.amqp, mq.spark
assert mq.client.Client and mq.client.AsyncClient and mq.client.amqp.connect
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_commands_that_speak_to_a_daemon_run_without_linux() -> None:
    done = run_elsewhere("""
import mq.cli
for name in mq.cli.VERBS.keys() - mq.cli.NEED_LINUX:
    mq.cli.load_verb(name)
print(len(mq.cli.VERBS.keys() - mq.cli.NEED_LINUX))
""")
    assert (done.returncode, int(done.stdout) > 15) == (0, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["serve"], ["--port=0"], ["doctor", "."]])
def test_what_needs_linux_says_so_elsewhere(arguments: list[str]) -> None:
    done = run_elsewhere(f"""
sys.platform = "darwin"
sys.argv = ["mq", *{arguments!r}]
import mq.cli
mq.cli.main()
""")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(
        r"mq: mq (serve|doctor) requires Linux .*, but this system is darwin\. Run mq (serve|doctor) on Linux", line
    ), line
