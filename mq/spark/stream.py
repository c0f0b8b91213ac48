"""Streaming reads: a micro-batch is one claim of the broker for each queue, and outlasts any crash.

Spark calls ``latestOffset(start)`` only once batch `start` is in its commit log. So ``latestOffset`` acknowledges that
batch, and claims the next. ``commit()`` comes later, and does nothing. After a restart Spark may call ``partitions``
first, which claims again what Spark had planned.

An offset has the number of each queue's batch, the queue's incarnation, and the name of the query's checkpoint.
``initialOffset()`` draws that name, because Spark calls it only for a query without a checkpoint; later offsets carry
it on. The first rows that are read bind the consumer to that checkpoint. Spark commits a batch even when its sink has
skipped it. So each task notes at the broker what it has read, and a batch that was not read whole is not
acknowledged.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from mq.client.errors import ClientError, Conflict, NotFound
from mq.quantities import show_count
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.errors import ClaimLost, QueueGone, SparkSourceError
from mq.spark.options import Options
from mq.spark.rows import RowMaker
from mq.spark.versions import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

logger = logging.getLogger("mq.spark")

LARGEST_CLAIM: Final = 100_000
"""Messages that the broker puts into one claim."""
_MOST_SHARES: Final = 32
"""Parts into which a micro-batch is cut, for queues that have enough to fill one: where they are more, the others have
their turn in the next. Each queue costs requests, and with a thousand queues a message each would not pay for them."""
_TAKE_OVER: Final = 'the option "takeOver" set to true'


@dataclass
class Slice(InputPartition):
    """Places of a claim, from `start` to before `stop`.

    Attributes:
        start: the first place.
        stop: the place after the last.
        of: how many messages the claim had when this was planned.
    """

    queue: str
    batch: int
    epoch: int
    start: int
    stop: int
    of: int
    checkpoint: str
    incarnation: int


@dataclass
class Slices(InputPartition):
    """Slices of several queues, which one task reads one after the other."""

    slices: tuple[Slice, ...]


class MqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims batch after batch of one queue or several.

    A queue is known by its name and its incarnation: one that was deleted and made again is another queue, which has
    none of the messages that were planned of the first.

    Raises:
        InvalidSchema: there are no such columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._checkpoint = uuid.uuid4().hex
        self._known: dict[str, QueueClaims] = {}
        self._up_to: dict[str, tuple[int, int]] | None = None
        self._keeper: _Keeper | None = None
        RowMaker(options.asked_for, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeper": None, "_known": {}}

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where the consumer is, for a query without a checkpoint."""
        return self._offset(self._checkpoint, {queue: _begin(each) for queue, each in self._positions().items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the option ``maxMessagesPerTrigger`` says."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and no more."""
        found = self._positions()
        self._up_to = {queue: (int(each["incarnation"]), int(each["high_watermark"])) for queue, each in found.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acknowledge what Spark has written, and claim what comes next; `start` where there is nothing.

        A batch has the rows of several queues, each its share; what one leaves is had by those after it, and the first
        one is another each time. One request asks how things are in all queues, and a queue without messages needs no
        other.
        """
        before, checkpoint = self._places(start), start["checkpoint"]
        found = {queue: each for queue, each in self._positions().items() if self._is_wanted(queue, each)}
        self._leave_others(before, found.keys(), checkpoint)
        after: dict[str, Mapping[str, Any]] = {}
        again: dict[str, int] = {}
        for queue, position in found.items():
            place = before.get(queue)
            if place is not None and not _is_another(position, place):
                after[queue] = place
            with self._passing_over(queue, after):
                again[queue] = self._of(queue, position).settle(after.get(queue) or _begin(position), checkpoint)
        self._claim_shares(_rotated(list(again), before), again, limit, after, checkpoint)
        return start if after == before else self._offset(checkpoint, after)

    def reportLatestOffset(self) -> dict[str, Any]:
        """How much waits, and since when, for the query's progress."""
        with DaemonConnection(self._options) as connection:
            found = list(connection.positions(self._options.consumer).values())
        return {
            "ready": sum(int(each["ready"]) for each in found),
            "leased": sum(int(each["leased"]) for each in found),
            "delayed": sum(int(each["delayed"]) for each in found),
            "oldestSeconds": max((float(each["oldest_seconds"] or 0.0) for each in found), default=0.0),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the claims that `end` names. A claim whose lease has ended is made again.

        Where there are more queues than ``numPartitions``, a task reads several: else a thousand queues with a message
        each would be a thousand tasks. Offsets alone decide which, so that a batch that is run again has the same
        partitions.
        """
        before, checkpoint = self._places(start), end["checkpoint"]
        planned = {queue: place for queue, place in self._places(end).items() if place != before.get(queue)}
        most = int(end["partitions"])
        parts = -(-most // max(1, len(planned)))
        if len(planned) <= most:
            return [
                slice for queue, place in planned.items() for slice in self._slices(queue, place, checkpoint, parts)
            ]
        groups = evenly({queue: int(place["rows"]) for queue, place in planned.items()}, most)
        found = [
            tuple(slice for queue in group for slice in self._slices(queue, planned[queue], checkpoint, 1))
            for group in groups
        ]
        return [Slices(slices) for slices in found if slices]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: latestOffset acknowledges the batch, if it was read."""

    def stop(self) -> None:
        """Let the leases run out."""
        if self._keeper is not None:
            self._keeper.stop()

    # Executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, or of several, the same ones at each read; notes them as read at the end."""
        assert isinstance(partition, Slice | Slices)
        for slice in partition.slices if isinstance(partition, Slices) else (partition,):
            yield from self._read(slice)

    def _read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        options, rows = self._options.only(partition.queue), RowMaker(partition.queue, self._schema)
        place = (partition.queue, options.consumer, partition.batch, partition.epoch, partition.start, partition.stop)
        missing = partition.stop - partition.start
        with DaemonConnection(options) as connection:
            try:
                for page in connection.pages(calls.read_claim(*place, options.fetch_size, of=partition.of)):
                    missing -= len(page.messages)
                    yield rows.batch(page.messages)
                if missing and options.fail_on_claim_lost:
                    raise ClaimLost(
                        f"found {show_count(missing, 'damaged message')} in batch {partition.batch} (queue "
                        f"{partition.queue}, consumer {options.consumer}). Find the damaged messages with mq "
                        'doctor and remove them, or set the option "failOnClaimLost" to false to remove them '
                        "with this batch"
                    )
                connection.run(calls.note_read(*place, of=partition.of, checkpoint=partition.checkpoint))
            except SparkSourceError as error:
                if not _is_gone(connection, options, partition.incarnation, error):
                    raise
                if options.fail_on_claim_lost:
                    raise _lost_with_queue(options, partition.batch, missing) from error

    # Implementation

    def _positions(self) -> dict[str, Mapping[str, Any]]:
        """How far the consumer is in each queue, by name.

        Raises:
            SparkSourceError: a queue that the options name does not exist, or the user has no right on it.
        """
        with DaemonConnection(self._options) as connection:
            found = connection.positions(self._options.consumer)
            for queue in self._options.queues:
                if queue not in found:  # the daemon says why
                    found[queue] = connection.run(calls.consumer(queue, self._options.consumer))
        return dict(sorted(found.items()))

    def _is_wanted(self, queue: str, position: Mapping[str, Any]) -> bool:
        """Whether the queue was there when a run with availableNow began; always in other runs."""
        if self._up_to is None:
            return True
        return queue in self._up_to and self._up_to[queue][0] == position["incarnation"]

    def _leave_others(self, before: Mapping[str, Mapping[str, Any]], queues: Collection[str], checkpoint: str) -> None:
        """Acknowledge what was read of queues that this query reads no more, if they still exist."""
        left = [queue for queue in before if queue not in queues]
        if not left:
            return
        with DaemonConnection(self._options) as connection:
            found = connection.positions(self._options.consumer, left)
        for queue in left:
            if queue in found and not _is_another(found[queue], before[queue]):
                with suppress(QueueGone):
                    self._of(queue, found[queue]).settle(before[queue], checkpoint)

    @contextmanager
    def _passing_over(self, queue: str, after: dict[str, Mapping[str, Any]]) -> Iterator[None]:
        """A context in which a queue may go: then it is in this batch no more. One that the options name must not."""
        try:
            yield
        except QueueGone:
            if queue in self._options.queues:
                raise
            after.pop(queue, None)

    def _claim_shares(
        self,
        queues: Sequence[str],
        again: Mapping[str, int],
        limit: ReadLimit,
        after: dict[str, Mapping[str, Any]],
        checkpoint: str,
    ) -> None:
        """Claim messages of the queues that have any, and note their new places in `after`."""
        active = [queue for queue in queues if self._known[queue].may_have_messages]
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else LARGEST_CLAIM
        left_bytes = self._options.max_bytes_per_trigger
        least = left // _MOST_SHARES
        for coming, queue in zip(range(len(active), 0, -1), active, strict=True):
            if not left:
                return
            share = min(left, max(-(-left // coming), least))
            share_bytes = None if left_bytes is None else max(1, left_bytes // coming)
            up_to = None if self._up_to is None else self._up_to[queue][1]
            held = None
            with self._passing_over(queue, after):
                held = self._known[queue].claim(checkpoint, min(share, LARGEST_CLAIM), share_bytes, up_to)
            if held is None:
                continue
            rows = int(held["messages"])
            place = {"batch": int(held["batch"]), "rows": rows, "incarnation": self._known[queue].incarnation}
            after[queue] = place | ({"again": again[queue]} if again[queue] else {})
            left = max(0, left - rows)
            if left_bytes is not None and share_bytes is not None:
                left_bytes = max(1, left_bytes - share_bytes)

    def _slices(self, queue: str, place: Mapping[str, Any], checkpoint: str, parts: int) -> list[Slice]:
        """The planned batch of a queue. Its messages are lost if the queue has gone since."""
        try:
            if queue not in self._known:
                with DaemonConnection(self._options.only(queue)) as connection:
                    position = connection.positions(self._options.consumer).get(queue)
                if position is None or _is_another(position, place):
                    raise QueueGone(f"queue {queue} was deleted")
                self._of(queue, position)
            return self._known[queue].slices(place, checkpoint, parts)
        except QueueGone as error:
            self._known.pop(queue, None)
            if self._options.fail_on_claim_lost and int(place["rows"]):
                raise _lost_with_queue(self._options.only(queue), int(place["batch"]), int(place["rows"])) from error
            return []

    def _of(self, queue: str, position: Mapping[str, Any]) -> QueueClaims:
        """The claims of a queue, which knows from now on how things are there."""
        if self._keeper is None:
            self._keeper = _Keeper(self._options)
        claims = self._known.get(queue)
        if claims is None or claims.incarnation != position["incarnation"]:
            claims = self._known[queue] = QueueClaims(self._options.only(queue), self._keeper, position)
        claims.position = position
        return claims

    def _offset(self, checkpoint: str, places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        options = self._options
        offset: dict[str, Any] = {
            "consumer": options.consumer,
            "checkpoint": checkpoint,
            "partitions": options.num_partitions,  # sinks count on the same ones when a batch is run again
        }
        if list(places) == list(options.queues) and len(places) == 1:
            offset |= {"queue": options.queue, **places[options.queue]}
        else:
            offset["queues"] = {queue: dict(place) for queue, place in places.items()}
        return offset

    def _places(self, offset: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """For each queue the number of its batch, and how many rows that has."""
        if offset["consumer"] != self._options.consumer:
            raise SparkSourceError(
                f'option "consumer" is {self._options.consumer}, but the checkpoint was created with the '
                f"consumer {offset['consumer']}. Use another checkpointLocation, or set the option to "
                f"{offset['consumer']}"
            )
        if "queues" in offset:
            return dict(offset["queues"])
        names = ("batch", "rows", "incarnation", "again")
        return {offset["queue"]: {name: offset[name] for name in names if name in offset}}


def evenly(rows: Mapping[str, int], most: int) -> list[list[str]]:
    """Queues in at most `most` groups with about the same number of rows together, in their order."""
    total, done = max(1, sum(rows.values())), 0
    groups: list[list[str]] = [[] for _ in range(most)]
    for queue, count in rows.items():
        groups[min(most - 1, done * most // total)].append(queue)
        done += count
    return [group for group in groups if group]


def _begin(position: Mapping[str, Any]) -> dict[str, Any]:
    """The place of a query that has read nothing of a queue yet."""
    return {"batch": int(position["acknowledged"]), "rows": 0, "incarnation": int(position["incarnation"])}


def _is_another(position: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Whether the queue of `position` is not the one of `place`, but was made after that was deleted."""
    return bool(place["incarnation"] != position["incarnation"])


def _rotated(queues: list[str], before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The queues, with another one first each time."""
    turn = sum(int(place["batch"]) for place in before.values()) % len(queues) if queues else 0
    return [*queues[turn:], *queues[:turn]]


def _is_gone(connection: DaemonConnection, options: Options, incarnation: int, error: SparkSourceError) -> bool:
    """Whether a request failed because its queue was deleted, or deleted and made again."""
    if not isinstance(error.__cause__, NotFound | Conflict):
        return False
    try:
        position = connection.attempt(calls.consumer(options.queue, options.consumer))
    except NotFound:
        return True
    except ClientError:
        return False
    return bool(position["incarnation"] != incarnation)


def _lost_with_queue(options: Options, batch: int, rows: int) -> ClaimLost:
    return ClaimLost(
        f"{show_count(rows, 'message')} of batch {batch} cannot be read, because queue {options.queue} was deleted "
        f"after the batch was planned (consumer {options.consumer} at {options.url}). To continue without them, set "
        'the option "failOnClaimLost" to false'
    )


class QueueClaims:
    """The claims of one queue, in the driver.

    A *place* says how far a query is in the queue: the number of a batch, its rows, the queue's incarnation, and, where
    Spark has to run a batch once more from the same place, how often.

    Every method that asks the daemon raises :class:`QueueGone` if the queue was deleted, also if it was made again.

    Attributes:
        position: how things were in the queue when the daemon was asked last.
    """

    def __init__(self, options: Options, keeper: _Keeper, position: Mapping[str, Any]) -> None:
        self.position = position
        self._options = options
        self._keeper = keeper
        self._epoch = 0
        self._acknowledged = int(position["acknowledged"])
        self._open: int | None = position["batch"]

    @property
    def incarnation(self) -> int:
        """The queue's: a queue of the same name that is made later has another one."""
        return int(self.position["incarnation"])

    @property
    def may_have_messages(self) -> bool:
        """Whether a claim may get any: messages are ready, or a batch is open."""
        if self._epoch not in (0, self.position["epoch"]):
            return True  # another query has begun under this name: the daemon's refusal says so
        is_open = self.position["batch"] is not None and int(self.position["batch"]) > self._acknowledged
        return is_open or int(self.position.get("ready", 1)) > 0

    def settle(self, place: Mapping[str, Any], checkpoint: str) -> int:
        """Acknowledge the batch of `place`. Returns how often it has to be run again: 0 where it was acknowledged.

        Raises:
            SparkSourceError: it was not read, or is not the consumer's batch.
        """
        batch = int(place["batch"])
        if not self._epoch and not self.position["epoch"] and not batch:
            return 0  # an idle queue that was never consumed costs no request, and nothing on the disk
        self._start(checkpoint)
        if batch == self._acknowledged + 1:
            if not self._acknowledge(batch):
                return int(place.get("again", 0)) + 1
        elif batch != self._acknowledged:
            self._check_taken_over(batch)
        return 0

    def claim(
        self,
        checkpoint: str,
        most: int | None = None,
        most_bytes: int | None = None,
        up_to: int | None = None,
    ) -> Mapping[str, Any] | None:
        """Make or renew the claim after the last acknowledged one. None when the queue has nothing READY."""
        self._start(checkpoint)
        options, batch = self._options, self._acknowledged + 1
        call = calls.claim(
            options.queue,
            options.consumer,
            batch,
            self._epoch,
            options.lease_seconds,
            most,
            most_bytes,
            up_to,
            regain=True,
        )
        held: Mapping[str, Any] | None = self._run(call)
        self._open = None if held is None else batch
        if held is not None:
            self._keeper.keep(options.queue, batch, self._epoch)
        return held

    def slices(self, place: Mapping[str, Any], checkpoint: str, parts: int) -> list[Slice]:
        """The batch of `place`, in at most `parts` slices. If its lease has ended, it is claimed again."""
        batch, planned = int(place["batch"]), int(place["rows"])
        if not planned:
            return []
        if _is_another(self.position, place):
            raise QueueGone(f"queue {self._options.queue} was deleted and created again")
        self._start(checkpoint)
        if batch != self._acknowledged + 1 or self._open != batch:  # a new claim would have other messages
            self._check_taken_over(batch)
            return []
        held = self.claim(checkpoint)
        there = 0 if held is None else int(held["messages"])
        if there < planned and self._options.fail_on_claim_lost:
            raise self._lost(batch, planned, planned - there, held or {})
        step = max(1, -(-there // parts))
        return [
            Slice(
                self._options.queue,
                batch,
                self._epoch,
                start,
                min(start + step, there),
                there,
                checkpoint,
                self.incarnation,
            )
            for start in range(0, there, step)
        ]

    # Implementation

    def _acknowledge(self, batch: int) -> bool:
        """Whether the batch is acknowledged. False where it was not read, or is not open, and the query may go on from
        where the consumer is."""
        options = self._options
        self._keeper.let_go(options.queue)
        try:
            self._remove(batch)
        except QueueGone:
            raise
        except SparkSourceError as error:
            found = self._ask()
            if not isinstance(error.__cause__, Conflict) or found["epoch"] != self._epoch:
                raise
            if found["batch"] != batch:
                self._check_taken_over(batch)
                return False
            if not options.take_over:
                raise SparkSourceError(
                    f"batch {batch} is in Spark's commit log, but this query read only {found['read']} of its "
                    f"{found['messages']} rows: either the sink skipped the batch (as a file sink does if its "
                    "folder contains the _spark_metadata of another checkpoint), or foreachBatch did not "
                    "read all rows. Nothing was removed from the queue. Write to another folder, or change "
                    f"foreachBatch so that it reads all rows. Then restart the query with {_TAKE_OVER} to read the "
                    f"batch again (queue {options.queue} at {options.url})"
                ) from error
            return False
        self._acknowledged = batch
        return True

    def _remove(self, batch: int) -> None:
        """Acknowledge a batch, and go on until all of it is removed: no request waits for more than a part of it."""
        options = self._options
        call = calls.acknowledge(options.queue, options.consumer, batch, self._epoch, self._within)
        while left := self._run(call):
            logger.warning(
                "the daemon has not yet removed %s of batch %d (queue %s at %s)",
                show_count(left, "message"),
                batch,
                options.queue,
                options.url,
            )

    @property
    def _within(self) -> float:
        """Seconds after which the daemon answers that it is not done: well before the request is given up."""
        return self._options.timeout_seconds / 4

    def _start(self, checkpoint: str) -> None:
        """Begin this query's epoch, before the first request that changes something."""
        if self._epoch:
            return
        options = self._options
        try:
            call = calls.start(
                options.queue, options.consumer, checkpoint, take_over=options.take_over, within=self._within
            )
            found = self._run(call)
        except QueueGone:
            raise
        except SparkSourceError as error:
            if isinstance(error.__cause__, Conflict):
                self._check_checkpoint(self._ask(), checkpoint, error)
            raise
        if found["incarnation"] != self.incarnation:
            raise QueueGone(f"queue {options.queue} was deleted and created again")
        self._epoch, self._acknowledged = int(found["epoch"]), int(found["acknowledged"])
        self._open = found["batch"]
        if found["remaining"]:
            self._remove(self._acknowledged)

    def _check_checkpoint(
        self, position: Mapping[str, Any], checkpoint: str, error: SparkSourceError | None = None
    ) -> None:
        options = self._options
        if options.take_over or position["checkpoint"] in (None, checkpoint):
            return
        raise SparkSourceError(
            f'the consumer {options.consumer} (option "consumer") is in use by a query with a different checkpoint. '
            "Use the checkpointLocation of that query, or another consumer name. If that checkpoint is lost, or if "
            f"this query is to replace the other one, start this query with {_TAKE_OVER}: it then continues where the "
            f"consumer stopped, and may read the most recent rows again (queue {options.queue} at {options.url})"
        ) from error

    def _check_taken_over(self, batch: int) -> None:
        """Fail for a checkpoint whose batch is neither the consumer's last one nor the next, unless taken over."""
        options = self._options
        if options.take_over:
            return
        if batch <= self._acknowledged:
            raise SparkSourceError(
                f"the checkpoint is at batch {batch} of consumer {options.consumer}, but the consumer has "
                f"already acknowledged batch {self._acknowledged}: the checkpoint is an old copy, and the messages "
                "read after the copy was made are no longer in the queue. To continue without these messages, start "
                f"the query with {_TAKE_OVER} (queue {options.queue} at {options.url})"
            )
        raise SparkSourceError(
            f"the checkpoint is at batch {batch} of consumer {options.consumer}, but the daemon has only recorded "
            f"batches up to {self._acknowledged}. Either the consumer was deleted, or the daemon's root folder was "
            f"restored from an old copy. To continue after batch {self._acknowledged}, start the query with "
            f"{_TAKE_OVER} (queue {options.queue} at {options.url})"
        )

    def _ask(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._run(calls.consumer(self._options.queue, self._options.consumer))
        return found

    def _run(self, call: Any) -> Any:
        with DaemonConnection(self._options) as connection:
            try:
                return connection.run(call)
            except SparkSourceError as error:
                if _is_gone(connection, self._options, self.incarnation, error):
                    raise QueueGone(
                        f'option "queue": queue {self._options.queue} at {self._options.url} was deleted'
                    ) from error
                raise

    def _lost(self, batch: int, planned: int, count: int, held: Mapping[str, Any]) -> ClaimLost:
        """Say where messages of a planned batch are, and what can be done about each."""
        options, missing = self._options, dict(held.get("missing", {}))
        with DaemonConnection(options) as connection:
            settings = connection.queue().settings
        dead_letters = [LostDeadLetters(settings, **each) for each in held.get("dead_letters", ())]
        where = [each.where for each in dead_letters]
        where += [f"{number} {_WHERE[fate]}" for fate, number in missing.items() if fate in _WHERE]
        advice = [each.advice for each in dead_letters]
        advice += [_ADVICE[fate] for fate in missing if fate in _ADVICE]
        if held.get("lease_expired"):
            advice.append(
                'The lease of the batch had expired: set "leaseSeconds" to more than the longest time that a '
                "driver may be offline."
            )
        else:
            advice.append("The lease of the batch has not expired.")
        reasons = ", ".join(where) or "their claim no longer exists"
        return ClaimLost(
            f"{count} of the {planned} messages of batch {batch} cannot be read: "
            f"{reasons} (queue {options.queue}, consumer {options.consumer} at {options.url}). "
            f"{' '.join(advice)} To continue, set the option "
            '"failOnClaimLost" to false: messages that are still in the queue are then read in a later batch, and the '
            "others are skipped"
        )


class LostDeadLetters:
    """Dead letters that a claim has lost, in words.

    Args:
        settings: the settings of the claim's queue.
        queue: where the messages are.
        reason: why they were dead-lettered, as the daemon calls it.
        messages: how many.
    """

    def __init__(self, settings: Mapping[str, Any], queue: str, reason: str, messages: int) -> None:
        self._queue = queue
        self._reason = reason
        self._messages = messages
        self._most = settings.get("max_receives")
        self._is_own = queue == settings.get("dead_letter_queue")

    @property
    def where(self) -> str:
        """Their number, their queue and why they are there."""
        kind = "the dead-letter queue" if self._is_own else "queue"
        return f"{self._messages} in {kind} {self._queue} ({_REASONS.get(self._reason, 'dead-lettered')})"

    @property
    def advice(self) -> str:
        """What to do to have them in the batch again."""
        raising = ""
        if self._reason == "receives" and self._most is not None:
            raising = (
                "Each claim of a redelivered message counts as a receive, and the queue has "
                f"max_receives={self._most}. Raise max_receives, then move"
            )
        move = f"{raising or 'Move'} the messages back (mq redrive {self._queue})"
        return f"{move} and restart the query to get them in the batch again."


_REASONS: Final = {
    "receives": "received too often",
    "delivery_limit": "received too often",
    "expired": "expired",
    "dropped": "dropped from the full queue",
    "rejected": "rejected by another consumer",
}
"""Why a message was dead-lettered, in words."""
_WHERE: Final = {
    "removed": "removed by another client",
    "queue_deleted": "deleted together with their dead-letter queue",
    "expired": "expired",
    "dropped": "dropped, because the queue was full",
    "rejected": "rejected by another consumer",
    "leased": "leased by another consumer",
    "delayed": "delayed",
    "ready": "in the queue again",
}
"""Where a message is that a claim has lost, in words; dead letters say it themselves."""
_ADVICE: Final = {
    "removed": "Messages that expired before the daemon was last started are counted as removed.",
    "leased": "Restart the query after the other consumer has requeued its messages to get them in the batch again.",
    "delayed": "Restart the query after the delay to get the delayed messages in the batch again.",
    "ready": "Restart the query to get them in the batch again.",
}
"""What to do about each, or what else it may mean."""


class _Keeper:
    """Renews the leases of open batches, in a thread, for as long as the driver lives."""

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
