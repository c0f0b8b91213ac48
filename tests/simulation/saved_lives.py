"""A run of the simulation in which a backup takes the place of each power cut.

While brokers work, the backup is made beside them, some of its calls between any two of theirs. At the instant of which
it says that it is the backup's, the world ends; what is restored goes on in its place, and is held to the same promises
as what a power cut leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Final

from mq.broker import Broker
from mq.errors import StorageUnusable
from mq.storage.files.backup import save
from mq.storage.files.backup_folder import open_backups
from mq.storage.files.calls import FileKind
from mq.storage.files.layout import Layout
from mq.storage.files.live_names import NameEvent
from mq.storage.files.restore import bring_back
from simulation.calls import StepByStep
from simulation.disk import Disk, Medium, _Node, _Part
from simulation.faults import Faults
from simulation.run import RunReport, _Run

ROOT: Final = "/mq"
BACKUPS: Final = "/backups"
LAYOUT: Final = Layout.under(ROOT)
_NEVER: Final = 1 << 60


def run_saved_lives(seed: int, *, log: bool = False) -> tuple[RunReport, int]:
    """Run one seed with backups; and how many instants were reached while brokers worked."""
    run = _SavedLives(seed, log=log)
    return run.run(), run.reached


class Aside:
    """Work that is done in turns with this thread, so many steps at a time.

    Args:
        work: calls :meth:`step` before each of its steps.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.is_over = False
        self._work = work
        self._steps = 0
        self._theirs, self._ours = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self, steps: int) -> None:
        """Let it do some steps."""
        if not self.is_over:
            self._steps = steps
            self._theirs.release()
            self._ours.acquire()
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """A step of the work begins."""
        while self._steps == 0:
            self.pause()
        self._steps -= 1

    def pause(self) -> None:
        """End the turn."""
        self._steps = 0
        self._ours.release()
        self._theirs.acquire()

    def _run(self) -> None:
        self._theirs.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the other thread
            self.error = error
        self.is_over = True
        self._ours.release()


class ReadingDisk(Disk):
    """The same files as on another disk, for another process that only reads, and meets no fault.

    Args:
        step: told before each call.
    """

    def __init__(self, disk: Disk, step: Callable[[], None]) -> None:
        super().__init__(disk.medium, Random(0), Faults(Random(0), lambda text: None))
        self._root = disk._root
        self._step = step
        self.looks = 0

    def _note(self, line: str) -> None:
        self._step()

    def kind(self, path: str) -> FileKind | None:
        self.looks += 1
        return super().kind(path)


class DiskNotifier:
    """Reports changes of names on a disk. The second half of a move may come late, until some name is looked up."""

    def __init__(self, disk: Disk, reader: ReadingDisk, random: Random) -> None:
        self._disk = disk
        self._reader = reader
        self._random = random
        self._inner = disk._change
        self._watched: dict[int, tuple[int, _Node]] = {}
        self._told: list[NameEvent] = []
        self._next = 1
        self._looks = -1
        disk._change = self._changed  # type: ignore[method-assign]

    def watch(self, path: str) -> int:
        node = self._reader._node(path)
        if not node.folder:
            raise NotADirectoryError(path)
        self._next += 1
        number = self._watched.setdefault(id(node), (self._next, node))[0]
        self._reader._step()
        return number

    def forget(self, watch: int) -> None:
        self._watched = {key: found for key, found in self._watched.items() if found[0] != watch}

    def changes(self) -> list[NameEvent]:
        told, self._told = self._told, []
        if told and told[-1].move and told[-1].appeared and self._looks != self._reader.looks:
            self._looks = self._reader.looks + 1  # it comes when this one was looked up, or anything happens
            if self._random.random() < 0.5 and len(told) > 1 and told[-2].move == told[-1].move:
                self._told = [told.pop()]
        return told

    def close(self) -> None:
        self._disk._change = self._inner  # type: ignore[method-assign]

    def _changed(self, *parts: _Part) -> None:
        self._next += 1
        move = self._next if len(parts) > 1 else 0
        for folder, name, node in reversed(parts):  # it leaves, then it comes
            watch = self._watched.get(id(folder))
            known = node or folder.names.get(name)
            if watch is not None and known is not None:
                self._told.append(NameEvent(watch[0], name, node is not None, known.folder, move))
        self._inner(*parts)


class _SavedLives(_Run):
    def __init__(self, seed: int, *, log: bool) -> None:
        super().__init__(seed, None, strict=False, log=log)
        self.reached = 0
        self.turns = Random(f"turns of {seed}")
        self.target = Disk(self.turns.choice(list(Medium)), self.turns, Faults(self.turns, self._note))
        self._aside: Aside | None = None
        self._is_reached = self._is_over = False
        self._begins = _NEVER
        self._is_living = False
        self._enter = self.faults.enter
        self.faults.enter = self._entered  # type: ignore[method-assign]

    async def _open(self, stack: AsyncExitStack) -> Broker:
        """Not before it is open: what a start does again is not in the files yet, and `servable` asks for that."""
        broker = await super()._open(stack)
        if self._is_living:
            self._begins = min(self._begins, self.faults.calls + self.turns.randint(1, 500))
        return broker

    async def _live(self) -> None:
        self._is_living = True
        await super()._live()

    def _entered(self, verb: str, what: str) -> None:
        """A broker makes a call: the backup gets its turn before it."""
        if self._aside is None and self.faults.calls >= self._begins:
            self._begin_backup()
        if self._aside is not None and not self._is_reached:
            self._aside.turn(self.turns.choice((0, 1, 1, 3, 10, 40)))
            if self._is_reached:
                self.reached += 1
                self._note("the instant of the backup")
                self.faults._dead = True
        self._enter(verb, what)

    def _begin_backup(self) -> None:
        self._note("a backup begins")
        aside = self._aside = Aside(lambda: self._save(aside, reader))
        reader = ReadingDisk(self.disk, aside.step)

    def _save(self, aside: Aside, reader: ReadingDisk) -> None:
        notifier = DiskNotifier(self.disk, reader, self.turns)

        def instant() -> None:
            self._is_reached = True
            aside.pause()

        try:
            with open_backups(self.target, BACKUPS, make=True) as backups:
                save(reader, ROOT, backups, notifier, keep=2, instant=instant, pause=lambda seconds: aside.step())
        except StorageUnusable:
            # A batch was cut off: its daemon is dead, or has told that the medium failed.
            if reader.kind(LAYOUT.half) is None or not (self._is_over or reader.kind(LAYOUT.alarm)):
                raise
            self._note("the backup gives up")
        finally:
            notifier.close()

    def _crash(self) -> None:
        """The power is gone, on both disks, once the backup has said that it is done."""
        self._begins, self._is_living, self._is_over = _NEVER, False, True
        if self._aside is not None:
            while not self._aside.is_over:
                self._aside.turn(_NEVER)
            self._aside = None
            if self._is_reached:
                self.target.crash()
                self._restore()
        self._is_reached = self._is_over = False
        super()._crash()

    def _restore(self) -> None:
        disk = Disk(self.plan.medium, self.random, self.faults)
        quiet, disk._faults = disk._faults, Faults(self.turns, self._note)
        with open_backups(self.target, BACKUPS, make=False) as backups:
            backup = backups.newest()
            assert backup is not None
            assert not bring_back(disk, backups, backup, ROOT, syncfs=self.plan.syncfs).damaged
        disk.crash()
        disk._faults = quiet
        disk.native = StepByStep(disk) if self.plan.at_once else None
        self.disk = disk
        self._note("restored")
