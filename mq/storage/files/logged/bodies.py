"""Bodies that are too large for the log."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.logged.groups import Unit
from mq.storage.files.logged.record import LARGEST_INLINE
from mq.storage.files.outcomes import refusal
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.files.sync import bring_in_order
from mq.storage.interface import AnyOperation, Outcome, Write


def inline_bytes(operation: Write, largest: int) -> int | None:
    """Return the bytes of a body that goes into the log; None if it does not.

    Args:
        operation: has the body.
        largest: bytes that one record can hold.
    """
    body = operation.body
    if not isinstance(body, bytes) or len(body) > min(LARGEST_INLINE, largest // 2):
        return None
    return len(body)


class LargeBodies:
    """Bodies that do not go into the log: they are on the medium when the record that names them is flushed.

    Where names are ordered that is one flush for all of them, and for the record: their bytes are written out first,
    and then one of them is changed and synced. That brings every change of the file system before it, and makes the
    disk empty its cache. A power cut meanwhile may leave the record, and not all of its bodies: no operation of it was
    answered, and the next start passes those over. Of a group it could not pass over one operation alone, so bodies in
    groups are on the medium before their record is written.

    Args:
        folders: of the root.
        largest: bytes that one record can hold.
    """

    def __init__(self, folders: Folders, largest: int) -> None:
        self._folders = folders
        self._largest = largest
        self._shares_flush = folders.volume.mount.ordered
        self._is_in_group = False
        self._made: list[StagedFile | None] = []
        self._files: list[StagedFile] = []

    @property
    def may_come_with_record(self) -> bool:
        """Whether there are some, and one flush may bring them and the record."""
        return bool(self._files) and self._shares_flush and not self._is_in_group

    def staged_all(self, unit: Unit) -> Unit | Outcome:
        """A unit as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        before = len(self._files)
        staged = [self._staged(operation) for operation in unit]
        if len(unit) > 1 and len(self._files) > before:
            self._is_in_group = True
        refused = next((each for each in staged if isinstance(each, Outcome)), None)
        return refused or tuple(each for each in staged if not isinstance(each, Outcome))

    def _staged(self, operation: AnyOperation) -> AnyOperation | Outcome:
        """The operation as it can be recorded, or why it is refused.

        Raises:
            OSError: the medium has failed.
        """
        self._made.append(None)
        if not isinstance(operation, Write) or inline_bytes(operation, self._largest) is not None:
            return operation
        body = operation.body
        try:
            if isinstance(body, bytes):
                self._folders.volume.reserve.ensure()
                path = f"{self._folders.layout.stage}/{operation.id}"
                file = StagedFile(
                    self._folders.calls, path, self._folders.volume.reserve.ensure, attributes=self._folders.attributes
                )
                self._made[-1] = file
                file.add(body)
                if self._shares_flush:
                    file.begin_write_out()
                body = StagedBody(file, inline_hop, nullcontext())
        except OSError as error:
            self._discard(len(self._made) - 1)
            return refusal(error)
        assert isinstance(body, StagedBody), "staged in another store"
        self._files.append(body.file)
        return operation._replace(body=body)

    def bring(self) -> None:
        """Bring them and their names to the medium.

        Raises:
            OSError: the medium has failed.
        """
        if self._shares_flush:
            self._bring_with()
        elif self._files:
            self._folders.volume.syncs.everything()

    def bring_with(self, log_fd: int) -> None:
        """Bring them, their names and all bytes of the log's file to the medium.

        Raises:
            OSError: the medium has failed.
        """
        if not self._bring_with(log_fd):
            self._folders.calls.fdatasync(log_fd)

    def _bring_with(self, *fds: int) -> bool:
        """Bring them and these open files to the medium by one flush; False where their stagers have discarded all of
        them, so that nothing was synced."""
        files = [file.fd for file in self._files if file.fd is not None]
        if files:
            bring_in_order(self._folders.calls, files, *fds)
        return bool(files)

    def discard(self, done: Iterable[bool]) -> None:
        """Take away what was staged here for nothing.

        Args:
            done: of each operation, in order.
        """
        for number, is_done in enumerate(done):
            if not is_done:
                self._discard(number)

    def _discard(self, number: int) -> None:
        file = self._made[number]
        if file is not None:
            file.discard()
