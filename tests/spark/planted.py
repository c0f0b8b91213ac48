"""Bugs to plant in the data source and in what it reads of the daemon, each with a test without Spark that has to fail
then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from tests.simulation.planting import Bug
from tests.spark import test_columns, test_connection, test_readers, test_staged


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
        Bug("MqReader._wanted", "pc.less(micros, end)", "pc.less_equal(micros, end)"),
        test_readers.test_a_batch_read_of_a_stretch_of_time,
    ),
    "a stretch of time is all of it": Fault(
        Bug("MqReader._read", "batch if wanted is None else ...", "batch"),
        test_readers.test_a_batch_read_of_a_stretch_of_time,
    ),
    "only the first of several queues is read": Fault(
        Bug("DaemonConnection.queues", "list(self._options.queues)", "list(self._options.queues)[:1]"),
        test_readers.test_a_batch_read_of_several_queues,
    ),
    "a pattern fits what only begins so": Fault(
        Bug("DaemonConnection.positions", "re.compile(...).fullmatch", "re.compile(...).match"),
        test_readers.test_a_pattern_is_that_of_a_whole_name,
    ),
    # Columns, as the source reads them
    "the sequences are each that of the next row": Fault(
        Bug("mq.spark.calls:read_columns", "rest.slice(0, 8 * count)", "rest.slice(8, 8 * count)"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "the times are each that of the next row": Fault(
        Bug("mq.spark.calls:read_columns", "rest.slice(8 * count, 8 * count)", "rest.slice(8 * count + 8, 8 * count)"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "how often a row was received is that of the next": Fault(
        Bug("mq.spark.calls:read_columns", "rest.slice(16 * count, ...)", "rest.slice(16 * count + 4, ...)"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "bodies end where those before them do": Fault(
        Bug(
            "mq.spark.calls:read_columns",
            "_array(pa.binary(), count, ends, bodies)",
            """
            _array(pa.binary(), count, pa.py_buffer(bytes(4) + ends.to_pybytes()[:-4]), bodies)
            """,
        ),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "a row has the headers of the one before": Fault(
        Bug("RowMaker._column", "columns.said.get(str(number), ...)", "columns.said.get(str(number - 1), ...)"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "the last row of a page is dropped": Fault(
        Bug("MqReader._read", "rows.batch(page.messages)", "rows.batch(page.messages)[:-1]"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "the last row of a page of a claim is dropped": Fault(
        Bug("MqStreamReader._read", "rows.batch(page.messages)", "rows.batch(page.messages)[:-1]"),
        test_columns.test_each_row_of_a_claim_has_what_is_its_messages,
    ),
    "a page of a part is followed by none": Fault(
        Bug("mq.spark.calls:_page", """'rel="next"' in link""", "False"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    # Columns, as the daemon gathers them
    "the sequences of a piece are turned round": Fault(
        Bug("ColumnReader.browse", "sequences[:count]", "sequences[:count][::-1]"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "no message was received before": Fault(
        Bug("ColumnReader.browse", "each.meta.receives if isinstance(each, Entry) else 0", "0"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "a queue ends where as much was read as was asked for": Fault(
        Bug("ColumnReader.browse", "count == len(messages) < most", "count == len(messages)"),
        test_columns.test_a_page_of_more_messages_than_are_read_together,
    ),
    "a queue ends where columns stop": Fault(
        Bug("ColumnReader.browse", "count == len(messages) < most", "count < most"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "a message of a claim was not received by it": Fault(
        Bug("ColumnReader.read_claim", "entry.meta.receives + 1", "entry.meta.receives"),
        test_columns.test_each_row_of_a_claim_has_what_is_its_messages,
    ),
    "sequences of a claim are those of the messages before": Fault(
        Bug(
            "ColumnReader.read_claim",
            "[sequence_of(entry) for entry in read]",
            "[0, *(sequence_of(each) for each in read)][:count]",
        ),
        test_columns.test_each_row_of_a_claim_has_what_is_its_messages,
    ),
    "a claim ends where columns stop": Fault(
        Bug("ColumnReader.read_claim", "count == len(entries) and (...)", "True"),
        test_columns.test_each_row_of_a_claim_has_what_is_its_messages,
    ),
    "the store's columns end a row too early": Fault(
        Bug("mq.storage.files.folders:_first", "times[: 8 * length]", "times[8 : 8 * length + 8]"),
        test_columns.test_what_is_damaged_is_left_out_and_the_others_keep_what_is_theirs,
    ),
    "attributes that make no sense are none": Fault(
        Bug(
            "mq.storage.files.folders:_decoded",
            "return _first(place, ..., ...)._replace(attributes=attributes)",
            "continue",
        ),
        test_columns.test_what_is_damaged_is_left_out_and_the_others_keep_what_is_theirs,
    ),
    "a message has the attributes of the first": Fault(
        Bug(
            "mq.storage.files.folders:_decoded",
            "attributes[place] = known[value]",
            """
            attributes[place] = next(iter(known.values()))
            """,
        ),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    # Columns, as the daemon writes them
    "bodies end as if none were before them": Fault(
        Bug("MessagePage._add_block", "self._before += size", "pass"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "bodies read one by one end as if none were before them": Fault(
        Bug("mq.web.columns:block_of_entries", "accumulate(..., initial=base)", "accumulate(..., initial=0)"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "bodies read one by one end where they begin": Fault(
        Bug(
            "mq.web.columns:block_of_entries",
            "list(accumulate(..., initial=base))[1:]",
            """
            list(accumulate(..., initial=base))[:-1]
            """,
        ),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "attributes are those of a row of the first piece": Fault(
        Bug("mq.web.columns:_all_said", "start += block.length", "pass"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "attributes are those of the row before": Fault(
        Bug(
            "mq.web.columns:block_of_columns",
            "{place: written[id(each)] for place, each in attributes.items()}",
            """
            {place + 1: written[id(each)] for place, each in attributes.items()}
            """,
        ),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "attributes of a message that was read by itself are lost": Fault(
        Bug("mq.web.columns:block_of_entries", "enumerate(attributes)", "enumerate(attributes[1:])"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "a page goes on a row too late": Fault(
        Bug("mq.web.consumer_operations:read_claim", "place + len(sequences)", "place + len(sequences) + 1"),
        test_columns.test_each_row_of_a_claim_has_what_is_its_messages,
    ),
    "a page goes on 10 ms after the last row of the one before": Fault(
        Bug("mq.web.consumer_operations:browse", "sequences[-1]", "sequences[-1] + 100_000"),
        test_columns.test_each_row_has_what_is_its_messages,
    ),
    "what columns have brought does not count": Fault(
        Bug(
            "mq.web.consumer_operations:_gather",
            "left, few = left - len(browsed.sequences), SHORTEST_SLICE",
            "few = SHORTEST_SLICE",
        ),
        test_columns.test_a_page_of_more_messages_than_are_read_together,
    ),
    # Streams
    "a lease is never renewed": Fault(
        Bug("_Keeper._run", "self._renew(..., batch, epoch)", "None"),
        test_connection.test_leases_are_renewed_while_the_driver_lives,
    ),
    "a batch may have any number of bytes": Fault(
        Bug(
            "MqStreamReader._claim_shares",
            "self._known[queue].claim(..., ..., share_bytes, up_to)",
            "self._known[queue].claim(..., ..., None, up_to)",
        ),
        test_readers.test_a_batch_has_as_many_bytes_as_was_said,
    ),
    "a batch has ten thousand messages at the most": Fault(
        Bug("MqStreamReader._claim_shares", "min(..., LARGEST_CLAIM)", "min(..., 10_000)"),
        test_readers.test_a_batch_of_more_than_ten_thousand_messages_is_acknowledged_in_parts,
    ),
    "what comes while a run with availableNow goes on is read, too": Fault(
        Bug(
            "MqStreamReader._claim_shares",
            "self._known[queue].claim(..., ..., ..., up_to)",
            "self._known[queue].claim(..., ..., ..., None)",
        ),
        test_readers.test_what_is_there_now_and_no_more,
    ),
    "one queue of several takes all of a batch": Fault(
        Bug("MqStreamReader._claim_shares", "left = max(0, left - rows)", "pass"),
        test_readers.test_a_stream_of_several_queues,
    ),
    "what was read of a queue that is left stays leased": Fault(
        Bug("MqStreamReader._leave_others", "self._of(queue, ...).settle(..., checkpoint)", "None"),
        test_readers.test_a_stream_of_one_queue_may_be_given_others,
    ),
    "a queue that is gone ends a stream of its pattern": Fault(
        Bug("MqStreamReader._passing_over", "queue in self._options.queues", "True"),
        partial(
            test_readers.test_a_queue_of_a_pattern_that_goes_while_it_is_used_has_left, method="claim", again=False
        ),
    ),
    "a queue that was made again is taken for the one before": Fault(
        Bug("mq.spark.stream:_is_another", "bool(...)", "False"),
        test_readers.test_a_queue_that_is_made_again_after_its_batch_was_written_goes_on,
    ),
    "rows of a queue that was deleted are not missed": Fault(
        Bug("MqStreamReader._slices", "self._options.fail_on_claim_lost and ...", "False"),
        partial(
            test_readers.test_a_planned_batch_of_a_deleted_queue_is_lost_and_the_queue_is_named,
            again=3,
            is_pattern=True,
        ),
    ),
    "each trigger asks each queue": Fault(
        Bug("QueueClaims.settle", "not batch", "False"),
        test_connection.test_an_idle_trigger_over_many_queues_is_one_request_on_one_connection,
    ),
    "each request has a connection of its own": Fault(
        Bug("_IdleConnections.take", "self._idle.pop(..., None)", "None"),
        test_connection.test_an_idle_trigger_over_many_queues_is_one_request_on_one_connection,
    ),
    "a closed connection is used again": Fault(
        Bug("_IdleConnections.take", "not _is_readable(connection.sock)", "True"),
        test_connection.test_a_connection_that_the_daemon_has_closed_is_not_used_again,
    ),
    "what was not read is acknowledged": Fault(
        Bug(
            "mq.spark.calls:acknowledge",
            '_target(queue, "consumers", name, "claim", batch=batch, epoch=epoch, if_read="true", timeout=within)',
            '_target(queue, "consumers", name, "claim", batch=batch, epoch=epoch, timeout=within)',
        ),
        test_readers.test_what_was_not_read_is_not_acknowledged,
    ),
    "a batch that is run again has other partitions": Fault(
        Bug(
            "MqStreamReader.partitions",
            'int(end["partitions"])',
            "self._options.num_partitions",
        ),
        test_readers.test_a_batch_that_is_run_again_has_the_same_partitions,
    ),
    "an old checkpoint is taken for today's": Fault(
        Bug("QueueClaims._check_taken_over", "options.take_over", "True"),
        test_readers.test_a_checkpoint_that_is_older_than_the_consumer,
    ),
    "a query takes over without being told to": Fault(
        Bug("QueueClaims._start", "options.take_over", "True"),
        test_readers.test_a_consumer_goes_with_its_checkpoint,
    ),
    "messages that went to somebody else are passed over": Fault(
        Bug("QueueClaims.slices", "there < planned and ...", "False"),
        test_readers.test_messages_of_a_batch_that_went_to_somebody_else,
    ),
    "a message that has come back is not in its batch again": Fault(
        Bug("ClaimedMessages._is_to_be_had", "entry.state is State.READY", "False"),
        test_readers.test_a_batch_has_its_messages_again_after_a_redrive,
    ),
    "a message comes back to another place in its batch": Fault(
        Bug("Claim.only", "enumerate(self.planned)", "enumerate([*self.ids, *(id for _, id in self.lost)])"),
        test_readers.test_a_batch_has_its_messages_again_after_a_redrive,
    ),
    "a lease that did not end is blamed": Fault(
        Bug("BatchConsumers._hold", "claim.ended or ...", "True"),
        test_readers.test_messages_of_a_batch_that_went_to_somebody_else,
    ),
    "what is left of an acknowledged batch stays": Fault(
        Bug("QueueClaims._remove", "self._run(call)", "self._run(call) * 0"),
        test_readers.test_a_batch_of_more_than_ten_thousand_messages_is_acknowledged_in_parts,
    ),
    "damaged messages are removed with the others": Fault(
        Bug("MqStreamReader._read", "missing and options.fail_on_claim_lost", "False"),
        test_columns.test_a_claim_with_a_damaged_message_fails_until_it_is_given_up,
    ),
    "a task that stops halfway has read its slice": Fault(
        Bug(
            "MqStreamReader._read",
            "missing = partition.stop - partition.start",
            """
            missing = partition.stop - partition.start
            with DaemonConnection(options) as connection:
                connection.run(calls.note_read(*place, of=partition.of, checkpoint=partition.checkpoint))
            """,
        ),
        test_readers.test_a_task_that_stops_halfway_has_not_read_its_slice,
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
