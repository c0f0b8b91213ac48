"""A commit by the log: one record, one flush, then the file calls without any sync.

The record says what the file calls will do. An operation may be refused after its record, such as a move into a folder
that cannot grow on a full disk. Another record takes it back, before it is answered. A group is in one record, with
the records that it keeps and forgets; of one that is refused half-way, what was done is taken back, and the log says so
before (:attr:`~mq.storage.files.logged.groups.Units.undoing`), so that a power cut leaves it all or not at all.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mq.storage.files.hop import EarlyResults
from mq.storage.files.logged.groups import Units
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.portion import NO_ROOM, LoggedPortion
from mq.storage.files.logged.record import Refused, Saying, encode
from mq.storage.files.logged.root import LoggedRoot
from mq.storage.files.outcomes import failed
from mq.storage.interface import AnyOperation, Outcome


def commit(root: LoggedRoot, operations: Sequence[AnyOperation], early: EarlyResults) -> list[Outcome]:
    """Do a batch, by as few records as hold it. One outcome for each operation, in order. `early` is told of the first
    ones on the way: their record is on the disk, and their file calls are made."""
    volume = root.folders.volume
    outcomes: list[Outcome] = []
    if not volume.failure:
        portion = LoggedPortion(root)
        try:
            for operation in operations:
                if not portion.add(operation):
                    outcomes += _commit(root, portion, early)
                    portion = LoggedPortion(root)
                    portion.add(operation)
            outcomes += _commit(root, portion, early)
            return outcomes
        except OSError as error:
            volume.fail(error)
            if portion.large is not None:
                portion.large.discard_all()
    return outcomes + failed(volume.failure, len(operations) - len(outcomes))


def _commit(root: LoggedRoot, portion: LoggedPortion, early: EarlyResults) -> Sequence[Outcome]:
    """Do what one record holds.

    Raises:
        OSError: the disk has failed.
    """
    early.is_over |= bool(portion.answered)
    if not portion.planned:
        return portion.outcomes(())
    log = root.log
    flush = portion.large.bring() if portion.large is not None else None
    with log.lock:
        try:
            sequence = log.append(portion.encode(), flushes=portion.flushes, flush=flush)
            done = Units(root, portion, early)
            if done.refused:
                log.append(encode([Refused(sequence, tuple(done.refused)), *done.undoing]))
                log.flush()
                done.undo()
            if portion.units is not None:
                done.end()
        except OSError as error:
            root.folders.volume.fail(error)  # with the lock: no other batch begins before
            raise
        except BaseException:
            log.cut_off()
            raise
    if portion.large is not None:
        portion.discard(done.outcomes)
    return portion.outcomes(done.outcomes) if portion.answered else done.outcomes


@contextmanager
def recorded(log: Log, *sayings: Saying) -> Iterator[None]:
    """Record what the file calls of the block do. The record is on disk before they are made.

    Raises:
        OSError: the medium has failed, or has no room for a longer log.
    """
    payload = encode(sayings)
    has_room = log.takes(len(payload))
    if not has_room:
        raise OSError(errno.ENOSPC, NO_ROOM)
    with log.lock:
        sequence = log.append(payload, flushes=True)
        try:
            yield
        except OSError:
            log.append(encode([Refused(sequence, tuple(range(len(sayings))))]))
            log.flush()
            raise
        except BaseException:
            log.cut_off()
            raise
