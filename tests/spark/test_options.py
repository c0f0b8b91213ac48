"""Options: unknown and wrong ones are refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cases import for_each

pytest.importorskip("pyspark")

from mq.spark import register
from mq.spark.errors import InvalidOption, SparkSourceError
from mq.spark.options import READ, READ_STREAM, TABLE, WRITE, Options, read_options
from mq.spark.source import MqDataSource, named_source
from tests.e2e.daemon import TREE


def test_a_time_without_a_zone_is_utc() -> None:
    times = ("1970-01-01", "1970-01-01T00:00:01.5", "1970-01-01T01:00:01.5+01:00", "1970-01-01T00:00:01.5Z")
    found = [read_options({"queue": "q", "startingTime": time}).starting_time for time in times]
    assert found == [0, 1_500_000, 1_500_000, 1_500_000]


def test_rows_may_say_where_they_go() -> None:
    assert read_options({}, WRITE).queues == ()
    assert read_options({"queue": "a, b"}, READ).queues == ("a", "b")


def test_what_was_said_in_any_case() -> None:
    options = read_options({"QUEUE": "q", "numpartitions": "7", "failOnClaimLost": "False", "leaseSeconds": "60.5"})
    assert (options.queue, options.num_partitions, options.fail_on_claim_lost) == ("q", 7, False)
    assert options.lease_seconds == 60.5


def test_durations_and_sizes_may_have_units() -> None:
    given = {
        "queue": "q",
        "consumer": "c",
        "leaseSeconds": "1.5h",
        "retrySeconds": "10m",
        "maxBytesPerTrigger": "64MiB",
    }
    options = read_options(given, READ_STREAM)
    assert (options.lease_seconds, options.retry_seconds, options.max_bytes_per_trigger) == (5400, 600, 64 << 20)


def test_missing_options_have_their_defaults() -> None:
    assert read_options({"queue": "q"}, READ) == Options(queue="q")


def test_what_spark_hands_on_means_nothing() -> None:
    assert read_options({"queue": "q", "checkpointLocation": "/x", "path": "/y"}, WRITE) == Options(queue="q")


@for_each(
    "given, way, why",
    [
        ({}, READ, 'option "queue" is missing'),
        ({"queue": "../q"}, READ, 'option "queue" must be'),
        ({"queue": "q", "queu": "q"}, READ, 'unknown option "queu": did you mean "queue"'),
        ({"queue": "q", "nonsense": "1"}, READ, 'unknown option "nonsense"; known: url'),
        ({"queue": "q", "url": "localhost:8080"}, READ, 'option "url" must be http'),
        ({"queue": "q", "url": "http://u:p@localhost"}, READ, "without credentials"),
        ({"queue": "q", "numPartitions": "0"}, READ, 'option "numPartitions" must be a whole number from 1'),
        ({"queue": "q", "numPartitions": "two"}, READ, "got 'two'"),
        ({"queue": "q", "leaseSeconds": "nan", "consumer": "c"}, READ_STREAM, "a duration from 1s to 12h"),
        ({"queue": "q", "includeHeaders": "yes"}, READ, "true or false"),
        ({"queue": "a,b,a"}, READ, "without duplicates"),
        ({"queue": "a,b"}, WRITE, 'for a write, the option "queue" must be the name of a single queue'),
        ({"queue": "a", "queuePattern": "b"}, READ, 'the options "queue" and "queuePattern" cannot be combined'),
        ({"queuePattern": "("}, READ, "a regular expression"),
        ({"queuePattern": "a"}, WRITE, 'option "queuePattern" is only supported for read and readStream'),
        ({"queue": "q", "startingTime": "yesterday"}, READ, 'option "startingTime" must be a time such as'),
        ({"queue": "q", "startingTime": "2026-11-25", "endingTime": "2026-11-24"}, READ, 'option "endingTime" must be'),
        (
            {"queue": "q", "startingTime": "2026-11-25", "endingTime": "2026-11-25"},
            READ,
            'must be later than "startingTime"',
        ),
        ({"queue": "q", "provider": "mq", "option.queue": "q"}, None, "CREATE TEMPORARY VIEW name USING mq"),
        ({"queue": "q", "consumer": "c"}, READ, 'option "consumer" is only supported for readStream, not for read'),
        ({"queue": "q", "batchSize": "10"}, READ_STREAM, 'option "batchSize" is only supported for write'),
        ({"queue": "q"}, READ_STREAM, 'option "consumer" is missing'),
        ({"queue": "q", "user": "u"}, READ, 'options "user" and "password" must be set together'),
        ({"queue": "q", "user": "u", "password": "p", "token": "t"}, READ, 'the option "token" cannot be combined'),
    ],
)
def test_a_wrong_one_is_named(given: dict[str, str], way: str, why: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_options(given, way)
    assert why in str(caught.value)


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(InvalidOption) as caught:
        read_options({"queue": "q", "token": "hush\n"})
    assert "hush" not in str(caught.value)


def test_every_option_has_a_row_on_the_page() -> None:
    page = (TREE / "docs" / "spark.md").read_text()
    for option in TABLE.values():
        assert f"| `{option.name}` |" in page


def test_a_queue_is_not_overwritten() -> None:
    source = MqDataSource({"queue": "q"})
    with pytest.raises(InvalidOption, match="overwrite"):
        source.writer(source.schema(), overwrite=True)


class Session:
    """As much of a session as registering needs."""

    def __init__(self, python: str) -> None:
        self._sc = SimpleNamespace(pythonExec=python)
        self.known: list[type] = []
        self.dataSource = SimpleNamespace(register=self.known.append)


def test_a_session_whose_python_has_no_mq_is_told_which_to_set(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH= exec {sys.executable} -S -I "$@"\n')
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for each in (bare, other):
        each.chmod(0o755)
    for python, why in ((str(bare), "cannot import mq .ModuleNotFoundError"), ("/nowhere/python", "does not exist")):
        session = Session(python)
        with pytest.raises(
            SparkSourceError,
            match=f"Spark uses the Python interpreter {python}, .*{why}.* PYSPARK_PYTHON to {sys.executable}",
        ):
            register(session)
        assert not session.known
    for python in (sys.executable, str(other)):
        session = Session(python)
        register(session)
        assert session.known == [MqDataSource]


def test_a_format_for_certain_queues_is_named_after_them_and_has_their_options() -> None:
    source = named_source({"queue": "orders", "url": "http://127.0.0.1:9", "numPartitions": "3", "token": "secret"})
    assert source.name() == "mq: orders at http://127.0.0.1:9"
    assert read_options(source({}).options).num_partitions == 3
    assert read_options(source({"NUMPARTITIONS": "7"}).options).num_partitions == 7
    assert named_source({"queuePattern": "a.*"}).name() == "mq: a.* at http://127.0.0.1:8080"
    with pytest.raises(InvalidOption, match="did you mean"):
        named_source({"quue": "orders"})
