"""What is in deploy/ fits the programs that read it, and what mq says of itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent
SYSTEMD = TREE / "deploy" / "systemd"
EXPOSED_AT_MOST = 30
"""Tenths of what `systemd-analyze security` calls exposure; 96 is a unit that says nothing."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "mq.service"
    text = (SYSTEMD / "mq.service").read_text()
    assert "ExecStart=/usr/bin/mq serve\n" in text
    unit.write_text(text.replace("/usr/bin/mq", sys.executable))  # it asks whether the program is there
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
def test_the_unit_is_shut_in() -> None:
    judged = run(
        "systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSED_AT_MOST}", SYSTEMD / "mq.service"
    )
    assert judged.returncode == 0, judged.stdout


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")
def test_the_unit_runs_as_the_user_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "mq.conf")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in (tmp_path / "etc" / "passwd").read_text().splitlines() if line.startswith("mq:")]
    assert line.split(":")[5] == "/var/lib/mq"
    assert re.findall(r"^(?:User|Group)=(.+)$", (SYSTEMD / "mq.service").read_text(), re.MULTILINE) == ["mq", "mq"]
