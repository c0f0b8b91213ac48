"""Writes down which files dist, the image and CI install, each by its SHA-256: nothing else is taken, whatever an index
offers.

Usage: python tools/lock.py

``locked/dist.txt`` has what mq needs on every Python and machine of the one-file program. The image has that, and what
mq-postgres needs (``locked/postgres.txt``); its build stage builds and compiles with ``locked/build.txt``, and
``make dist`` builds with ``locked/tools.txt``.
``locked/dev.txt`` has what developers and CI need on the Python and the machine that ran this. Versions are those of
constraints.txt.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dist import PACKED_PLUGINS
from tqdm import tqdm

TREE: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = TREE / "locked"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = ("x86_64", "aarch64")
TAGS: Final = ("manylinux_2_28", "manylinux2014")
"""For which systems wheels may be, in front of the machine's name: what mypy needs has the older one alone."""
BUILDS: Final = ("editables", "hatchling", "pip", "setuptools")
"""What an editable install is built with, which has to be there before: then nothing is downloaded for it."""
PACKS: Final = ("build", "hatchling", "pip", "shiv")
"""What builds the wheels and the one-file program."""
COMPILES: Final = ("hatchling", "mypy", "setuptools")
"""What mq and mq-native are built and compiled with: the mypyc that the tests of the compiled mq have run with."""

Locked = dict[str, set[str]]
"""``name==version`` -> the SHA-256 of each of its files."""


def main() -> None:
    """Write both."""
    mq = project(TREE)
    needed = mq["dependencies"]
    packed = [need for name in PACKED_PLUGINS for need in project(TREE / "plugins" / name)["dependencies"]]
    in_one_file = [*needed, *(need for need in packed if not need.startswith("mq"))]
    everywhere = "any Python from 3.11 to 3.14, on Linux"
    write(
        FOLDER / "dist.txt",
        resolve_everywhere(in_one_file),
        f"mq and the plugins of the one-file program on {everywhere}",
    )
    more = [need for need in project(TREE / "plugins/mq-postgres")["dependencies"] if need.startswith("psycopg")]
    write(FOLDER / "postgres.txt", resolve_everywhere(more), f"mq-postgres in the image, on {everywhere}")
    write(FOLDER / "build.txt", resolve_everywhere(COMPILES), f"building and compiling mq on {everywhere}")
    write(
        FOLDER / "tools.txt",
        resolve_everywhere(PACKS),
        f"building mq's wheels and the one-file program on {everywhere}",
    )
    plugins = [need for each in sorted(TREE.glob("plugins/*")) for need in project(each)["dependencies"]]
    others = [need for need in plugins if not need.startswith("mq")]
    dev = resolve([*needed, *group("dev"), *others, *BUILDS])
    write(FOLDER / "dev.txt", dev, f"developers and CI on {this_machine()}")


def project(folder: Path) -> dict[str, list[str]]:
    """The ``[project]`` table of a package."""
    table: dict[str, list[str]] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return {"dependencies": []} | table


def group(name: str) -> list[str]:
    """The requirements of a dependency group, those of included groups among them."""
    found: list[str] = []
    for need in tomllib.loads((TREE / "pyproject.toml").read_text())["dependency-groups"][name]:
        found += group(need["include-group"]) if isinstance(need, dict) else [need]
    return found


def resolve_everywhere(needed: Iterable[str]) -> Locked:
    """What pip would install on each Python and machine, all in one."""
    found: Locked = defaultdict(set)
    for python in tqdm(PYTHONS, disable=None):
        for machine in MACHINES:
            platforms = [flag for tag in TAGS for flag in ("--platform", f"{tag}_{machine}")]
            flags = ["--only-binary=:all:", "--python-version", python, *platforms, "--target", "unused"]
            for pin, hashes in resolve(needed, *flags).items():
                found[pin] |= hashes
    return found


def resolve(needed: Iterable[str], *flags: str) -> Locked:
    """What pip would install, by what it downloads.

    Raises:
        SystemExit: it cannot.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    pins = ["--constraint", str(TREE / "constraints.txt")]
    done = subprocess.run([*command, *pins, *flags, *needed], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    locked: Locked = defaultdict(set)
    for each in json.loads(done.stdout)["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        locked[f"{name}=={version}"].add(each["download_info"]["archive_info"]["hashes"]["sha256"])
    return locked


def write(page: Path, locked: Locked, what_for: str) -> None:
    """Write them down, a file a line."""
    entries = [[pin, *(f"--hash=sha256:{digest}" for digest in sorted(locked[pin]))] for pin in locked]
    entries.sort(key=lambda entry: entry[0].lower())
    lines = [f"# For {what_for}. Written by tools/lock.py (make locked).", *map(" \\\n    ".join, entries)]
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines) + "\n")


def this_machine() -> str:
    """The Python and the machine that run this, as setup.sh compares them."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} {platform.system()} {platform.machine()}"


if __name__ == "__main__":
    main()
