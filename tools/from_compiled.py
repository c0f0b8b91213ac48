"""Makes build/compiled, with mq compiled and all that its tests and benchmarks need beside it; runs Python there.

Usage: python tools/from_compiled.py [--level N] [--or-as-it-is] [ARGUMENTS OF PYTHON ...]

Without arguments it builds and no more. It compiles again only after a change of the sources, or for more
optimisation than the code there has. Where mq cannot be compiled (no C compiler, no headers of Python)
it says why and ends with status 3, or runs mq as it is if ``--or-as-it-is`` says so.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).resolve().parent.parent
PLACE: Final = TREE / "build" / "compiled"
STAMP: Final = PLACE / ".built"
IN_WHEELS: Final = ("mq", "pyspark_mq")
BESIDE: Final = ("tests", "simulation", "plugins", "benchmarks", "examples", "docs", "tools")
UNTOUCHED: Final = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", ".*")
IMPOSSIBLE: Final = 3


def main() -> None:
    options = _options()
    why = why_not()
    if why and not options.as_it_is:
        print(f"mq cannot be compiled here: {why}", file=sys.stderr)
        sys.exit(IMPOSSIBLE)
    if why:
        print(f"mq runs as it is, not compiled: {why}", file=sys.stderr)
    else:
        with alone():
            build(options.level)
    if options.arguments:
        place = TREE if why else PLACE
        os.chdir(place)
        os.execve(sys.executable, [sys.executable, *options.arguments], {**os.environ, "PYTHONPATH": str(place)})


def why_not() -> str:
    """What is missing to compile; nothing if nothing is."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no {compiler} (apt install gcc libc6-dev)"
    headers = sysconfig.get_path("include")
    return "" if Path(headers, "Python.h").exists() else f"no Python.h in {headers} (apt install python3-dev)"


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock: of two builds at once the second waits, and finds the work done."""
    PLACE.parent.mkdir(exist_ok=True)
    with (PLACE.parent / ".compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(level: int) -> None:
    """Compile if need be, and bring what stands beside up to date."""
    wanted = _digest()
    built, _, built_level = STAMP.read_text().partition(" ") if STAMP.exists() else ("", "", "")
    if built != wanted or int(built_level) < level:
        shutil.rmtree(PLACE, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "MQ_COMPILED": "1", "MQ_COMPILED_LEVEL": str(level)}
            command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
            subprocess.run([*command, str(TREE)], env=environment, stdout=sys.stderr, check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(PLACE, [name for name in archive.namelist() if ".dist-info/" not in name])
        STAMP.write_text(f"{wanted} {level}")
    for name in BESIDE:
        shutil.rmtree(PLACE / name, ignore_errors=True)
        shutil.copytree(TREE / name, PLACE / name, ignore=UNTOUCHED)
    for path in TREE.glob("*.*"):
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, PLACE)


def _digest() -> str:
    """The digest of the Python, the sources and the tools that make the build."""
    seen = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    for path in _sources():
        seen.update(f"{path.relative_to(TREE)} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()


def _sources() -> Iterator[Path]:
    yield TREE / "pyproject.toml"
    yield TREE / "tools" / "wheel_hook.py"
    for room in IN_WHEELS:
        yield from sorted(
            path for path in (TREE / room).rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--level", type=int, default=2, help="how far the C compiler optimises, 0 to 3; default 2")
    parser.add_argument("--or-as-it-is", dest="as_it_is", action="store_true", help="run mq as it is if need be")
    options, options.arguments = parser.parse_known_args()
    return options


if __name__ == "__main__":
    main()
