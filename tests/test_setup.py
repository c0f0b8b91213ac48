"""``make setup`` says what to install where Python's own modules are missing, as on Debian without python3-venv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent

PYTHON = """#!/bin/bash
case "$*" in
    *"import sys"*) ;;
    --version) echo "Python 3.11.2" ;;
    *"import MISSING"*) exit 1 ;;
    *"import "*) ;;
    *"-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
    *) exit 1 ;;
esac
"""


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_setup_names_the_package_when_python_has_no_venv(tmp_path: Path, module: str) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(TREE / "tools" / "setup.sh", tmp_path / "tools")
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("MISSING", module))
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "tools/setup.sh"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"has no module {module}; install it with: apt install python3-venv\n")
