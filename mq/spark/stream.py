"""Streaming reads: a micro-batch is one claim of the broker for each queue, and outlasts any crash.

Spark calls ``latestOffset(start)`` only once batch `start` is in its commit log. So ``latestOffset`` acknowledges that
batch, and claims the next. ``commit()`` comes later, and does nothing. After a restart Spark may call ``partitions``
first, which claims again what Spark had planned.

An offset has the number of each queue's batch and the name of the query's checkpoint. ``initialOffset()`` draws that
name, because Spark calls it only for a query without a checkpoint; later offsets carry it on. The first rows that are
read bind the consumer to that checkpoint. Spark commits a batch even when its sink has skipped it. So each task notes
at the broker what it has read, and a batch that was not read whole is not acknowledged.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from mq.client.errors import ClientError, Conflict, NotFound
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import ClaimLost, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import RowMaker
from mq.spark.versions import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

LARGEST_CLAIM: Final = 100_000
"""Messages that the broker puts into one claim."""
_TAKE_OVER: Final = 'the option "takeOver" set to true'


@dataclass
class Slice(InputPartition):
    """Places of a claim, from `start` to before `stop`.

    Attributes:
        queue: the queue.
        batch: the claim's number.
        epoch: of the query.
        start: the first place.
        stop: the place after the last.
        of: how many messages the claim had when this was planned.
        checkpoint: the query's; None where it has offsets of before checkpoints had names.
    """

    queue: str
    batch: int
    epoch: int
    start: int
    stop: int
    of: int
    checkpoint: str | None


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims batch after batch of one queue or several.

    Args:
        options: the queues, and the consumer's name.
        schema: the wanted columns.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._checkpoint = uuid.uuid4().hex
        self._known: dict[str, QueueClaims] = {}
        self._up_to: dict[str, int] | None = None
        self._keeper: _Keeper | None = None
        RowMaker(options.asked_for, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeper": None, "_known": {}}

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where the consumer is, for a query without a checkpoint."""
        return self._offset(self._checkpoint, {queue: self._of(queue).begin() for queue in self._queues()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the option ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and no more."""
        self._up_to = {queue: int(self._of(queue).standing()["high"]) for queue in self._queues()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge what Spark has written, and claim what comes next; `start` where there is nothing.

        A batch has the rows of several queues, each its share; what one leaves is had by those after it, and the first
        one is another each time.
        """
        before, checkpoint = self._places(start), start.get("checkpoint")
        queues = self._queues() if self._up_to is None else sorted(self._up_to)
        turn = sum(int(place["batch"]) for place in before.values()) % len(queues) if queues else 0
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else LARGEST_CLAIM
        left_bytes = self._options.max_bytes_per_trigger
        after = {queue: place for queue, place in before.items() if queue in queues}
        for queue in before.keys() - after.keys():
            self._leave(queue, before[queue], checkpoint)
        for number, queue in enumerate([*queues[turn:], *queues[:turn]]):
            claims, coming = self._of(queue), len(queues) - number
            again = claims.settle(before.get(queue) or claims.begin(), checkpoint)
            if not left:
                continue
            share_bytes = None if left_bytes is None else max(1, left_bytes // coming)
            up_to = None if self._up_to is None else self._up_to[queue]
            held = claims.claim(min(-(-left // coming), LARGEST_CLAIM), share_bytes, up_to)
            if held is None:
                continue
            rows = int(held["messages"])
            after[queue] = {"batch": int(held["batch"]), "rows": rows} | ({"again": again} if again else {})
            left = max(0, left - rows)
            if left_bytes is not None and share_bytes is not None:
                left_bytes = max(1, left_bytes - share_bytes)
        return start if after == before else self._offset(checkpoint, after)

    def reportLatestOffset(self) -> dict[str, Any]:
        """How much waits, and since when, for the query's progress."""
        found, read = [], 0
        for queue in self._queues():
            with DaemonConnection(self._options.only(queue)) as connection:
                found.append(connection.queue())
            read += int(self._of(queue).standing()["read"])
        ages = [each.oldest_seconds for each in found if each.oldest_seconds is not None]
        return {
            "ready": sum(each.ready for each in found),
            "leased": sum(each.leased for each in found),
            "delayed": sum(each.delayed for each in found),
            "oldestSeconds": max(ages, default=0.0),
            "read": read,
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the claims that `end` names. A claim whose lease has ended is made again."""
        before, checkpoint = self._places(start), end.get("checkpoint")
        planned = {queue: place for queue, place in self._places(end).items() if place != before.get(queue)}
        parts = -(-int(end.get("partitions", self._options.num_partitions)) // max(1, len(planned)))
        return [slice for queue, place in planned.items() for slice in self._of(queue).slices(place, checkpoint, parts)]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: latestOffset acknowledges the batch, if it was read."""

    def stop(self) -> None:
        """Let the leases run out."""
        if self._keeper is not None:
            self._keeper.stop()

    # Executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, the same ones at each read; notes them as read at the end."""
        assert isinstance(partition, Slice)
        options, rows = self._options.only(partition.queue), RowMaker(partition.queue, self._schema)
        place = (partition.queue, options.consumer, partition.batch, partition.epoch, partition.start, partition.stop)
        missing = partition.stop - partition.start
        with DaemonConnection(options) as connection:
            for page in connection.pages(calls.read_claim(*place, options.fetch_size, of=partition.of)):
                missing -= len(page.messages)
                yield rows.batch(page.messages)
            if missing and options.fail_on_claim_lost:
                raise ClaimLost(
                    f"{missing} messages of batch {partition.batch} are damaged in the store, and stay there (queue "
                    f"{partition.queue}, consumer {options.consumer}). mq doctor shows which; remove them, or, to have "
                    'them removed with this batch, set the option "failOnClaimLost" to false'
                )
            connection.run(calls.note_read(*place, of=partition.of, checkpoint=partition.checkpoint))

    # Implementation

    def _queues(self) -> list[str]:
        with DaemonConnection(self._options) as connection:
            return connection.queues()

    def _leave(self, queue: str, place: Mapping[str, Any], checkpoint: str | None) -> None:
        """Acknowledge what was read of a queue that this query reads no more, if the queue is still there."""
        try:
            self._of(queue).settle(place, checkpoint)
        except SparkSourceError as error:
            if not isinstance(error.__cause__, NotFound):
                raise

    def _of(self, queue: str) -> QueueClaims:
        if self._keeper is None:
            self._keeper = _Keeper(self._options)
        if queue not in self._known:
            self._known[queue] = QueueClaims(self._options.only(queue), self._keeper)
        return self._known[queue]

    def _offset(self, checkpoint: str | None, places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        options = self._options
        offset: dict[str, Any] = {
            "consumer": options.consumer,
            "partitions": options.num_partitions,  # sinks count on the same ones when a batch is run again
        }
        if list(places) == list(options.queues) and len(places) == 1:
            offset |= {"queue": options.queue, **places[options.queue]}
        else:
            offset["queues"] = {queue: dict(place) for queue, place in places.items()}
        return offset | ({"checkpoint": checkpoint} if checkpoint else {})

    def _places(self, offset: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """For each queue the number of its batch, and how many rows that has."""
        if offset["consumer"] != self._options.consumer:
            raise SparkSourceError(
                f'option "consumer" is {self._options.consumer}, and the checkpoint is that of {offset["consumer"]}: '
                "use another checkpointLocation, or that name"
            )
        if "queues" in offset:
            return dict(offset["queues"])
        queue = offset.get("queue") or self._options.queue  # offsets of earlier releases are those of one queue
        if not queue or "," in queue:
            raise SparkSourceError(
                f'the checkpoint does not say of which queue it is: run the query once more with the option "queue" '
                f"as it was, before it reads {self._options.asked_for}"
            )
        return {queue: {name: offset[name] for name in ("batch", "rows", "again") if name in offset}}


class QueueClaims:
    """The claims of one queue, in the driver.

    A *place* says how far a query is in the queue: the number of a batch, its rows, and, where Spark has to run a batch
    once more from the same place, how often.

    Args:
        options: the queue, and the consumer's name.
        keeper: renews the leases.
    """

    def __init__(self, options: Options, keeper: _Keeper) -> None:
        self._options = options
        self._keeper = keeper
        self._epoch = 0
        self._acknowledged = 0

    def begin(self) -> dict[str, Any]:
        """The place of a query without a checkpoint."""
        return {"batch": int(self.standing()["acknowledged"]), "rows": 0}

    def standing(self) -> Mapping[str, Any]:
        """How far the consumer is."""
        found: Mapping[str, Any] = self._run(calls.consumer(self._options.queue, self._options.consumer))
        return found

    def settle(self, place: Mapping[str, Any], checkpoint: str | None) -> int:
        """Acknowledge the batch of `place`. Returns how often it has to be run again: 0 where it was acknowledged.

        Raises:
            SparkSourceError: it was not read, or is not the consumer's batch.
        """
        batch = int(place["batch"])
        self._start(checkpoint)
        if batch == self._acknowledged + 1:
            if not self._acknowledge(batch):
                return int(place.get("again", 0)) + 1
        elif batch != self._acknowledged:
            self._check_taken_over(batch)
        return 0

    def claim(
        self, most: int | None = None, most_bytes: int | None = None, up_to: int | None = None
    ) -> Mapping[str, Any] | None:
        """Make or renew the claim after the last acknowledged one. None when the queue has nothing READY."""
        options, batch = self._options, self._acknowledged + 1
        call = calls.claim(
            options.queue, options.consumer, batch, self._epoch, options.lease_seconds, most, most_bytes, up_to
        )
        held: Mapping[str, Any] | None = self._run(call)
        if held is not None:
            self._keeper.keep(options.queue, batch, self._epoch)
        return held

    def slices(self, place: Mapping[str, Any], checkpoint: str | None, parts: int) -> list[Slice]:
        """The batch of `place`, in at most `parts` slices. If its lease has ended, it is claimed again."""
        batch, planned = int(place["batch"]), int(place["rows"])
        if not planned:
            return []
        self._start(checkpoint)
        if batch != self._acknowledged + 1:
            self._check_taken_over(batch)
            return []
        held = self.claim()
        there = 0 if held is None else int(held["messages"])
        if there < planned:
            self._lost(f"{planned - there} of {planned} messages of batch {batch} went to other consumers")
        step = max(1, -(-there // parts))
        return [
            Slice(self._options.queue, batch, self._epoch, start, min(start + step, there), there, checkpoint)
            for start in range(0, there, step)
        ]

    # Implementation

    def _acknowledge(self, batch: int) -> bool:
        """Whether the batch is acknowledged. False where it was not read, or is not open, and the query may go on from
        where the consumer is."""
        options = self._options
        self._keeper.let_go(options.queue)
        try:
            self._run(calls.acknowledge(options.queue, options.consumer, batch, self._epoch))
        except SparkSourceError as error:
            found = self.standing()
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

    def _start(self, checkpoint: str | None) -> None:
        """Begin this query's epoch, before the first request that changes something."""
        if self._epoch:
            return
        options = self._options
        try:
            found = self._run(calls.start(options.queue, options.consumer, checkpoint, take_over=options.take_over))
        except SparkSourceError as error:
            if isinstance(error.__cause__, Conflict) and self.standing()["checkpoint"] not in (None, checkpoint):
                raise SparkSourceError(
                    f'option "consumer": {options.consumer} goes with another checkpoint than this query. Give it that '
                    "checkpointLocation, or another name. If the other one is lost, or this query is to replace that "
                    f"one, start it with {_TAKE_OVER}: it goes on from where the consumer is, and rows that were read "
                    f"last may come again {self._where()}"
                ) from error
            raise
        self._epoch, self._acknowledged = int(found["epoch"]), int(found["acknowledged"])

    def _check_taken_over(self, batch: int) -> None:
        """Fail for a checkpoint whose batch is neither the consumer's last one nor the next, unless taken over."""
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

    def _where(self) -> str:
        return f"(queue {self._options.queue} at {self._options.url})"

    def _run(self, call: Any) -> Any:
        with DaemonConnection(self._options) as connection:
            return connection.run(call)

    def _lost(self, what: str) -> None:
        options = self._options
        if not options.fail_on_claim_lost:
            return
        with DaemonConnection(options) as connection:
            most = connection.queue().settings.get("max_receives")
        died = (
            f" The queue has max_receives={most}, and each claim of a message that had come back counts: those that "
            "were handed out as often are among its dead letters by now. Raise that, too, and redrive them."
            if most
            else ""
        )
        raise ClaimLost(
            f'{what} (queue {options.queue}, consumer {options.consumer}).{died} Raise "leaseSeconds"; to go on '
            'without them, set the option "failOnClaimLost" to false'
        )


class _Keeper:
    """Renews the leases of open batches, in a thread, for as long as the driver lives.

    Args:
        options: the length of a lease, and the daemon.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._held: dict[str, tuple[int, int]] = {}
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="mq-lease", daemon=True).start()

    def keep(self, queue: str, batch: int, epoch: int) -> None:
        """Renew the lease of that batch."""
        self._held[queue] = batch, epoch

    def let_go(self, queue: str) -> None:
        """Renew that queue's no more."""
        self._held.pop(queue, None)

    def stop(self) -> None:
        """Renew nothing more."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._options.lease_seconds / 3):
            for queue, (batch, epoch) in list(self._held.items()):
                self._renew(self._options.only(queue), batch, epoch)

    def _renew(self, options: Options, batch: int, epoch: int) -> None:
        call = calls.claim(options.queue, options.consumer, batch, epoch, options.lease_seconds)
        try:
            with DaemonConnection(options) as connection:
                connection.attempt(call)
        except Conflict:  # acknowledged meanwhile, or taken over, which the query's next request finds
            return
        except ClientError:  # two thirds of the lease are left, and `slices` claims again what has ended
            return
