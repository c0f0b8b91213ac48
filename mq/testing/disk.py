"""A disk that forgets what was not synced, as the system calls of a folder store.

Three kinds of file system, each as weak as it may be, not as strong as it usually is:

* ``ORDERED``, as ext4 with a journal and xfs: name changes reach the medium in the order in which they were made,
  across folders; a sync brings those up to the last one that concerns what is synced, and a crash any number more.
* ``UNORDERED``, as btrfs: a rename is whole or not there, but each change reaches the medium on its own; syncing a
  folder brings what was put into it, not what the same rename took out of another.
* ``ADVERSARIAL``, as ext4 without a journal: each name is on its own, and a rename may leave both names or none.

Everywhere, bytes that were not synced are there, or not, or a part of them, or as zeros. After a failed sync the bytes
are lost, and the next sync says that all is well, as real file systems do.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
from collections.abc import Iterator
from random import Random
from typing import NamedTuple, NoReturn

from mq.storage.calls import FileKind, Native
from mq.testing.faults import Faults


class Medium(enum.Enum):
    """What a file system keeps of what was not synced."""

    ORDERED = "ordered"
    UNORDERED = "unordered"
    ADVERSARIAL = "adversarial"


class _Node:
    """A file or a folder: what it is now, and what is kept of it on the medium."""

    __slots__ = ("attributes", "data", "folder", "kept_attributes", "kept_data", "kept_names", "lost", "names")

    def __init__(self, *, folder: bool) -> None:
        self.folder = folder
        self.names: dict[str, _Node] = {}
        self.kept_names: dict[str, _Node] = {}
        self.data = self.kept_data = b""
        self.attributes: dict[str, bytes] = {}
        self.kept_attributes: dict[str, bytes] = {}
        self.lost = False


class _Part(NamedTuple):
    """One name in one folder: set to a node, or taken out."""

    folder: _Node
    name: str
    node: _Node | None

    def keep(self) -> None:
        if self.node is None:
            self.folder.kept_names.pop(self.name, None)
        else:
            self.folder.kept_names[self.name] = self.node


class _Open(NamedTuple):
    node: _Node
    position: list[int]


class Disk:
    """An empty disk.

    Args:
        medium: what its file system keeps.
        random: decides what a crash leaves.
        faults: asked before every call.
    """

    native: Native | None = None

    def __init__(self, medium: Medium, random: Random, faults: Faults) -> None:
        self.medium = medium
        self.trace = hashlib.sha256()
        self._random = random
        self._faults = faults
        self._root = _Node(folder=True)
        self._pending: list[list[_Part]] = []
        self._open: dict[int, _Open] = {}
        self._locks: dict[int, tuple[_Node, bool]] = {}
        self._next = 3

    # What survives

    def crash(self) -> None:
        """The power fails: the disk is what its medium kept."""
        if self.medium is Medium.ORDERED:
            for change in self._pending[: self._random.randint(0, len(self._pending))]:
                _keep(change)
        elif self.medium is Medium.UNORDERED:
            for change in self._pending:
                if self._random.random() < 0.5:
                    _keep(change)
        else:
            for change in self._pending:
                _keep([part for part in change if self._random.random() < 0.5])
        self._pending.clear()
        for node in self._kept_nodes():
            self._crash_node(node)
        self.forget_handles()

    def forget_handles(self) -> None:
        """The processes are gone, and with them their open files and locks."""
        self._open.clear()
        self._locks.clear()

    def _crash_node(self, node: _Node) -> None:
        node.names = node.kept_names = dict(node.kept_names)
        if node.data != node.kept_data:
            part = node.data[: self._random.randint(0, len(node.data))]
            node.kept_data = self._random.choice((node.kept_data, part, bytes(len(node.data)), node.data))
            if node.kept_data:  # the inode was written, and with it the attributes that were set before
                node.kept_attributes = node.attributes
        if self._random.random() < 0.5:
            node.kept_attributes = node.attributes
        node.data, node.lost = node.kept_data, False
        node.attributes = node.kept_attributes = dict(node.kept_attributes)
        node.names = dict(node.kept_names)

    def _kept_nodes(self) -> Iterator[_Node]:
        waiting, seen = [self._root], {id(self._root)}
        while waiting:
            node = waiting.pop()
            yield node
            for _, child in sorted(node.kept_names.items()):
                if id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)

    # The system calls

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """The system call of that name."""
        self._enter("create" if flags & os.O_CREAT else "open", path)
        folder, name = self._parent(path)
        node = folder.names.get(name) if name else folder
        if node is None:
            if not flags & os.O_CREAT:
                _refuse(errno.ENOENT, path)
            node = _Node(folder=False)
            self._change(_Part(folder, name, node))
        elif flags & os.O_EXCL:
            _refuse(errno.EEXIST, path)
        self._next += 1
        self._open[self._next] = _Open(node, [0])
        return self._next

    def close(self, fd: int) -> None:
        """The system call of that name."""
        self._open.pop(fd, None)
        self._locks.pop(fd, None)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The system call of that name."""
        self._enter("write", str(len(data)))
        node = self._open[fd].node
        written = bytes(data)[: self._faults.shorten(len(data))]
        node.data += written
        return len(written)

    def read(self, fd: int, size: int) -> bytes:
        """The system call of that name."""
        self._enter("read", str(size))
        node, position = self._open[fd]
        data = node.data[position[0] : position[0] + size]
        position[0] += len(data)
        return data

    def fsync(self, fd: int) -> None:
        """The system call of that name."""
        node = self._open[fd].node
        try:
            self._enter("fsync", "folder" if node.folder else "file")
        except OSError:
            self._lose([node])
            raise
        self._sync(node)

    def syncfs(self, fd: int) -> None:
        """The system call of that name."""
        nodes = list(self._all_nodes())
        try:
            self._enter("syncfs", "")
        except OSError:
            self._lose(nodes)
            raise
        for change in self._pending:
            _keep(change)
        self._pending.clear()
        for node in nodes:
            _keep_node(node)

    def file_size(self, fd: int) -> int | None:
        """Size in bytes of an open plain file; None when it is anything else."""
        node = self._open[fd].node
        return None if node.folder else len(node.data)

    def changed_ns(self, path: str) -> int:
        """This disk keeps no times."""
        return 0

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST where the target is taken."""
        self._enter("rename", f"{source} {target}")
        node, (folder, name) = self._node(source), self._parent(target)
        if name in folder.names:
            _refuse(errno.EEXIST, target)
        left, old = self._parent(source)
        self._change(_Part(folder, name, node), _Part(left, old, None))

    def link(self, source: str, target: str) -> None:
        """The system call of that name."""
        self._enter("link", f"{source} {target}")
        node, (folder, name) = self._node(source), self._parent(target)
        if name in folder.names:
            _refuse(errno.EEXIST, target)
        self._change(_Part(folder, name, node))

    def unlink(self, path: str) -> None:
        """The system call of that name."""
        self._enter("unlink", path)
        if self._node(path).folder:
            _refuse(errno.EISDIR, path)
        self._change(_Part(*self._parent(path), None))

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        """The system call of that name."""
        self._enter("mkdir", path)
        folder, name = self._parent(path)
        if name in folder.names:
            _refuse(errno.EEXIST, path)
        self._change(_Part(folder, name, _Node(folder=True)))

    def rmdir(self, path: str) -> None:
        """The system call of that name."""
        self._enter("rmdir", path)
        if self._node(path).names:
            _refuse(errno.ENOTEMPTY, path)
        self._change(_Part(*self._parent(path), None))

    def names(self, path: str) -> list[tuple[str, FileKind]]:
        """What is in a folder, in an order that is not that of the names."""
        self._enter("names", path)
        listed = sorted(self._node(path).names.items(), key=lambda item: hashlib.md5(item[0].encode()).digest())
        return [(name, FileKind.FOLDER if node.folder else FileKind.FILE) for name, node in listed]

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there."""
        try:
            return FileKind.FOLDER if self._node(path).folder else FileKind.FILE
        except FileNotFoundError:
            return None

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """As flock(2) without waiting."""
        node = self._open[fd].node
        others = [wanted for other, (held, wanted) in self._locks.items() if held is node and other != fd]
        if others and (exclusive or any(others)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[fd] = (node, exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call fsetxattr(2)."""
        self._enter("setxattr", name)
        node = self._open[fd].node
        node.attributes = {**node.attributes, name: value}

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call fgetxattr(2); None when there is none."""
        return self._open[fd].node.attributes.get(name)

    # How they are done

    def _enter(self, verb: str, what: str) -> None:
        if verb == "names":
            what = ""  # recovery lists the queues in the order of a set
        self.trace.update(f"{verb} {what}\n".encode())
        self._faults.enter(verb, what)

    def _change(self, *parts: _Part) -> None:
        for folder, name, node in parts:
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
        self._pending.append(list(parts))

    def _sync(self, node: _Node) -> None:
        _keep_node(node)
        if self.medium is Medium.ORDERED:
            concerned = [i for i, change in enumerate(self._pending) if any(node in part for part in change)]
            end = concerned[-1] + 1 if concerned else 0
            for change in self._pending[:end]:
                _keep(change)
            del self._pending[:end]
        elif node.folder:
            self._pending = [rest for change in self._pending if (rest := self._sync_parts(change, node))]

    def _sync_parts(self, change: list[_Part], folder: _Node) -> list[_Part]:
        """Keep what syncing `folder` brings of a change; what is left of it."""
        left = any(part.folder is folder and part.node is None for part in change)
        whole = self.medium is Medium.UNORDERED and left
        _keep([part for part in change if whole or part.folder is folder])
        return [] if whole else [part for part in change if part.folder is not folder]

    def _lose(self, nodes: list[_Node]) -> None:
        """A sync failed: what was to be written is clean in memory now, and not on the medium.

        A journal keeps the names, and brings them with the next sync that works; a rename that is whole is lost whole.
        """
        for node in nodes:
            node.lost = node.lost or node.data != node.kept_data
        folders = [node for node in nodes if node.folder]
        if self.medium is Medium.UNORDERED:
            self._pending = [change for change in self._pending if not any(part.folder in folders for part in change)]
        elif self.medium is Medium.ADVERSARIAL:
            rests = [[part for part in change if part.folder not in folders] for change in self._pending]
            self._pending = [rest for rest in rests if rest]

    def _node(self, path: str) -> _Node:
        folder, name = self._parent(path)
        if not name:
            return folder
        return folder.names.get(name) or _refuse(errno.ENOENT, path)

    def _parent(self, path: str) -> tuple[_Node, str]:
        *folders, name = path.strip("/").split("/")
        node = self._root
        for part in folders:
            node = node.names.get(part) or _refuse(errno.ENOENT, path)
        return node, name

    def _all_nodes(self) -> Iterator[_Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.names.values()


def _keep(change: list[_Part]) -> None:
    for part in change:
        part.keep()


def _keep_node(node: _Node) -> None:
    if not node.lost:
        node.kept_data, node.kept_attributes = node.data, node.attributes


def _refuse(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
