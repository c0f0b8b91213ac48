"""Reading on and on: each micro-batch is a claim of the broker, which is there again after any crash.

Spark calls ``latestOffset(start)`` only once batch `start` is in its commit log: so that is acknowledged there, and the
next batch claimed. ``commit()`` comes after that, and has nothing to do. After a restart ``partitions`` may come first:
it claims again what Spark had planned.

An offset has the number of a batch and the name of the query's checkpoint. ``initialOffset()`` draws that name, since
Spark asks for one only where it has no checkpoint, and the later offsets carry it on; with the first rows that are read
the consumer goes with that checkpoint. Spark commits a batch also when its sink has skipped it, so each task notes at
the broker what it has read, and a batch of which not all was read is not acknowledged.
"""

from __future__ import annotations

import threading
import uuid
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
from mq.spark.connection import DaemonConnection
from mq.spark.errors import ClaimLost, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import RowMaker

LARGEST_CLAIM: Final = 10_000
"""Messages that the broker puts into one claim."""
_TAKE_OVER: Final = 'the option "takeOver" set to true'


@dataclass
class Slice(InputPartition):
    """Places of a claim, from `start` to before `stop`.

    Attributes:
        batch: the claim's number.
        epoch: of the query.
        start: the first place.
        stop: the place after the last.
        of: how many messages the claim had when this was planned.
        checkpoint: the query's; None where it has offsets of before checkpoints had names.
    """

    batch: int
    epoch: int
    start: int
    stop: int
    of: int
    checkpoint: str | None


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
        self._checkpoint = uuid.uuid4().hex
        self._epoch = 0
        self._acknowledged = 0
        self._up_to: int | None = None
        self._keeper: _Keeper | None = None
        RowMaker(options.queue, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeper": None}

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where the consumer is, for a query without a checkpoint."""
        return self._offset(self._checkpoint, int(self._standing()["acknowledged"]), 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the option ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and no more."""
        self._up_to = int(self._standing()["high"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge what Spark has written, and claim what comes next; `start` where there is nothing."""
        batch = self._batch(start)
        self._start(start)
        again = 0
        if batch == self._acknowledged + 1:
            if not self._acknowledge(batch):
                again = int(start.get("again", 0)) + 1
        elif batch != self._acknowledged:
            self._check_taken_over(batch)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else LARGEST_CLAIM
        batch = self._acknowledged + 1
        held = self._claim(batch, min(most, LARGEST_CLAIM), self._options.max_bytes_per_trigger, self._up_to)
        if held is None:
            return start
        return self._offset(start.get("checkpoint"), batch, int(held["messages"]), again)

    def reportLatestOffset(self) -> dict[str, Any]:
        """What is in the queue, for the query's progress."""
        found = self._run(requests.queue_info(self._options.queue))
        return {"ready": found.ready, "leased": found.leased, "delayed": found.delayed}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the claim that `end` is, which is claimed again where its lease has ended."""
        batch, planned = self._batch(end), int(end["rows"])
        if start == end or not planned:
            return []
        self._start(end)
        if batch != self._acknowledged + 1:
            self._check_taken_over(batch)
            return []
        held = self._claim(batch)
        there = 0 if held is None else int(held["messages"])
        if there < planned:
            self._lost(f"{planned - there} of {planned} messages of batch {batch} went to somebody else")
        step = max(1, -(-there // int(end.get("partitions", self._options.num_partitions))))
        checkpoint = end.get("checkpoint")
        return [
            Slice(batch, self._epoch, place, min(place + step, there), there, checkpoint)
            for place in range(0, there, step)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: latestOffset has acknowledged that batch, if it was read."""

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
        with DaemonConnection(options) as connection:
            call = calls.read_claim(
                options.queue,
                options.consumer,
                partition.batch,
                partition.epoch,
                partition.start,
                partition.stop,
                options.fetch_size,
                of=partition.of,
            )
            for page in connection.pages(call):
                missing -= len(page.messages)
                yield rows.batch(page.messages)
            if missing:
                self._lost(f"{missing} messages of batch {partition.batch} are damaged in the store")
            connection.run(
                calls.note_read(
                    options.queue,
                    options.consumer,
                    partition.batch,
                    partition.epoch,
                    partition.start,
                    partition.stop,
                    of=partition.of,
                    checkpoint=partition.checkpoint,
                )
            )

    # How it is done

    def _offset(self, checkpoint: str | None, batch: int, rows: int, again: int = 0) -> dict[str, Any]:
        """`again` tells a batch that Spark has to run once more from the same one before."""
        options = self._options
        offset = {
            "consumer": options.consumer,
            "batch": batch,
            "rows": rows,
            "partitions": options.num_partitions,  # a batch that is run again has the same ones, for sinks count on it
        }
        more = {"checkpoint": checkpoint, "again": again}
        return offset | {name: value for name, value in more.items() if value}

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
            options.queue, options.consumer, batch, self._epoch, options.lease_seconds, most, most_bytes, up_to
        )
        held: Mapping[str, Any] | None = self._run(call)
        if held is not None:
            self._kept().batch = batch
        return held

    def _acknowledge(self, batch: int) -> bool:
        """False where it was not read, or is no claim, and the query goes on from where the consumer is."""
        keeper = self._kept()
        if keeper.batch == batch:
            keeper.batch = None
        options = self._options
        try:
            self._run(calls.acknowledge(options.queue, options.consumer, batch, self._epoch))
        except SparkSourceError as error:
            found = self._standing()
            if not isinstance(error.__cause__, Conflict) or found["epoch"] != self._epoch:
                raise
            if found["batch"] != batch:
                self._check_taken_over(batch)
                return False
            if not options.take_over:
                raise SparkSourceError(
                    f"batch {batch} is in Spark's commit log, and only {found['read']} of its {found['messages']} rows "
                    "were read by this query: the sink has skipped it, as a file sink does whose folder has the "
                    "_spark_metadata of another checkpoint, or foreachBatch has not read all of it. Nothing was "
                    "removed from the queue. Write to another folder, or read all rows, and start again with "
                    f"{_TAKE_OVER}: then the batch is read once more {self._where()}"
                ) from error
            return False
        self._acknowledged = batch
        return True

    def _start(self, offset: Mapping[str, Any]) -> None:
        """Begin this query's epoch, with the first thing that is not mere looking."""
        if self._epoch:
            return
        options, checkpoint = self._options, offset.get("checkpoint")
        try:
            found = self._run(calls.start(options.queue, options.consumer, checkpoint, take_over=options.take_over))
        except SparkSourceError as error:
            if isinstance(error.__cause__, Conflict) and self._standing()["checkpoint"] not in (None, checkpoint):
                raise SparkSourceError(
                    f'option "consumer": {options.consumer} goes with another checkpoint than this query. Give it that '
                    "checkpointLocation, or another name. If the other one is lost, or this query is to replace that "
                    f"one, start it with {_TAKE_OVER}: it goes on from where the consumer is, and rows that were read "
                    f"last may come again {self._where()}"
                ) from error
            raise
        self._epoch, self._acknowledged = int(found["epoch"]), int(found["acknowledged"])

    def _check_taken_over(self, batch: int) -> None:
        """A checkpoint is at a batch that is neither the consumer's last one nor the next."""
        if self._options.take_over:
            return
        here = f"the checkpoint is at batch {batch} of consumer {self._options.consumer}"
        if batch <= self._acknowledged:
            raise SparkSourceError(
                f"{here}, which has acknowledged batch {self._acknowledged}: it is an old copy, and what was read "
                f"after it is no longer in the queue. To go on without that, start with {_TAKE_OVER} {self._where()}"
            )
        raise SparkSourceError(
            f"{here}, whose last batch is {self._acknowledged}: the queue was made anew, the consumer was deleted, or "
            f"the daemon's root is an old copy. To go on from there, start with {_TAKE_OVER} {self._where()}"
        )

    def _standing(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._run(calls.consumer(self._options.queue, self._options.consumer))
        return found

    def _where(self) -> str:
        return f"(queue {self._options.queue} at {self._options.url})"

    def _kept(self) -> _Keeper:
        if self._keeper is None:
            self._keeper = _Keeper(self._options, self._epoch)
        return self._keeper

    def _run(self, call: Any) -> Any:
        with DaemonConnection(self._options) as connection:
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
                with DaemonConnection(options) as connection:
                    connection.attempt(call)
            except Conflict:  # acknowledged meanwhile, or taken over: the query finds out itself
                continue
            except ClientError:  # away for a while: the lease has two thirds left, and is had again where it ends
                continue
