"""What a user meets before Spark starts: the help, and a JAVA_HOME that names no Java."""

from __future__ import annotations

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


def test_java_home_without_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        InvalidSetting, match=rf"^JAVA_HOME is {tmp_path}, which does not contain bin/java\. .* unset it$"
    ):
        provide_java()
    result = CliRunner().invoke(main, ["archive", "q", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith("mq-pipeline: JAVA_HOME is ")
    assert result.stderr.count("\n") == 1


def test_java_home_with_java_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    provide_java()
