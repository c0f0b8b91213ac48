"""Builds a package for Debian and its kin: mq with all it needs in /usr/lib/mq, its unit, man pages and completions.

Usage: python tools/debian.py FOLDER

Python is the distribution's own, of any version from 3.11 on. mq-native is in the package, compiled by this machine's C
compiler for its architecture; it fits each of these Pythons (abi3). Where nothing can be compiled the package goes
without it, says so, and is for all architectures. It is the same, byte for byte, wherever it is built from the same
tree and pins, by the same compiler if there is one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import dist
import manual

import mq

CONTROL = """\
Package: mq
Version: {version}
Architecture: {architecture}
Maintainer: mq contributors <mq@localhost>
Depends: {depends}
Recommends: openssl
Suggests: bash-completion
Section: net
Priority: optional
Installed-Size: {size}
Description: durable message queue, as plain as files
 A queue is a folder, and a message a file in it. HTTP and AMQP 0-9-1 in front.
 What mq has answered with success survives the loss of power.
"""


class Fit(NamedTuple):
    """Where a package runs: its architecture and what it depends on, as dpkg writes them."""

    architecture: str
    depends: str


ANY_MACHINE: Final = Fit("all", "python3 (>= 3.11)")

PROGRAM = """\
#!/usr/bin/python3 -I
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "lib", "mq"))
from {module} import main

main(prog_name="{name}")
"""
"""-I: what users have installed, or set in their environment, cannot get in between."""

PROGRAMS = {"mq": "mq.cli", "mq-mover": "mq.cli.mover", "mq-reaper": "mq.cli.reaper"}

DEFAULTS = """\
# Settings of the service mq, one a line: mq(1), below ENVIRONMENT. systemctl restart mq takes them up.
#MQ_ADDRESS=127.0.0.1
#MQ_PORT=8080
"""

SCRIPTS = {
    # It is neither enabled nor started: first the administrator says where it listens, and to whom.
    "postinst": """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    python3 -m compileall -q /usr/lib/mq || true
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers mq.conf; fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl try-restart mq.service || true; fi
fi
""",
    "prerm": """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now mq.service || true; fi
find /usr/lib/mq -name __pycache__ -prune -exec rm -r {} +
""",
    # Messages are not the package's to delete: /var/lib/mq stays, when it is purged, too.
    "postrm": """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
""",
}


def main(folder: Path) -> None:
    """Build the package into `folder`."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980-01-01, as the one-file program
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        packages = root / "usr" / "lib" / "mq"
        dist.gather(Path(scratch) / "wheels", packages)
        fit = add_native(Path(scratch) / "native", packages) if can_compile() else ANY_MACHINE
        furnish(root, fit)
        package = folder / f"mq_{mq.__version__}_{fit.architecture}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, package], check=True, capture_output=True)
    if fit is ANY_MACHINE:
        print("without mq-native, as nothing can be compiled here: apt install gcc libc6-dev python3-dev")
    print(f"{package}: {package.stat().st_size:,} bytes")


def can_compile() -> bool:
    """Whether there are a C compiler and the headers of this Python."""
    return shutil.which(compiler()) is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


def compiler() -> str:
    """The C compiler that Python would take."""
    command: str = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shlex.split(command)[0]


def add_native(scratch: Path, packages: Path) -> Fit:
    """Compile mq-native into `packages`, from a copy: in its tree may be what was compiled with other flags.

    Returns:
        Where it runs.
    """
    tree = dist.TREE / "plugins" / "mq-native"
    shutil.copytree(tree, scratch / "tree", ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so", "tests"))
    # Python's own would write down where this machine's Python is (-rpath) and the sources are (debug information).
    os.environ["LDSHARED"] = f"{compiler()} -shared -s"
    wheel = dist.build_wheel(scratch, scratch / "tree", "--no-isolation")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    dist.forget_machine(packages)
    (module,) = packages.glob("mq_native/*.abi3.so")
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", module.read_bytes())
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    asked = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    return Fit(asked.stdout.strip(), f"{ANY_MACHINE.depends}, libc6 (>= {major}.{minor})")


def furnish(root: Path, fit: Fit) -> None:
    """Put all but the packages themselves below `root`: programs, unit, manual, and what dpkg reads."""
    for name, module in PROGRAMS.items():
        put(root / "usr" / "bin" / name, PROGRAM.format(name=name, module=module), 0o755)
    put(root / "etc" / "default" / "mq", DEFAULTS)
    deploy = dist.TREE / "deploy" / "systemd"
    put(root / "usr" / "lib" / "systemd" / "system" / "mq.service", (deploy / "mq.service").read_text())
    put(root / "usr" / "lib" / "sysusers.d" / "mq.conf", (deploy / "mq.conf").read_text())
    manual.main(root / "usr" / "share")
    put(root / "usr" / "share" / "doc" / "mq" / "copyright", (dist.TREE / "LICENSE").read_text())
    control = root / "DEBIAN"
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    put(control / "control", CONTROL.format(version=mq.__version__, size=size, **fit._asdict()))
    put(control / "conffiles", "/etc/default/mq\n")
    for name, text in SCRIPTS.items():
        put(control / name, text, 0o755)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        elif not path.stat().st_mode & 0o100 or path.is_relative_to(root / "usr" / "lib" / "mq"):
            path.chmod(0o644)


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """A file with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


if __name__ == "__main__":
    if shutil.which("dpkg-deb") is None:
        raise SystemExit("it takes dpkg-deb: apt install dpkg")
    main(Path(sys.argv[1]))
