"""The layout of a store: its folders, a message's name, a message's properties. No calls are made here.

*Folders.* The four of the seeds, and state/ for what is not a message (:class:`Layout`).

*Names.* One grammar, one codec (:func:`leaf_name`, :func:`parse_leaf`)::

    new/, delay/, remove/       queue ":" leaf
    queues/<queue>/             leaf

    leaf    = id [ "," "d" deadline ] [ "," "r" receives ] [ "," "c" receipt ] [ "," "o" order ] [ "," "e" expiry ]

A message that was never leased, and has neither a delay nor a time to live, is just its id. Numbers are decimal
without leading zeros, the receipt is 16 hexadecimal digits; each field stands at most once and in this order, so that
an entry has exactly one name. Whatever does not fit the grammar is not mq's. The longest name has
100 (queue) + 1 + 36 (id) + 17 + 11 + 18 + 21 + 17 = 221 of the 255 bytes that a name may have.

*Properties.* A message's file holds exactly the posted bytes. Its properties are in extended attributes (:class:`Sum`,
:mod:`~mq.storage.files.writes`):

* ``user.mq.sum``: ``size:crc32`` in decimal and hexadecimal, then ``:a`` or ``:f`` where there are attributes,
  in the other extended attribute or in a side file. It is set *before* the bytes are written, so that a file
  torn by a power cut can be told from a whole one.
* ``user.mq.attributes``: the attributes as JSON, with their checksum (:func:`mq.message.with_checksum`).

A side file ``state/properties/<id>``, which has its checksum, too, takes the place of both where the file system has no
extended attributes, and of the second where it would not fit. It is durable before the message's name appears.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageId, Properties, encode_json, with_checksum, without_checksum
from mq.storage.interface import FRESH, GIVEN_MS, Entry, Meta

SUM: Final = "user.mq.sum"
ATTRIBUTES: Final = "user.mq.attributes"
LARGEST_ATTRIBUTES: Final = 800
"""Bytes of JSON above which a side file is used: ext4 holds all attributes of a file in one block, and that has 1,024
bytes on a small file system."""
NO_ATTRIBUTES: Final = -1
"""In place of that number: the file system has no extended attributes, so each message has a side file."""

_NOT_OURS: Final = (ValueError, OverflowError, RecursionError)
"""What JSON that mq never wrote can raise."""
_MOST_DIGITS: Final = 19
_SUM = re.compile(rb"(0|[1-9][0-9]{0,18}):([0-9a-f]{8})(?::([af]))?")

_FOLDERS: Final = {state: state.value for state in (State.NEW, State.DELAYED, State.REMOVED)}
_FLAT: Final = {folder: state for state, folder in _FOLDERS.items()}
_QUEUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")
_NUMBER = r"(0|[1-9][0-9]{0,%d})"
_FIELDS: Final = (
    r"([0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    r"(?:,([ad](?:0|[1-9][0-9]{0,14})))?(?:,r([1-9][0-9]{0,8}))?(?:,c([0-9a-f]{16}))?"
    rf"(?:,o{_NUMBER % 18})?(?:,e{_NUMBER % 14})?"
)
_LEAF: Final = re.compile(_FIELDS)
_FLAT_NAME: Final = re.compile(rf"({_QUEUE.pattern}):{_FIELDS}")
_BARE_ID_LENGTH: Final = 36


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
        """The file whose lock the servers of this root hold."""
        return f"{self.state}/lock"

    @property
    def turn_lock(self) -> str:
        """The file that the daemon in turn has locked, where several take turns."""
        return f"{self.state}/lock-turn"

    @property
    def moves_lock(self) -> str:
        """The file, or folder, that is locked while messages are moved or the root is repaired."""
        return f"{self.state}/lock-moves"

    @property
    def format(self) -> str:
        """The file with the number of the root's format, where not every version may serve it."""
        return f"{self.state}/format"

    @property
    def alarm(self) -> str:
        """The file that tells all servers of this root that the medium has failed."""
        return f"{self.state}/failed"

    @property
    def reserve(self) -> str:
        """The file that takes up room for what has to go on when the disk is full."""
        return f"{self.state}/ballast"

    @property
    def log_folder(self) -> str:
        """The log's segments, where there is one."""
        return f"{self.state}/log"

    @property
    def whole(self) -> str:
        """The file that says of a root with a log that no group is half done. Otherwise it is called :attr:`half`."""
        return f"{self.log_folder}/whole"

    @property
    def half(self) -> str:
        """The file that says of a root with a log that a group may be half done."""
        return f"{self.log_folder}/half"

    def below_root(self, path: str) -> str:
        """A path of this root's without the root."""
        return path[len(self.state) - len("state") :]

    def above(self, path: str) -> str:
        """The whole path of a path below this root."""
        return self.state[: -len("state")] + path

    def all(self) -> tuple[str, ...]:
        """Every folder, parents first."""
        return (self.new, self.queues, self.delay, self.remove, self.state, self.records, self.stage, self.properties)

    @property
    def by_state(self) -> Mapping[State, str]:
        """The folder with the messages of each state; READY has a folder in it for each queue."""
        return {
            State.NEW: self.new,
            State.READY: self.queues,
            State.DELAYED: self.delay,
            State.REMOVED: self.remove,
        }

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
        name = leaf_name(id, meta)
        if state is State.READY:
            return f"{self.queues}/{queue}/{name}"
        return f"{self.folder(state, queue)}/{queue}:{name}"


def leaf_name(id: MessageId, meta: Meta = FRESH) -> str:
    """The name inside a queue's folder, and what follows the colon everywhere else."""
    if meta is FRESH:
        return id
    deadline_ms, receives, receipt, order, expires_ms = meta
    name: str = id
    if deadline_ms is not None:
        name += f",d{deadline_ms}" if deadline_ms < GIVEN_MS else f",a{deadline_ms - GIVEN_MS}"
    if receives:
        name += f",r{receives}"
    if receipt is not None:
        name += f",c{receipt}"
    if order is not None:
        name += f",o{order}"
    if expires_ms is not None:
        name += f",e{expires_ms}"
    return name


def flat_name(queue: str, id: MessageId, meta: Meta = FRESH) -> str:
    """The name in new/, delay/ and remove/."""
    return f"{queue}:{leaf_name(id, meta)}"


def parse_leaf(name: str, queue: str, state: State) -> Entry | None:
    """The entry whose leaf is `name`; None when it is not one of mq's names."""
    match = _LEAF.fullmatch(name)
    if match is None:
        return None
    if len(name) == _BARE_ID_LENGTH:
        return Entry(queue, str.__new__(MessageId, name), state)
    return _entry(queue, state, *match.groups())


def _entry(
    queue: str,
    state: State,
    id: str,
    deadline: str | None,
    receives: str | None,
    receipt: str | None,
    order: str | None,
    expiry: str | None,
) -> Entry:
    """The entry with these fields of a leaf."""
    if deadline is None and receives is None and order is None and expiry is None and receipt is None:
        return Entry(queue, str.__new__(MessageId, id), state)
    meta = Meta(
        _deadline_ms(deadline) if deadline is not None else None,
        int(receives) if receives is not None else 0,
        receipt,
        int(order) if order is not None else None,
        int(expiry) if expiry is not None else None,
    )
    return Entry(queue, str.__new__(MessageId, id), state, meta)


def _deadline_ms(text: str) -> int:
    return int(text[1:]) + (GIVEN_MS if text[0] == "a" else 0)


def parse_flat(name: str, state: State) -> Entry | None:
    """The entry whose flat name is `name`; None when it is not one of mq's names."""
    match = _FLAT_NAME.fullmatch(name)
    if match is None:
        return None
    queue, *fields = match.groups()
    return _entry(sys.intern(queue), state, *fields)  # a start meets a million names of few queues


def parse_path(path: str) -> Entry | None:
    """The entry at a path below the root; None where none can be."""
    folder, _, name = path.rpartition("/")
    state = _FLAT.get(folder)
    if state is not None:
        return parse_flat(name, state)
    parent, _, queue = folder.rpartition("/")
    return parse_leaf(name, queue, State.READY) if parent == State.READY.value and is_queue_name(queue) else None


def is_queue_name(name: str) -> bool:
    """Whether a folder of that name in queues/ is a queue."""
    return _QUEUE.fullmatch(name) is not None


class Senseless(ValueError):
    """The properties of a message are not as mq writes them, or a part is missing: what was published is unknown. The
    text says more."""


class Sum(NamedTuple):
    """The content of ``user.mq.sum``.

    Attributes:
        size: length in bytes.
        checksum: CRC-32.
        attributes: where the attributes are: "" nowhere, "a" extended attribute, "f" side file.
    """

    size: int
    checksum: int
    attributes: str = ""

    def encode(self) -> bytes:
        """As the extended attribute holds it."""
        tail = f":{self.attributes}" if self.attributes else ""
        return f"{self.size}:{self.checksum:08x}{tail}".encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Sum | None:
        """The sum in the value of an extended attribute; None for no value.

        Raises:
            Senseless: mq never wrote this.
        """
        if value is None:
            return None
        match = _SUM.fullmatch(value)
        if match is None:
            raise Senseless(f"the message file's extended attribute {SUM} is invalid")
        return cls(int(match[1]), int(match[2], 16), (match[3] or b"").decode())


def announced_size(value: bytes | None) -> int | None:
    """The length that ``user.mq.sum`` begins with; None where that cannot be mq's."""
    digits = (value or b"").partition(b":")[0]
    return int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def largest_attributes(*, xattrs: bool, journaled: bool) -> int:
    """Return how many bytes of attributes, as JSON, a message's file may have; else they are in a side file.

    Args:
        xattrs: whether the file system has extended attributes. Where not, it is :data:`NO_ATTRIBUTES`.
        journaled: whether a power cut leaves each of them as it was set.
    """
    if not xattrs:
        return NO_ATTRIBUTES
    # Without a journal only what fits into the inode, which the sum takes: a repair can ruin the block in which other
    # attributes are, when it was a deleted file's before.
    return LARGEST_ATTRIBUTES if journaled else 0


def decode_attributes(value: bytes | None) -> Mapping[str, Any]:
    """The attributes in the value of an extended attribute.

    Raises:
        Senseless: there are none, their checksum does not match, or they are no JSON object.
    """
    if value is None:
        raise Senseless(f"the message file's extended attribute {ATTRIBUTES} is missing")
    try:
        found = json.loads(without_checksum(value))
    except _NOT_OURS as error:
        raise Senseless(
            f"the message file's extended attribute {ATTRIBUTES} is invalid: {_first_line(error)}"
        ) from error
    if not isinstance(found, dict):
        raise Senseless(
            f"the message file's extended attribute {ATTRIBUTES} is invalid: the value is not a JSON object"
        )
    return found


def encode_side(properties: Properties) -> bytes:
    """A side file's content."""
    return with_checksum(
        encode_json({"size": properties.size, "crc32": properties.checksum, "attributes": dict(properties.attributes)})
    )


def decode_side(content: bytes) -> Properties:
    """The properties in a side file.

    Raises:
        Senseless: it is damaged.
    """
    try:
        found = json.loads(without_checksum(content))
        return Properties(int(found["size"]), int(found["crc32"]), dict(found["attributes"]))
    except (*_NOT_OURS, KeyError, TypeError) as error:
        raise Senseless(f"the message's attributes file is invalid: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
