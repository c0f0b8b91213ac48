"""Where things are under a root. The seeds' four folders, and state/ for what is not a message."""

from __future__ import annotations

from typing import NamedTuple

from mq.lifecycle import State
from mq.storage import names
from mq.storage.interface import Entry


class Layout(NamedTuple):
    """The folders of a store, as paths.

    Attributes:
        new: messages written and not yet delivered.
        queues: one folder a queue, one file a message.
        delay: messages leased or delayed.
        remove: messages and deleted queues on their way out.
        state: records, the lock, and bodies that are still arriving.
    """

    new: str
    queues: str
    delay: str
    remove: str
    state: str

    @classmethod
    def under(cls, root: str) -> Layout:
        """The seeds' layout below one root."""
        return cls(*(f"{root}/{name}" for name in ("new", "queues", "delay", "remove", "state")))

    @property
    def records(self) -> str:
        """Durable records, one folder a kind."""
        return f"{self.state}/records"

    @property
    def stage(self) -> str:
        """Bodies that are still arriving, under names that mean nothing."""
        return f"{self.state}/stage"

    @property
    def peers(self) -> str:
        """One file for each broker that shares this root, for as long as it lives."""
        return f"{self.state}/peers"

    @property
    def properties(self) -> str:
        """Properties that no extended attribute could hold, one file a message, named by its id."""
        return f"{self.state}/properties"

    @property
    def lock(self) -> str:
        """The file whose lock says who serves this root."""
        return f"{self.state}/lock"

    @property
    def alarm(self) -> str:
        """The file that says to all who serve this root that the medium has failed."""
        return f"{self.state}/failed"

    @property
    def ballast(self) -> str:
        """The file that takes up room for what has to go on when the disk is full."""
        return f"{self.state}/ballast"

    def all(self) -> tuple[str, ...]:
        """Every folder, parents first."""
        return (
            self.new,
            self.queues,
            self.delay,
            self.remove,
            self.state,
            self.records,
            self.stage,
            self.properties,
        )

    def folder(self, state: State, queue: str) -> str:
        """The folder that holds a queue's entries in a state."""
        if state is State.READY:
            return f"{self.queues}/{queue}"
        if state is State.DELAYED:
            return self.delay
        return self.new if state is State.NEW else self.remove

    def path(self, entry: Entry) -> str:
        """The entry's file."""
        queue, id, state, meta = entry
        name = names.leaf(id, meta)
        if state is State.READY:
            return f"{self.queues}/{queue}/{name}"
        return f"{self.folder(state, queue)}/{queue}:{name}"
