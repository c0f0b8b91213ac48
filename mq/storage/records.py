"""Put and drop one record at a time, with errors in place of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mq.errors import (
    Conflict,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    StorageError,
    StorageFailed,
    StorageFenced,
    StorageFull,
    StorageUnsure,
)
from mq.storage.interface import Drop, Outcome, Put, Result, Storage


async def put_record(storage: Storage, kind: str, key: str, value: Mapping[str, Any]) -> bool:
    """Put a record in a batch of its own; durable on return.

    Returns:
        False for a QUEUE that was there already, whose record was replaced.

    Raises:
        Conflict: the name of a queue is taken by something else.
        StorageError: the record was not kept, or perhaps.
    """
    [outcome] = await storage.commit([Put(kind, key, value)])
    if outcome.result is Result.EXISTS:
        raise Conflict(outcome.reason)
    if outcome.result is not Result.DONE:
        raise _error_of_record(outcome, f"cannot store a record of kind {kind}")
    return not outcome.existed


async def drop_record(storage: Storage, kind: str, key: str) -> bool:
    """Drop a record in a batch of its own; durable on return.

    Returns:
        False when there was none.

    Raises:
        StorageError: the record was not dropped, or perhaps.
    """
    [outcome] = await storage.commit([Drop(kind, key)])
    if outcome.result not in (Result.DONE, Result.GONE):
        raise _error_of_record(outcome, f"cannot delete a record of kind {kind}")
    return outcome.result is Result.DONE


def _error_of_record(outcome: Outcome, failure: str) -> MQError:
    if outcome.result is Result.UNKNOWN:  # twice does no harm
        return StorageUnsure(f"{failure}: the outcome is unknown ({outcome.reason}). Try again")
    return error_of(outcome, failure)


def error_of(outcome: Outcome, failure: str) -> MQError:
    """The error for the caller that an outcome other than DONE means."""
    if outcome.result is Result.FULL:
        return StorageFull(f"{failure}: {outcome.reason}. Try again later")
    if outcome.result is Result.NO_QUEUE:
        return NoSuchQueue("the queue no longer exists")
    if outcome.result is Result.GONE:
        return NoSuchMessage("the message is no longer in the queue")
    if outcome.result is Result.FAILED:
        return StorageFailed(
            f"the store failed during the request, so the outcome of the request is unknown ({outcome.reason}). "
            "Repair and remount the disk, then restart mq"
        )
    if outcome.result is Result.UNKNOWN:
        return StorageUnsure(
            f"{failure}: the outcome is unknown "
            f"({outcome.reason or 'the store did not respond in time'}). Retry with the same "
            "idempotency key. If you did not use a key, retry only if a duplicate is acceptable"
        )
    if outcome.result is Result.FENCED:
        return StorageFenced(
            outcome.reason or "another daemon has taken over the store, so this daemon no longer changes it"
        )
    # Left over: EXISTS, after which nothing has changed.
    reason = outcome.reason or "the store already contains an entry with this name"
    return StorageError(f"{failure}: {reason}. Nothing was changed. Try again")
