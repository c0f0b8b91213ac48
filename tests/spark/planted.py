"""Bugs to plant in the data source, each with a test without Spark that has to fail then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.simulation.planting import Bug
from tests.spark import test_connection, test_readers, test_staged


class Fault(NamedTuple):
    """A bug, and the test that finds it: a function of fixtures."""

    bug: Bug
    found_by: Callable[..., Any]


FAULTS: Final = {
    # Reading once
    "a view ends where it ended at first": Fault(
        Bug("MqReader._parts", "[*bounds[:-1], None]", "[*bounds]"),
        test_readers.test_a_batch_read_covers_everything_once,
    ),
    "a snapshot goes on": Fault(
        Bug("MqReader._parts", "[*bounds] if self._options.snapshot else ...", "..."),
        test_readers.test_a_batch_read_of_how_it_was,
    ),
    "a stretch of time has its end in it": Fault(
        Bug("MqReader._within", "pc.less(micros, end)", "pc.less_equal(micros, end)"),
        test_readers.test_a_batch_read_of_a_stretch_of_time,
    ),
    "a stretch of time is all of it": Fault(
        Bug("MqReader.read", "batch if self._takes_all else ...", "batch"),
        test_readers.test_a_batch_read_of_a_stretch_of_time,
    ),
    "only the first of several queues is read": Fault(
        Bug("DaemonConnection.queues", "list(self._options.queues)", "list(self._options.queues)[:1]"),
        test_readers.test_a_batch_read_of_several_queues,
    ),
    "a pattern fits what only begins so": Fault(
        Bug("DaemonConnection.queues", "re.compile(...).fullmatch", "re.compile(...).match"),
        test_readers.test_a_pattern_is_that_of_a_whole_name,
    ),
    # Streams
    "a lease is never renewed": Fault(
        Bug("_Keeper._run", "self._renew(..., batch, epoch)", "None"),
        test_connection.test_leases_are_renewed_while_the_driver_lives,
    ),
    "a batch may have any number of bytes": Fault(
        Bug("MqStreamReader.latestOffset", "claims.claim(..., share_bytes, up_to)", "claims.claim(..., None, up_to)"),
        test_readers.test_a_batch_has_as_many_bytes_as_was_said,
    ),
    "a batch has ten thousand messages at the most": Fault(
        Bug("MqStreamReader.latestOffset", "min(..., LARGEST_CLAIM)", "min(..., 10_000)"),
        test_readers.test_a_batch_may_have_more_than_ten_thousand_messages,
    ),
    "what comes while a run with availableNow goes on is read, too": Fault(
        Bug("MqStreamReader.latestOffset", "claims.claim(..., ..., up_to)", "claims.claim(..., ..., None)"),
        test_readers.test_what_is_there_now_and_no_more,
    ),
    "one queue of several takes all of a batch": Fault(
        Bug("MqStreamReader.latestOffset", "left = max(0, left - rows)", "pass"),
        test_readers.test_a_stream_of_several_queues,
    ),
    "what was read of a queue that is left stays leased": Fault(
        Bug("MqStreamReader._leave", "self._of(queue).settle(place, checkpoint)", "None"),
        test_readers.test_a_stream_of_one_queue_may_be_given_others,
    ),
    "a queue that is gone ends a stream of its pattern": Fault(
        Bug("MqStreamReader._leave", "not isinstance(error.__cause__, NotFound)", "True"),
        test_readers.test_a_stream_of_a_pattern_follows_queues_that_come_and_go,
    ),
    "what was not read is acknowledged": Fault(
        Bug(
            "mq.spark.calls:acknowledge",
            '_target(queue, "consumers", name, "claim", batch=batch, epoch=epoch, if_read="true")',
            '_target(queue, "consumers", name, "claim", batch=batch, epoch=epoch)',
        ),
        test_readers.test_what_was_not_read_is_not_acknowledged,
    ),
    "a batch that is run again has other partitions": Fault(
        Bug(
            "MqStreamReader.partitions",
            'int(end.get("partitions", self._options.num_partitions))',
            "self._options.num_partitions",
        ),
        test_readers.test_a_batch_that_is_run_again_has_the_same_partitions,
    ),
    "an old checkpoint is taken for today's": Fault(
        Bug("QueueClaims._check_taken_over", "self._options.take_over", "True"),
        test_readers.test_a_checkpoint_that_is_older_than_the_consumer,
    ),
    "a query takes over without being told to": Fault(
        Bug("QueueClaims._start", "options.take_over", "True"), test_readers.test_a_consumer_goes_with_its_checkpoint
    ),
    "messages that went to somebody else are passed over": Fault(
        Bug("QueueClaims.slices", "there < planned", "False"),
        test_readers.test_messages_of_a_batch_that_went_to_somebody_else,
    ),
    "damaged messages are removed with the others": Fault(
        Bug("MqStreamReader.read", "missing and options.fail_on_claim_lost", "False"),
        test_readers.test_what_is_damaged_is_neither_lost_to_others_nor_passed_over,
    ),
    "a task that stops halfway has read its slice": Fault(
        Bug(
            "MqStreamReader.read",
            "missing = partition.stop - partition.start",
            """
            missing = partition.stop - partition.start
            with DaemonConnection(options) as connection:
                connection.run(calls.note_read(*place, of=partition.of, checkpoint=partition.checkpoint))
            """,
        ),
        test_readers.test_a_task_that_stops_halfway_has_not_read_its_slice,
    ),
    "what tasks have read is not told": Fault(
        Bug("MqStreamReader.reportLatestOffset", "read += ...", "pass"), test_readers.test_offsets_from_batch_to_batch
    ),
    # Writes
    "a row of the next micro-batch is taken for one of this": Fault(
        Bug("MqStreamWriter.write", "f'{query}/{batch}'", "query"),
        test_connection.test_micro_batches_with_the_same_rows_are_each_stored,
    ),
    "a row that is refused is dropped": Fault(
        Bug("_Publisher.flush", "raise self._refused(line[0], outcome.detail)", "pass"),
        test_readers.test_a_row_that_the_broker_refuses_is_named,
    ),
    "a row that is refused for now is dropped": Fault(
        Bug("_Publisher.flush", "left.append(line)", "pass"), test_readers.test_a_queue_that_stays_full_is_named
    ),
    "of a row's headers only the first goes": Fault(
        Bug("mq.spark.rows:_attributes", "for pair in headers: ...", "for pair in headers[:1]: ..."),
        test_readers.test_headers_and_a_group_go_in_and_out,
    ),
    "of a message's headers only the first comes": Fault(
        Bug("mq.spark.rows:_headers", "texts.items()", "list(texts.items())[:1]"),
        test_readers.test_headers_and_a_group_go_in_and_out,
    ),
    "a group does not come": Fault(
        Bug("mq.spark.rows:_group", "said.get('group')", "None"),
        test_readers.test_headers_and_a_group_go_in_and_out,
    ),
    "two rows that say the same are one": Fault(
        Bug("LineMaker._key", "self._seen[digest] = count + 1", "pass"),
        test_readers.test_a_task_that_writes_again_stores_each_row_once,
    ),
    "two rows with one key go unnoticed": Fault(
        Bug("mq.spark.writers:_finish", "_check_keys(stored)", "pass"),
        test_readers.test_a_task_that_runs_again_repeats_no_key,
    ),
    "rows for many queues go into one": Fault(
        Bug("mq.spark.writers:_publish", "options.only(queue)", "options.only('a')"),
        test_readers.test_each_row_goes_into_the_queue_that_it_names,
    ),
    "rows that are too long together are refused": Fault(
        Bug("_Publisher._sent", "len(lines) == 1", "True"),
        test_readers.test_rows_that_are_too_long_together_go_in_parts,
    ),
    "a write without rows asks for no queue": Fault(
        Bug("mq.spark.writers:_finish", "not rows and options.queue", "False"),
        test_readers.test_a_queue_that_is_missing_or_deleted_is_named,
    ),
    # Staged writes
    "rows are there before their job commits": Fault(
        Bug("mq.spark.writers:_publish", "_Held(job, ...) if options.is_staged else _Direct()", "_Direct()"),
        test_staged.test_nothing_is_seen_before_all_tasks_are_done,
    ),
    "each run of a task counts": Fault(
        Bug("mq.spark.writers:_publish", "_Held(job, ...)", "_Held(job, str(partition))"),
        test_staged.test_of_a_task_that_ran_twice_one_run_counts,
    ),
    "what is aborted stays": Fault(
        Bug("MqWriter.abort", "_abort(..., ..., ...)", "None"),
        test_staged.test_what_is_aborted_leaves_nothing,
    ),
    "what was refused for its keys stays": Fault(
        Bug("mq.spark.writers:_finish", "_abort(..., ...)", "None"),
        test_staged.test_rows_with_one_key_are_refused_and_nothing_is_written,
    ),
    "a job that is done is remembered": Fault(
        Bug("mq.spark.writers:_commit", "connection.run(calls.end_write(..., ...))", "None"),
        test_staged.test_a_job_that_is_done_is_forgotten,
    ),
    "all requests of a task have one number": Fault(
        Bug("_Held.lines", "next(self._numbers)", "0"),
        test_staged.test_rows_that_are_too_long_together_go_in_parts,
    ),
    "another run of a query goes on with the job of the first": Fault(
        Bug("MqStreamWriter.write", "run or ''", "''"),
        test_staged.test_a_micro_batch_whose_job_was_aborted,
    ),
    # The wire
    "a request is not sent again when its connection broke": Fault(
        Bug("DaemonConnection.attempt", "tries.after_failure(is_sent=...)", "None"),
        test_connection.test_a_request_is_sent_again_when_its_connection_broke,
    ),
    "no page is asked for ahead": Fault(
        Bug("DaemonConnection.pages", "self._ask_ahead(call)", "pass"),
        test_connection.test_the_next_page_is_asked_for_before_this_one_is_worked_on,
    ),
    "a page that was asked for ahead is asked for again": Fault(
        Bug("DaemonConnection._ask_ahead", "self._asked = call", "self.close()"),
        test_connection.test_the_next_page_is_asked_for_before_this_one_is_worked_on,
    ),
}
"""Each by what it does, in words."""
