"""A disk that forgets what was not synced, as the system calls of a folder store.

Three kinds of file system, each as weak as it may be, not as strong as it usually is:

* ``ORDERED``, as ext4 with a journal and xfs: name changes reach the medium in the order in which they were made,
  across folders; a sync brings those up to the last one that concerns what is synced, and a crash any number more.
  Bytes that were written out are among these changes, and concern no sync by themselves.
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
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Final, NamedTuple, NoReturn
from zlib import crc32

from mq.storage.files.calls import FileKind, Native, Ownership
from simulation.faults import Faults

RANDOM_BYTES: Final = "/state/ballast"
"""The end of the path of the one file whose bytes no seed decides."""
_SECTOR: Final = 512


class Medium(enum.Enum):
    """What a file system keeps of what was not synced."""

    ORDERED = "ordered"
    UNORDERED = "unordered"
    ADVERSARIAL = "adversarial"


class _Node:
    """A file or a folder: what it is now, and what is kept of it on the medium."""

    __slots__ = (
        "attributes",
        "data",
        "folder",
        "kept_attributes",
        "kept_data",
        "kept_names",
        "lost",
        "lost_sectors",
        "names",
        "overwritten",
        "written_out",
    )

    def __init__(self, *, folder: bool) -> None:
        self.folder = folder
        self.names: dict[str, _Node] = {}
        self.kept_names: dict[str, _Node] = {}
        self.data = self.kept_data = b""
        self.attributes: dict[str, bytes] = {}
        self.kept_attributes: dict[str, bytes] = {}
        self.lost = False
        self.overwritten = False
        self.lost_sectors: set[int] = set()
        self.written_out: tuple[bytes, dict[str, bytes]] | None = None


class _Part(NamedTuple):
    """One name in one folder: set to a node, or taken out. Of what has no name the file is the `folder`."""

    folder: _Node
    name: str = ""
    node: _Node | None = None

    def concerns(self, node: _Node) -> bool:
        return node in (self.folder, self.node)

    def keep(self) -> None:
        if self.node is None:
            self.folder.kept_names.pop(self.name, None)
        else:
            self.folder.kept_names[self.name] = self.node


class _Touched(_Part):
    """A file's times were set. They are not kept."""

    __slots__ = ()

    def keep(self) -> None:
        pass


class _WrittenOut(_Part):
    """A file's bytes went to the disk, into its cache. A journal has the attributes that were set before."""

    __slots__ = ()

    def concerns(self, node: _Node) -> bool:
        return False

    def keep(self) -> None:
        if self.folder.written_out is not None:
            self.folder.kept_data, self.folder.kept_attributes = self.folder.written_out
            self.folder.written_out = None


class _Open(NamedTuple):
    node: _Node
    position: list[int]
    path: str


class Disk:
    """An empty disk.

    Args:
        faults: asked before every call.
        tell: told of every call, in a line: its verb, the paths below the root of the disk, sizes, and a CRC of data.
    """

    native: Native | None = None

    def __init__(
        self, medium: Medium, random: Random, faults: Faults, tell: Callable[[str], None] | None = None
    ) -> None:
        self.medium = medium
        self.trace = hashlib.sha256()
        self._tell = tell
        self._random = random
        self._faults = faults
        self._root = _Node(folder=True)
        self._pending: list[list[_Part]] = []
        self._open: dict[int, _Open] = {}
        self._locks: dict[int, tuple[_Node, bool]] = {}
        self._next = 3

    # What survives

    def crash(self) -> None:
        """Let the power fail: the disk has what its medium kept."""
        self._note("power cut")
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
        """Close all files and drop all locks, as if their processes were gone."""
        self._note("restart")
        self._open.clear()
        self._locks.clear()

    def _crash_node(self, node: _Node) -> None:
        node.names = node.kept_names = dict(node.kept_names)
        if node.overwritten and len(node.data) == len(node.kept_data):
            node.kept_data = self._overwrite_some(node.kept_data, node.data)
        elif node.data != node.kept_data:
            part = node.data[: self._random.randint(0, len(node.data))]
            node.kept_data = self._random.choice((node.kept_data, part, bytes(len(node.data)), node.data))
            if node.kept_data:  # the inode was written, and with it the attributes that were set before
                node.kept_attributes = node.attributes
        if self._random.random() < 0.5:
            node.kept_attributes = node.attributes
        node.data, node.lost, node.lost_sectors, node.written_out = node.kept_data, False, set(), None
        node.attributes = node.kept_attributes = dict(node.kept_attributes)
        node.names = dict(node.kept_names)

    def _overwrite_some(self, before: bytes, after: bytes) -> bytes:
        """The bytes after a crash: each overwritten sector is the old one, or the new one."""
        some = [number for number in _changed_sectors(before, after) if self._random.random() < 0.5]
        return _with_sectors(before, after, some)

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

    def open(self, path: str, flags: int, *, mode: int = 0o600, dir_fd: int | None = None) -> int:
        """The system call of that name."""
        verb, whole = "create" if flags & os.O_CREAT else "open", self._whole(path, dir_fd)
        self._note(f"{verb} {whole} {flags & os.O_ACCMODE} {mode:o}")
        self._enter(verb, whole)
        folder, name = self._parent(path, dir_fd)
        node = folder.names.get(name) if name else folder
        if node is None:
            if not flags & os.O_CREAT:
                _refuse(errno.ENOENT, path)
            node = _Node(folder=False)
            self._change(_Part(folder, name, node))
        elif flags & os.O_EXCL:
            _refuse(errno.EEXIST, path)
        elif flags & os.O_DIRECTORY and not node.folder:
            _refuse(errno.ENOTDIR, path)
        elif node.folder and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            _refuse(errno.EISDIR, path)
        elif flags & os.O_TRUNC:
            node.data = b""
        self._next += 1
        self._open[self._next] = _Open(node, [0], whole)
        return self._next

    def close(self, fd: int) -> None:
        """The system call of that name."""
        self._note(f"close {self._path(fd)}")
        self._open.pop(fd, None)
        self._locks.pop(fd, None)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """The system call of that name."""
        path = self._path(fd)
        self._note(f"write {path} {len(data)}" + ("" if path.endswith(RANDOM_BYTES) else f" {crc32(data):08x}"))
        self._enter("write", str(len(data)))
        node = self._open[fd].node
        written = bytes(data)[: self._faults.shorten(len(data))]
        node.data += written
        return len(written)

    def read(self, fd: int, size: int) -> bytes:
        """The system call of that name."""
        self._note(f"read {self._path(fd)} {size}")
        self._enter("read", str(size))
        node, position, _ = self._open[fd]
        data = node.data[position[0] : position[0] + size]
        position[0] += len(data)
        return data

    def write_at(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """The system call pwrite(2)."""
        self._note(f"write_at {self._path(fd)} {len(data)} at {offset} {crc32(data):08x}")
        self._enter("write_at", f"{len(data)} at {offset}")
        node = self._open[fd].node
        written = bytes(data)[: self._faults.shorten(len(data))]
        if not offset and len(written) >= len(node.data):
            node.lost = False  # each of its pages is to be written again
        before = node.data.ljust(offset, b"\0")
        node.lost_sectors -= set(range(offset // _SECTOR, -(-(offset + len(written)) // _SECTOR)))
        node.overwritten = offset + len(written) <= len(node.data)
        node.data = before[:offset] + written + before[offset + len(written) :]
        return len(written)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """The system call pread(2)."""
        self._note(f"read_at {self._path(fd)} {size} at {offset}")
        self._enter("read_at", str(size))
        return self._open[fd].node.data[offset : offset + size]

    def drop_cached(self, fd: int) -> None:
        """This disk is read as it is."""

    def write_in_place(self, fd: int) -> None:
        """Files of this disk are written in place."""
        self._note(f"write_in_place {self._path(fd)}")

    def write_out(self, fd: int, *, waits: bool) -> None:
        """The system call sync_file_range(2). It brings nothing by itself; that it was only begun says nothing."""
        self._note(f"write_out {self._path(fd)}{' wait' if waits else ''}")
        node = self._open[fd].node
        try:
            self._enter("write_out", "wait" if waits else "begin")
        except OSError:
            self._lose([node])
            raise
        if waits and self.medium is Medium.ORDERED and not node.lost and not node.lost_sectors:
            node.written_out = (node.data, node.attributes)
            self._pending.append([_WrittenOut(node)])

    def touch(self, fd: int) -> None:
        """Set a file's times, which are not kept: a change with a place among the others."""
        self._note(f"touch {self._path(fd)}")
        self._enter("touch", "file")
        if self.medium is Medium.ORDERED:
            self._pending.append([_Touched(self._open[fd].node)])

    def fdatasync(self, fd: int) -> None:
        """The system call of that name: the bytes of a file, and no name."""
        self._note(f"fdatasync {self._path(fd)}")
        node = self._open[fd].node
        try:
            self._enter("fdatasync", "file")
        except OSError:
            self._lose([node])
            raise
        _keep_node(node)

    def fsync(self, fd: int) -> None:
        """The system call of that name."""
        self._note(f"fsync {self._path(fd)}")
        node = self._open[fd].node
        try:
            self._enter("fsync", "folder" if node.folder else "file")
        except OSError:
            self._lose([node])
            raise
        self._sync(node)

    def syncfs(self, fd: int) -> None:
        """The system call of that name."""
        self._note(f"syncfs {self._path(fd)}")
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
        self._note(f"file_size {self._path(fd)}")
        node = self._open[fd].node
        return None if node.folder else len(node.data)

    def changed_ns(self, path: str) -> int:
        """This disk keeps no times."""
        self._note(f"changed_ns {path}")
        return 0

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST where the target is taken."""
        self._note(f"rename {source} {target}")
        self._enter("rename", f"{source} {target}")
        node, (folder, name) = self._node(source), self._parent(target)
        if name in folder.names:
            _refuse(errno.EEXIST, target)
        left, old = self._parent(source)
        self._change(_Part(folder, name, node), _Part(left, old, None))

    def link(self, source: str, target: str) -> None:
        """The system call of that name."""
        self._note(f"link {source} {target}")
        self._enter("link", f"{source} {target}")
        node, (folder, name) = self._node(source), self._parent(target)
        if name in folder.names:
            _refuse(errno.EEXIST, target)
        self._change(_Part(folder, name, node))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """The system call of that name."""
        whole = self._whole(path, dir_fd)
        self._note(f"unlink {whole}")
        self._enter("unlink", whole)
        if self._node(path, dir_fd).folder:
            _refuse(errno.EISDIR, path)
        self._change(_Part(*self._parent(path, dir_fd), None))

    def mkdir(self, path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        """The system call of that name."""
        whole = self._whole(path, dir_fd)
        self._note(f"mkdir {whole} {mode:o}")
        self._enter("mkdir", whole)
        folder, name = self._parent(path, dir_fd)
        if name in folder.names:
            _refuse(errno.EEXIST, path)
        self._change(_Part(folder, name, _Node(folder=True)))

    def rmdir(self, path: str) -> None:
        """The system call of that name."""
        self._note(f"rmdir {path}")
        self._enter("rmdir", path)
        if self._node(path).names:
            _refuse(errno.ENOTEMPTY, path)
        self._change(_Part(*self._parent(path), None))

    def names(self, path: str | int) -> list[tuple[str, FileKind]]:
        """The names in a folder, open or not; never sorted."""
        whole = self._whole(path)
        self._note(f"names {whole}")
        self._enter("names", whole)
        folder = self._open[path].node if isinstance(path, int) else self._node(path)
        listed = sorted(folder.names.items(), key=lambda item: hashlib.md5(item[0].encode()).digest())
        return [(name, FileKind.FOLDER if node.folder else FileKind.FILE) for name, node in listed]

    def kind(self, path: str) -> FileKind | None:
        """What a name stands for; None when it is not there."""
        self._note(f"kind {path}")
        try:
            return FileKind.FOLDER if self._node(path).folder else FileKind.FILE
        except FileNotFoundError:
            return None

    def ownership(self, path: str | int, *, dir_fd: int | None = None) -> Ownership:
        """There is one user here."""
        self._note(f"ownership {self._whole(path, dir_fd)}")
        return Ownership(os.geteuid(), os.getegid(), 0o700)

    def lock(self, fd: int, *, exclusive: bool) -> None:
        """As flock(2) without waiting."""
        self._note(f"lock {self._path(fd)} {'exclusive' if exclusive else 'shared'}")
        node = self._open[fd].node
        others = [wanted for other, (held, wanted) in self._locks.items() if held is node and other != fd]
        if others and (exclusive or any(others)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locks[fd] = (node, exclusive)

    def set_attribute(self, fd: int, name: str, value: bytes) -> None:
        """The system call fsetxattr(2)."""
        self._note(f"setxattr {self._path(fd)} {name} {len(value)} {crc32(value):08x}")
        self._enter("setxattr", name)
        node = self._open[fd].node
        node.attributes = {**node.attributes, name: value}

    def get_attribute(self, fd: int, name: str) -> bytes | None:
        """The system call fgetxattr(2); None when there is none."""
        self._note(f"getxattr {self._path(fd)} {name}")
        return self._open[fd].node.attributes.get(name)

    # How they are done

    def _note(self, line: str) -> None:
        if self._tell is not None:
            self._tell(line)

    def _path(self, fd: int) -> str:
        """The path by which it was opened, wherever the file is by now."""
        return self._open[fd].path if fd in self._open else "nothing"

    def _whole(self, path: str | int, dir_fd: int | None = None) -> str:
        if isinstance(path, int):
            return self._path(path)
        return path if dir_fd is None else f"{self._path(dir_fd)}/{path}"

    def _enter(self, verb: str, what: str) -> None:
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
            concerned = [i for i, change in enumerate(self._pending) if any(part.concerns(node) for part in change)]
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
        """A sync failed: what was to be written is clean in memory now, and not on the medium; nor is what the disk had
        in its cache.

        A journal keeps the names, and brings them with the next sync that works; a rename that is whole is lost whole.
        """
        out = [part.folder for change in self._pending for part in change if isinstance(part, _WrittenOut)]
        for node in {*nodes, *out}:
            node.written_out = None
            if node.overwritten and len(node.data) == len(node.kept_data):  # what is written later is not lost
                node.lost_sectors |= set(_changed_sectors(node.kept_data, node.data))
            else:
                node.lost = node.lost or node.data != node.kept_data
        folders = [node for node in nodes if node.folder]
        if self.medium is Medium.UNORDERED:
            self._pending = [change for change in self._pending if not any(part.folder in folders for part in change)]
        elif self.medium is Medium.ADVERSARIAL:
            rests = [[part for part in change if part.folder not in folders] for change in self._pending]
            self._pending = [rest for rest in rests if rest]

    def _node(self, path: str, dir_fd: int | None = None) -> _Node:
        folder, name = self._parent(path, dir_fd)
        if not name:
            return folder
        return folder.names.get(name) or _refuse(errno.ENOENT, path)

    def _parent(self, path: str, dir_fd: int | None = None) -> tuple[_Node, str]:
        *folders, name = path.strip("/").split("/")
        node = self._root if dir_fd is None else self._open[dir_fd].node
        for part in folders:
            node = node.names.get(part) or _refuse(errno.ENOENT, path)
            if not node.folder:
                _refuse(errno.ENOTDIR, path)
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
    node.written_out = None  # what is kept now is newer
    if node.lost_sectors:
        changed = set(_changed_sectors(node.kept_data, node.data))
        node.kept_data = _with_sectors(node.kept_data, node.data, changed - node.lost_sectors)
    elif not node.lost:
        node.kept_data, node.kept_attributes = node.data, node.attributes


def _changed_sectors(before: bytes, after: bytes) -> Iterator[int]:
    for number in range(-(-len(after) // _SECTOR)):
        sector = slice(number * _SECTOR, (number + 1) * _SECTOR)
        if before[sector] != after[sector]:
            yield number


def _with_sectors(before: bytes, after: bytes, numbers: Iterable[int]) -> bytes:
    """The bytes of `before`, with these sectors from `after`."""
    mixed = bytearray(before)
    for number in numbers:
        sector = slice(number * _SECTOR, (number + 1) * _SECTOR)
        mixed[sector] = after[sector]
    return bytes(mixed)


def _refuse(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
