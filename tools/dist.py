"""Builds the wheel of mq, and mq.pyz: the whole program with all it needs in one file, for any Python
from 3.11 on. The plugin for etcd, which needs nothing compiled, is in it, too.

Usage: python tools/dist.py FOLDER

The file is the same, byte for byte, wherever and whenever it is built from the same tree and pins: names are
sorted, times and permissions fixed, and what pip notes of this machine is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
ENTRY_POINT = "mq.cli:main"
SHEBANG = b"#!/usr/bin/env python3\n"

PACKED_PLUGINS = ("mq-etcd",)
"""mq-native fits one kind of processor and one C library, mq-template is there to be copied."""

PURE_FALLBACK = {"markupsafe/_speedups"}
"""Compiled modules that their package works without. They fit one version of Python, so they stay out."""

MACHINE_NOTES = ("bin", *(f"*.dist-info/{name}" for name in ("RECORD", "REQUESTED", "WHEEL", "direct_url.json")))
"""What tells of this machine and its Python: scripts with a path in them and their hashes, tags of wheels."""


def main(folder: Path) -> None:
    """Build both into `folder`."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980-01-01: the first a zip can name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch) / "packages"
        wheel = gather(Path(scratch) / "wheels", packages)
        raw = Path(scratch) / "mq.pyz"
        run("shiv", "--site-packages", str(packages), "--entry-point", ENTRY_POINT, "--reproducible", "-o", str(raw))
        shutil.copy(wheel, folder / wheel.name)
        normalise(raw, folder / "mq.pyz")
    for name in (wheel.name, "mq.pyz"):
        print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")


def build_wheel(folder: Path, tree: Path, *flags: str) -> Path:
    """The wheel of a tree, in a folder of its own. It names the plugins by their versions, not by this tree.

    Hatchling is there already, in the version that ``locked/tools.txt`` pins.
    """
    os.environ["MQ_RELEASE"] = "1"
    run("build", "--wheel", "--no-isolation", *flags, "--outdir", str(folder), str(tree))
    (wheel,) = folder.glob("*.whl")
    return wheel


def gather(folder: Path, packages: Path) -> Path:
    """Install mq, the plugins and what they need, each file by its hash, into `packages`, without anything that fits
    this machine only.

    Returns:
        The wheel of mq itself, in a folder below `folder`.
    """
    plugins = [build_wheel(folder / name, TREE / "plugins" / name) for name in PACKED_PLUGINS]
    wheel = build_wheel(folder / "mq", TREE)
    install = ["install", "--quiet", "--no-compile", "--no-deps", "--target", str(packages)]
    run("pip", *install, "--require-hashes", "--requirement", str(TREE / "locked" / "dist.txt"))
    run("pip", *install, *map(str, (wheel, *plugins)))  # at once: --target replaces a folder that is there
    forget_machine(packages)
    for path in packages.rglob("*.so"):
        module = str(path.relative_to(packages)).partition(".")[0]
        if module not in PURE_FALLBACK:
            raise SystemExit(f"{module} is compiled: one file cannot serve several Pythons with it")
        path.unlink()
    return wheel


def forget_machine(packages: Path) -> None:
    """Take away what tells of this machine."""
    for pattern in MACHINE_NOTES:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def normalise(raw: Path, target: Path) -> None:
    """Copy a zipapp with its entries sorted and their permissions fixed."""
    with zipfile.ZipFile(raw) as source, target.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry in sorted(source.infolist(), key=lambda entry: entry.filename):
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, source.read(entry))
    target.chmod(0o755)


def run(module: str, *arguments: str) -> None:
    """Run a tool of this Python's, or end with its message."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
