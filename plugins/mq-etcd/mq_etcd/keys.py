"""What stands under which key, below the store's prefix.

    new/QUEUE/ID                a message in NEW
    ready/QUEUE/LIFE/ID         one in READY: LIFE is the revision at which the queue's record was made, so that
                                dropping a queue empties it at once, however much is in it
    delayed/QUEUE/ID            one in DELAYED
    removed/QUEUE/ID            one in REMOVED
    body/ID                     its bytes and what is fixed with them; written once, whatever moves the message
    gone/QUEUE/LIFE             a queue that was dropped and still has messages below ready/
    record/KIND/KEY             a record
    owner                       who may change the store; its revision is in every transaction
    lane/NUMBER                 which transaction was the last one there
    room                        empty; written while etcd has no room, so that it counts what is free

The value of a message's place is its meta, as the file name of a ``posix:`` store has it: ``,d1700000000000,r2``.
A message is written only if ``body/ID`` does not exist, so the store has each id at most once, removed ones included.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.layout import leaf_name, parse_leaf
from mq.storage.interface import Entry, Meta

_FOLDERS: Final = {
    State.NEW: "new",
    State.READY: "ready",
    State.DELAYED: "delayed",
    State.REMOVED: "removed",
}
_BARE: Final = MessageId("00000000-0000-1000-8000-000000000000")
_GRAVE_BITS: Final = 0x8000 << 48


def encode_meta(meta: Meta) -> bytes:
    """The value of a message's place."""
    return leaf_name(_BARE, meta).removeprefix(_BARE).encode("ascii")


def decode_meta(value: bytes) -> Meta | None:
    """The meta of a message's place; None when that is none of mq's values."""
    entry = parse_leaf(_BARE + value.decode("ascii", "replace"), "", State.NEW)
    return None if entry is None else entry.meta


class Keys:
    """Names what is in one store."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.owner = f"{prefix}owner"
        self.room = f"{prefix}room"

    def place(self, entry: Entry, life: int) -> str:
        """The key of a message; `life` counts where it is in READY."""
        return f"{self.folder(entry.state, entry.queue, life)}{entry.id}"

    def folder(self, state: State, queue: str | None, life: int = 0) -> str:
        """The beginning of the places of a state, of one queue or of all."""
        if queue is None:
            return f"{self._prefix}{_FOLDERS[state]}/"
        begin = f"{self._prefix}{_FOLDERS[state]}/{escaped(queue)}/"
        return f"{begin}{life}/" if state is State.READY else begin

    def ready(self, queue: str, life: int) -> str:
        """The beginning of the places in READY, of one life of a queue."""
        return self.folder(State.READY, queue, life)

    def body(self, id: MessageId) -> str:
        """The key of a message's bytes."""
        return f"{self._prefix}body/{id}"

    def record(self, kind: str, key: str) -> str:
        """The key of a record."""
        return f"{self.records(kind)}{escaped(key)}"

    def records(self, kind: str) -> str:
        """The beginning of the records of a kind."""
        return f"{self._prefix}record/{escaped(kind)}/"

    def grave(self, queue: str, life: int) -> str:
        """The key of a dropped queue."""
        return f"{self.graves(queue)}{life}"

    def graves(self, queue: str | None) -> str:
        """The beginning of dropped queues, those of one name or all."""
        return f"{self._prefix}gone/" if queue is None else f"{self._prefix}gone/{escaped(queue)}/"

    def lane(self, number: int) -> str:
        """The key of a lane."""
        return f"{self._prefix}lane/{number}"

    def entry(self, key: str, value: bytes, state: State) -> Entry | None:
        """The message at that place; None when it is none of mq's."""
        *_, queue, id = key.split("/") if state is not State.READY else _without_life(key)
        meta = decode_meta(value)
        named = parse_leaf(id, unquote(queue), state)
        if meta is None or named is None or named.id != id:
            return None
        return named._replace(meta=meta)


def record_key(key: str) -> str:
    """The key of a record, out of its name in etcd."""
    return unquote(key.rpartition("/")[2], errors="surrogatepass")


def buried(key: str) -> Entry:
    """A dropped queue, as an entry to unlink."""
    *_, queue, life = key.split("/")
    return Entry(unquote(queue), MessageId.from_key(_GRAVE_BITS | int(life)), State.REMOVED)


def id_at(place: str) -> MessageId:
    """The id of the message whose place has that key."""
    return MessageId(place.rpartition("/")[2])


def life_of(entry: Entry) -> int | None:
    """The life of the dropped queue that an entry means; None when it means a message."""
    key = entry.id.key
    is_grave = key >> 64 == 0 and key & _GRAVE_BITS == _GRAVE_BITS
    return key & ~_GRAVE_BITS if is_grave else None


def _without_life(key: str) -> list[str]:
    *begin, queue, _, id = key.split("/")
    return [*begin, queue, id]


def escaped(text: str) -> str:
    """A name as one part of a key."""
    return quote(text, safe="@", errors="surrogatepass")
