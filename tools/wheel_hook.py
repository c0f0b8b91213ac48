"""Adds to mq's wheel its plugins and compiled modules. pip install calls this (pyproject.toml).

It names the plugin of each extra: by its folder, so that ``pip install '.[cluster]'`` finds it here and asks no index,
or by its version where ``MQ_RELEASE=1`` says that the wheel goes elsewhere.

It compiles the hot modules where ``MQ_COMPILED=1`` says so. The source stays what it is, plain Python with types: mypyc
makes a C extension of each module. It does the same, and Python prefers it to the module beside it. A wheel without it
differs in speed only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RELEASE: Final = "MQ_RELEASE"
COMPILED: Final = "MQ_COMPILED"
LEVEL: Final = "MQ_COMPILED_LEVEL"
"""How far the C compiler optimises: 2, or 0 for a build in half the time."""
NEEDED: Final = ["mypy>=2", "setuptools>=65"]
SETUP: Final = """
import sys
from itertools import groupby
from mypyc.build import mypycify
from setuptools import setup

level, *paths = sys.argv[1:]
rooms = [(list(room), name.replace("/", "_")) for name, room in groupby(paths, lambda path: path.rpartition("/")[0])]
modules = mypycify(["--ignore-missing-imports", *paths], opt_level=level, debug_level="0", separate=rooms)
setup(name="compiled", packages=[], ext_modules=modules, script_args=["-q", "build_ext", "--inplace", "--parallel=2"])
"""


class WheelHook(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Names the plugins that ``plugins`` says, by extra. Compiles the modules that ``modules`` names, as patterns of
    paths."""

    def dependencies(self) -> list[str]:
        """What compiling needs: the compiler, and the types of what is imported."""
        return [*NEEDED, *self.metadata.core.dependencies] if _is_wanted(COMPILED) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add requirements and compiled modules to the wheel."""
        build_data["dependencies"] += self._plugins()
        if version != "editable" and _is_wanted(COMPILED):
            self._compile(build_data)

    def _plugins(self) -> Iterator[str]:
        for extra, name in self.config["plugins"].items():
            folder = Path(self.root) / "plugins" / name
            # The dot, because a last segment such as mq-etcd looks to pip like a name and a version: it would keep the
            # wheel, and install that one again after the tree has changed.
            named = f"{name}>={_version(folder)}" if _is_wanted(RELEASE) else f"{name} @ {folder.as_uri()}/."
            yield f"{named} ; extra == '{extra}'"

    def _compile(self, build_data: dict[str, Any]) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        folder = Path(self._scratch.name)
        shutil.copytree(Path(self.root) / "mq", folder / "mq", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        run = [
            sys.executable,
            "-c",
            SETUP,
            os.environ.get(LEVEL, "2"),
            *modules_in(Path(self.root), self.config["modules"]),
        ]
        done = subprocess.run(run, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"mq could not be compiled; install it without {COMPILED}, or see why:\n{done.stdout}")
        build_data["pure_python"], build_data["infer_tag"] = False, True
        for made in [*folder.glob("*.so"), *folder.glob("mq/**/*.so")]:
            build_data["force_include"][str(made)] = str(made.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copy."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()


def modules_in(tree: Path, patterns: list[str]) -> list[str]:
    """The paths in `tree` that match a pattern, each folder's together: a folder is compiled as one group, and sorted
    by path alone a folder inside it would stand between its modules."""
    found = [path.relative_to(tree) for pattern in patterns for path in _matching(tree, pattern)]
    return [str(path) for path in sorted(found, key=lambda path: (path.parent, path.name))]


def _matching(tree: Path, pattern: str) -> list[Path]:
    """Paths that match; ``{a,b}`` stands for either."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        return list(tree.glob(pattern))
    among, _, after = rest.partition("}")
    return [path for one in among.split(",") for path in _matching(tree, before + one + after)]


def _version(folder: Path) -> str:
    return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])


def _is_wanted(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")
