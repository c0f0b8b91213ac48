"""Reading on and on: each micro-batch is a claim of the broker, which is there again after any crash.

Spark calls ``latestOffset(start)`` only once batch `start` is in its commit log: so that is acknowledged there, and the
next batch claimed. ``commit()`` comes a batch late, and not for the last one. After a restart ``partitions`` may come
first: it claims again what Spark had planned. Offsets are numbers of batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mq.client import requests
from mq.client.errors import ClientError, Conflict
from mq.spark import calls
from mq.spark.connection import Connection
from mq.spark.errors import ClaimLost, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import RowMaker

LARGEST_CLAIM: Final = 10_000
"""Messages that the broker puts into one claim."""


@dataclass
class Slice(InputPartition):
    """Places of a claim, from `start` to before `stop`."""

    batch: int
    epoch: int
    start: int
    stop: int


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims batch after batch of a queue.

    Args:
        options: which queue, and under which consumer's name.
        schema: the columns that are wanted.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._epoch = 0
        self._up_to: int | None = None
        self._keeper: _Keeper | None = None
        RowMaker(options.queue, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeper": None}

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where the consumer was, whatever became of Spark's own checkpoint."""
        found = self._run(calls.consumer(self._options.queue, self._options.consumer))
        return self._offset(int(found["acknowledged"]), 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the option ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and no more."""
        self._up_to = int(self._run(calls.consumer(self._options.queue, self._options.consumer))["high"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge what Spark has written, and claim what comes next; `start` where there is nothing."""
        batch = self._batch(start)
        if batch:
            self._acknowledge(batch)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else LARGEST_CLAIM
        options = self._options
        held = self._claim(batch + 1, min(most, LARGEST_CLAIM), options.max_bytes_per_trigger, self._up_to)
        return start if held is None else self._offset(batch + 1, int(held["messages"]))

    def reportLatestOffset(self) -> dict[str, Any]:
        """What is in the queue, for the query's progress."""
        found = self._run(requests.queue_info(self._options.queue))
        return {"ready": found.ready, "leased": found.leased, "delayed": found.delayed}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the claims after `start`, which are claimed again where a lease has ended."""
        slices: list[Slice] = []
        for batch in range(self._batch(start) + 1, self._batch(end) + 1):
            held = self._claim(batch)
            there = 0 if held is None else int(held["messages"])
            planned = int(end["rows"]) if batch == end["batch"] else there
            if there < planned:
                self._lost(f"{planned - there} of {planned} messages of batch {batch} went to somebody else")
            step = max(1, -(-there // self._options.num_partitions))
            slices += [Slice(batch, self._epoch, place, min(place + step, there)) for place in range(0, there, step)]
        return slices

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge a batch, if that has not been done."""
        if self._batch(end):
            self._acknowledge(self._batch(end))

    def stop(self) -> None:
        """Let the lease run out."""
        if self._keeper is not None:
            self._keeper.stop()

    # Executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A slice of a claim: the same rows however often it is read."""
        assert isinstance(partition, Slice)
        options, rows = self._options, RowMaker(self._options.queue, self._schema)
        missing = partition.stop - partition.start
        with Connection(options) as connection:
            call = calls.read_claim(
                options.queue,
                options.consumer,
                partition.batch,
                partition.epoch,
                partition.start,
                partition.stop,
                options.fetch_size,
            )
            for page in connection.pages(call):
                missing -= len(page.messages)
                yield rows.batch(page.messages)
        if missing:
            self._lost(f"{missing} messages of batch {partition.batch} are damaged in the store")

    # How it is done

    def _offset(self, batch: int, rows: int) -> dict[str, Any]:
        return {"consumer": self._options.consumer, "batch": batch, "rows": rows}

    def _batch(self, offset: Mapping[str, Any]) -> int:
        if offset["consumer"] != self._options.consumer:
            raise SparkSourceError(
                f'option "consumer" is {self._options.consumer}, and the checkpoint is that of {offset["consumer"]}: '
                "use another checkpointLocation, or that name"
            )
        return int(offset["batch"])

    def _claim(
        self, batch: int, most: int | None = None, most_bytes: int | None = None, up_to: int | None = None
    ) -> Mapping[str, Any] | None:
        options = self._options
        call = calls.claim(
            options.queue, options.consumer, batch, self._started(), options.lease_seconds, most, most_bytes, up_to
        )
        held: Mapping[str, Any] | None = self._run(call)
        if held is not None:
            self._kept().batch = batch
        return held

    def _acknowledge(self, batch: int) -> None:
        keeper = self._kept()
        if keeper.batch == batch:
            keeper.batch = None
        self._run(calls.acknowledge(self._options.queue, self._options.consumer, batch, self._started()))

    def _started(self) -> int:
        """The epoch of this query: it begins with the first thing that is not mere looking."""
        if not self._epoch:
            self._epoch = int(self._run(calls.start(self._options.queue, self._options.consumer))["epoch"])
        return self._epoch

    def _kept(self) -> _Keeper:
        if self._keeper is None:
            self._keeper = _Keeper(self._options, self._started())
        return self._keeper

    def _run(self, call: Any) -> Any:
        with Connection(self._options) as connection:
            return connection.run(call)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_claim_lost:
            raise ClaimLost(
                f'{what} (queue {self._options.queue}, consumer {self._options.consumer}). Raise "leaseSeconds"; to go '
                'on without them, set the option "failOnClaimLost" to false'
            )


class _Keeper:
    """Renews the lease of the batch that is at work, while the driver lives.

    Attributes:
        batch: its number; None for none.
    """

    def __init__(self, options: Options, epoch: int) -> None:
        self.batch: int | None = None
        self._options = options
        self._epoch = epoch
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="mq-lease", daemon=True).start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()

    def _run(self) -> None:
        options = self._options
        while not self._stopped.wait(options.lease_seconds / 3):
            batch = self.batch
            if batch is None:
                continue
            call = calls.claim(options.queue, options.consumer, batch, self._epoch, options.lease_seconds)
            try:
                with Connection(options) as connection:
                    connection.attempt(call)
            except Conflict:  # acknowledged meanwhile, or taken over: the query finds out itself
                continue
            except ClientError:  # away for a while: the lease has two thirds left, and is had again where it ends
                continue
