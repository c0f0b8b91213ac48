"""Bodies that are too large for the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from mq.message import MessageId
from mq.storage.files.folders import Folders
from mq.storage.files.hop import inline_hop
from mq.storage.files.logged.groups import Unit
from mq.storage.files.outcomes import refusal
from mq.storage.files.staging import StagedBody, StagedFile
from mq.storage.files.sync import bring_in_order
from mq.storage.interface import AnyOperation, Outcome, Write


class LargeBodies:
    """Bodies that do not go into the log: they are on the medium when the record that names them is flushed.

    Where names are ordered that is one flush for all of them, and for the record: their bytes are written out first,
    and then one of them is changed and synced. That brings every change of the file system before it, and makes the
    disk empty its cache. A power cut meanwhile may leave the record, and not all of its bodies: no operation of it was
    answered, and the next start passes those over. Of a group it could not pass over one operation alone, so bodies in
    groups are on the medium before their record is written.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._shares_flush = folders.volume.mount.ordered
        self._is_in_group = False
        self._made: dict[MessageId, StagedFile] = {}
        self._files: list[StagedFile] = []

    def stage(self, unit: Unit, is_large: Callable[[AnyOperation], bool]) -> Unit | Outcome:
        """Stage the bodies of an operation or a group. Returns it as it can be recorded, or why it is refused."""
        self._is_in_group |= len(unit) > 1
        staged: list[AnyOperation] = []
        made = len(self._made)
        try:
            for operation in unit:
                if isinstance(operation, Write) and is_large(operation):
                    staged.append(operation._replace(body=self._stage(operation)))
                else:
                    staged.append(operation)
        except OSError as error:
            for id in list(self._made)[made:]:
                self._made.pop(id).discard()
            return refusal(error)
        return tuple(staged)

    def _stage(self, operation: Write) -> StagedBody:
        body = operation.body
        if isinstance(body, bytes):
            file = StagedFile(self._folders, f"{self._folders.layout.stage}/{operation.id}")
            self._made[operation.id] = file
            file.add(body)
            if self._shares_flush:
                file.begin_write_out()
            body = StagedBody(file, inline_hop, nullcontext())
        assert isinstance(body, StagedBody), "staged in another store"
        self._files.append(body.file)
        return body

    def bring(self) -> Callable[[int], object] | None:
        """Bring them and their names to the medium; or return what does that together with the log's file."""
        if not self._shares_flush:
            self._folders.volume.syncs.everything()
        elif not self._is_in_group:
            return self._bring_with_log
        else:
            self._bring_with()
        return None

    def _bring_with_log(self, log_fd: int) -> None:
        if not self._bring_with(log_fd):
            self._folders.calls.fdatasync(log_fd)

    def _bring_with(self, *fds: int) -> bool:
        """Bring them and these open files to the medium by one flush; False where their stagers have discarded all of
        them, so that nothing was synced."""
        files = [file.fd for file in self._files if file.fd is not None]
        if files:
            bring_in_order(self._folders.calls, files, *fds)
        return bool(files)

    def discard_all(self) -> None:
        """Take away what was staged here: the disk has failed."""
        for file in self._made.values():
            file.discard()

    def discard(self, unit: Unit) -> None:
        """Take away what was staged here for operations that are not done."""
        for operation in unit:
            if isinstance(operation, Write) and operation.id in self._made:
                self._made.pop(operation.id).discard()
