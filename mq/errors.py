"""Every error that mq raises, by whose fault it is.

* :class:`CallerError`: the request was wrong. Nothing was changed; sending it again as it is fails again.
* :class:`StorageError`: the medium could not do its part. The request was right.
* :class:`NoMemory`: others have what the request takes, just now.
* :class:`CorruptMessage`: bytes on the medium are not those that were published.
* :class:`BrokerClosed`: the broker has ended, or is ending.

After most of them nothing was changed. Where that is not known, :attr:`MQError.is_unsure` is true, and the text says
that it may have been done.

The text of each says, in one line, what is wrong and what to do. Servers translate by class, never by text.
"""

from __future__ import annotations


class MQError(Exception):
    """The root of every error that mq raises on purpose.

    Attributes:
        is_unsure: whether what was asked for may have been done all the same. Then to ask again may do it twice, but
            for what carries a key, or does the same however often it is done.
    """

    is_unsure = False


class CallerError(MQError):
    """The caller's fault: nothing was changed."""


class InvalidName(CallerError):
    """A queue's name that is outside the grammar."""


class InvalidId(CallerError):
    """A message id that is not a version 1 UUID in standard text form."""


class InvalidSetting(CallerError):
    """A setting out of its range, of the wrong type, or unknown; the text names where it came from."""


class InvalidRequest(CallerError):
    """What was sent makes no sense; the text says what would."""


class NoSuchQueue(CallerError):
    """The queue does not exist, or was deleted while the request ran."""


class NoSuchMessage(CallerError):
    """No message with that id is in the queue (it may have been removed already)."""


class Conflict(CallerError):
    """Right in itself, but not here and now: the text says what is in the way."""


class NotLeased(Conflict, NoSuchMessage):
    """No lease of that message is running."""


class ReceiptMismatch(CallerError):
    """Another delivery than the one named holds the message, or none does any more."""


class NotYours(CallerError):
    """It belongs to another user. Nothing was changed."""


class QueueHeld(CallerError):
    """One consumer alone has the messages of the queue, for as long as it is connected."""


class QueueFull(CallerError):
    """The queue holds as much as its own settings let it. Try again when something has been removed."""


class PublishPaused(QueueFull):
    """An operator has paused publishing to the queue: it takes nothing until that ends. Try again later."""


class OverLimit(CallerError):
    """The user has as much as the users file allows. Nothing was changed; try again when it is less.

    Args:
        text: what there is too much of, and what to do.
        seconds: how long to wait before another try.
    """

    def __init__(self, text: str, seconds: float = 10.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class BodyTooLarge(CallerError):
    """The body is over the configured limit."""


class TooLargeForQueue(BodyTooLarge, QueueFull):
    """The body is longer than all bodies of the queue may be together (`max_bytes`): it would not fit in an empty one
    either."""


class BatchTooLarge(CallerError):
    """More entries than a batch may have."""


class BodyIncomplete(CallerError):
    """The body ended before its announced length, or could not be read."""


class StorageError(MQError):
    """The medium's fault."""


class StorageUnusable(StorageError):
    """The store cannot be opened: wrong path, no permission, in use, or unable to keep mq's promises."""


class StorageFull(StorageError):
    """No room, or no file handles, just now. Try again later; the store recovers by itself."""


class StorageUnsure(StorageError):
    """What was asked for may have been done, or not: the medium was out of reach, or did not answer in time. It
    recovers by itself."""

    is_unsure = True


class StorageFailed(StorageError):
    """A write or a sync failed. What is on the medium is unknown until the store is opened anew, so the
    store changes nothing more until then; it can still be read."""

    is_unsure = True


class StorageStopped(StorageFailed):
    """It has failed, and this was not tried, or no more than read: nothing was changed."""

    is_unsure = False


class StorageFenced(StorageError):
    """Another broker is in charge of the store. Nothing was changed, and this one can change nothing more."""


class StorageSlow(StorageError):
    """The barrier took longer than a lease's margin, so the lease was not given out. Try again."""


class NotServed(StorageError):
    """No node serves the cluster queues just now. Nothing was changed; try again."""


class ServiceLost(NotServed, StorageUnsure):
    """The node that served the cluster queues lost them, or went out of reach, before it answered."""


class OverBudget(MQError):
    """Other requests have what this one takes of something that clients share. Nothing was changed; try again."""


class NoMemory(OverBudget):
    """Other requests have the memory that this one takes."""


class NoDisk(OverBudget):
    """Other bodies that are on their way have the disk that this one takes until it is published."""


class CorruptMessage(MQError):
    """The stored bytes do not match the length or checksum noted when they were published."""


class BrokerClosed(MQError):
    """The broker is closed or closing: open it again."""


def first_of(error: BaseException) -> BaseException:
    """The error itself, or the first one in its group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
