"""What mq takes a file system for, from tables as the kernel writes them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest

from mq.storage.files.mount import _KNOWN, Mount, mount_of, syncfs_reports_errors
from tests.cases import for_each

ANOTHER: Final = "9:99"
"""A device that holds nothing here: what the table says of btrfs, whose subvolumes have anonymous numbers."""


class Machine:
    """A table of mounts, a list of journals, and a folder that is asked about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mnt"
        self.folder.mkdir()
        self.root = self.folder / "mq"
        self.root.mkdir()
        self._mounts = folder / "mountinfo"
        self._journals = folder / "jbd2"
        self._journals.mkdir()
        self._lines: list[bytes] = []
        device = os.lstat(self.root).st_dev
        self.device = f"{os.major(device)}:{os.minor(device)}"

    def mount(
        self,
        kind: str,
        source: str = "/dev/sda1",
        *,
        point: Path | str | None = None,
        device: str | None = None,
        options: str = "rw,relatime",
        more: str = "rw",
        optional: str = "",
    ) -> None:
        """A line of the table."""
        shown = os.fsencode(str(point or self.folder))
        for byte in b"\\ \t\n":
            shown = shown.replace(bytes([byte]), f"\\{byte:03o}".encode())
        number = len(self._lines) + 20
        head = f"{number} 1 {device or self.device} / ".encode() + shown + f" {options}".encode()
        self._lines.append(head + f"{optional} - {kind} {source} {more}\n".encode())

    def journal(self, name: str) -> None:
        """A journal that the kernel knows."""
        (self._journals / name).mkdir()

    def mount_of(self, path: Path | None = None) -> Mount:
        """What mq takes it for."""
        self._mounts.write_bytes(b"".join(self._lines))
        return mount_of(str(path or self.root), str(self._mounts), str(self._journals))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


KNOWN: Final[dict[str, tuple[bool, bool, bool]]] = {
    "xfs": (True, True, True),
    "zfs": (True, True, False),
    "btrfs": (True, True, False),
    "tmpfs": (False, True, True),
    "ramfs": (False, True, True),
    "nfs": (True, True, False),
    "nfs4": (True, True, False),
    "ceph": (True, True, False),
    "fuse.glusterfs": (True, True, False),
    "fuse.mfs": (True, True, False),
    # Nothing is known of these: the protocol that needs the least.
    "ext2": (True, False, False),
    "f2fs": (True, False, False),
    "vfat": (True, False, False),
    "9p": (True, False, False),
    "overlay": (True, False, False),
    "fuse.something": (True, False, False),
    "a-kind-of-tomorrow": (True, False, False),
}
"""Kind -> whether it is persistent, its renames are atomic, and its names ordered."""


@for_each("kind", KNOWN, machine=Machine)
def test_file_system_is_taken_for_what_it_is(machine: Machine, kind: str) -> None:
    machine.mount(kind)
    found = machine.mount_of()
    assert (found.kind, found.persistent, found.atomic_rename, found.ordered) == (kind, *KNOWN[kind])
    assert found.flaw == ""


@for_each("kind", ["ext3", "ext4"])
@for_each(
    "source, journal, journaled",
    [
        ("/dev/sda1", "sda1-8", True),
        ("/dev/nvme0n1p2", "nvme0n1p2-8", True),
        ("/dev/sda1", None, False),
        ("/dev/sda1", "sda11-8", False),
        ("/dev/sda1", "sda1", False),
        ("/dev/sda1", "sda1-9", False),
        ("/dev/root", "sda1-8", False),
    ],
    machine=Machine,
)
def test_ext4_is_trusted_where_the_kernel_lists_its_journal(
    machine: Machine, kind: str, source: str, journal: str | None, journaled: bool
) -> None:
    machine.mount(kind, source)
    if journal:
        machine.journal(journal)
    found = machine.mount_of()
    assert (found.kind, found.atomic_rename, found.ordered, found.syncfs) == (kind, *[journaled] * 3)


def test_ext4_on_a_device_by_another_name(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "dm-3").touch()
    (tmp_path / "data").symlink_to("dm-3")
    machine.mount("ext4", str(tmp_path / "data"))
    machine.journal("dm-3-8")
    assert machine.mount_of().atomic_rename


def test_a_machine_without_a_list_of_journals_is_not_trusted(machine: Machine, tmp_path: Path) -> None:
    machine.mount("ext4")
    machine.mount_of()
    (tmp_path / "jbd2").rmdir()
    assert not machine.mount_of().atomic_rename


@pytest.mark.parametrize("where", ["options", "more"])
def test_a_volatile_overlay_is_refused(machine: Machine, where: str) -> None:
    machine.mount("overlay", "overlay", **{where: "rw,lowerdir=/l,upperdir=/u,workdir=/w,volatile"})
    assert "volatile" in machine.mount_of().flaw


def test_an_overlay_is_not_refused_for_a_folder_of_that_name(machine: Machine) -> None:
    machine.mount("overlay", "overlay", more="rw,lowerdir=/volatile,upperdir=/u,workdir=/w")
    assert machine.mount_of().flaw == ""


def test_volatile_means_nothing_elsewhere(machine: Machine) -> None:
    machine.mount("xfs", more="rw,volatile")
    assert machine.mount_of().flaw == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4"])
@pytest.mark.parametrize(("lock", "is_refused"), [("all", True), ("flock", True), ("posix", False), ("none", False)])
def test_locks_that_no_other_machine_hears_of_are_refused(
    machine: Machine, kind: str, lock: str, *, is_refused: bool
) -> None:
    machine.mount(kind, "10.0.0.1:/", more=f"rw,vers=4.2,hard,local_lock={lock},addr=10.0.0.1")
    assert ("mounted with local locks" in machine.mount_of().flaw) is is_refused


@for_each(
    "kind, option",
    [
        ("ext4", "nobarrier"),
        ("ext4", "barrier=0"),
        ("ext3", "barrier=0"),
        ("xfs", "nobarrier"),
        ("btrfs", "nobarrier"),
        ("gfs2", "nobarrier"),
        ("ocfs2", "barrier=0"),
        ("reiserfs", "barrier=none"),
        ("f2fs", "fsync_mode=nobarrier"),
        ("cifs", "nostrictsync"),
    ],
)
@for_each("where", ["options", "more"], machine=Machine)
def test_without_barriers_nothing_is_durable(machine: Machine, kind: str, option: str, where: str) -> None:
    machine.mount(kind, **{where: f"rw,{option},data=ordered"})
    machine.journal("sda1-8")
    found = machine.mount_of()
    assert (found.persistent, found.flushes, found.durable, found.flaw) == (True, False, False, "")


@pytest.mark.parametrize(
    "option", ["barrier", "barrier=1", "barriers", "fsync_mode=posix", "errors=nobarrier", "relatime"]
)
def test_with_barriers_it_is(machine: Machine, option: str) -> None:
    machine.mount("ext4", more=f"rw,{option}")
    assert machine.mount_of().durable


def test_what_is_in_memory_is_not_durable(machine: Machine) -> None:
    machine.mount("tmpfs")
    assert not machine.mount_of().durable


REMOTE: Final = (
    *(
        "nfs",
        "nfs4",
        "ceph",
        "fuse.ceph-fuse",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "beegfs",
        "gpfs",
        "ocfs2",
        "gfs2",
        "9p",
        "virtiofs",
    ),
    *(
        "afs",
        "orangefs",
        "pvfs2",
        "glusterfs",
        "coda",
        "ncpfs",
        "panfs",
        "quobyte",
        "acfs",
        "wekafs",
        "a-kind-of-tomorrow",
    ),
    *("fuse.glusterfs", "fuse.mfs", "fuse.sshfs", "fuse.juicefs", "fuse.s3fs", "fuse.seaweedfs", "fuse", "fuse.ext4"),
)
LOCAL: Final = (
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "bcachefs",
    "overlay",
    "vfat",
    "fuseblk",
    "tmpfs",
)


@for_each("kind", [*REMOTE, *LOCAL], machine=Machine)
def test_only_what_is_known_to_be_local_is_not_remote(machine: Machine, kind: str) -> None:
    """Also one of a name that nobody has heard of yet: to look costs little, and a local view of a shared root is a
    second broker that believes itself alone."""
    machine.mount(kind)
    assert machine.mount_of().remote == (kind in REMOTE)


@for_each("kind", [*REMOTE, *LOCAL], machine=Machine)
def test_what_was_never_measured_is_known_for_that(machine: Machine, kind: str) -> None:
    """Where nothing is known of a local one, its names are moved in the way that was measured without a journal."""
    machine.mount(kind)
    is_measured = kind in ("fuse.glusterfs", "fuse.ceph-fuse", "nfs4") or (kind in LOCAL and kind != "zfs")
    assert machine.mount_of().assumed == (not is_measured)


def test_what_no_table_tells_of_is_remote(machine: Machine) -> None:
    assert machine.mount_of().remote


def test_the_device_decides_before_the_path(machine: Machine) -> None:
    machine.mount("xfs", device=machine.device)
    machine.mount("ext2", device=ANOTHER)
    assert machine.mount_of().kind == "xfs"


def test_an_anonymous_device_is_found_by_the_longest_path(machine: Machine) -> None:
    machine.mount("xfs", point="/", device=ANOTHER)
    machine.mount("btrfs", device="0:77")
    machine.mount("ext2", point=machine.folder / "other", device="0:78")
    assert machine.mount_of().kind == "btrfs"


def test_a_path_is_not_inside_another_that_begins_like_it(machine: Machine) -> None:
    machine.mount("btrfs", point="/", device=ANOTHER)
    machine.mount("xfs", point=str(machine.root)[:-1], device="0:77")
    assert machine.mount_of().kind == "btrfs"


@pytest.mark.parametrize("turned", [False, True])
def test_of_mounts_on_one_point_the_last_is_seen(machine: Machine, turned: bool) -> None:
    for kind in ("btrfs", "xfs") if turned else ("xfs", "btrfs"):
        machine.mount(kind, device=ANOTHER)
    assert machine.mount_of().kind == ("xfs" if turned else "btrfs")


def test_a_root_reached_by_a_link_is_where_the_link_leads(machine: Machine, tmp_path: Path) -> None:
    machine.mount("xfs", point="/", device=ANOTHER)
    machine.mount("btrfs", device="0:77")
    link = tmp_path / "link"
    link.symlink_to(machine.folder)
    assert machine.mount_of(link / "mq").kind == "btrfs"


POINTS: Final = {
    "space": "with space",
    "tab": "tab\there",
    "backslash": "back\\slash",
    "newline": "line\nend",
    "latin": "Größe",
    "kanji": "日本",
    "no encoding": "\udcff\udcfe",
    "an escape": "\\040",
}


@pytest.mark.parametrize("name", POINTS.values(), ids=POINTS)
def test_a_mount_point_may_have_any_name(machine: Machine, name: str) -> None:
    folder = machine.folder / name
    (folder / "mq").mkdir(parents=True)
    machine.mount("xfs", point="/", device=ANOTHER)
    machine.mount("btrfs", point=folder, device="0:77")
    assert machine.mount_of(folder / "mq").kind == "btrfs"


@pytest.mark.parametrize("optional", ["", " shared:1", " shared:1 master:2 propagate_from:3", " unbindable"])
def test_optional_fields_do_not_confuse(machine: Machine, optional: str) -> None:
    machine.mount("btrfs", optional=optional)
    assert machine.mount_of().kind == "btrfs"


@pytest.mark.parametrize("source", ["", "none", "a\\040b", "host:/export"])
def test_a_source_may_be_anything(machine: Machine, source: str) -> None:
    """Also nothing at all: containers mount some file systems so, and one such line must not hide the others."""
    machine.mount("tmpfs", source, point="/run/x", device=ANOTHER)
    machine.mount("btrfs", source, more="rw,ssd")
    assert machine.mount_of().kind == "btrfs"


def test_an_empty_table_is_nothing_known(machine: Machine) -> None:
    found = machine.mount_of()
    assert (found.persistent, found.atomic_rename, found.ordered, found.flaw) == (True, False, False, "")


def test_a_path_that_is_not_there_is_an_error(machine: Machine) -> None:
    machine.mount("xfs")
    with pytest.raises(FileNotFoundError):
        machine.mount_of(machine.folder / "nowhere")


def test_this_machine_is_read() -> None:
    assert mount_of("/proc").kind == "proc"
    assert mount_of("/").kind != "unknown"


@for_each(
    "release, reports",
    [
        ("6.18.44-fc-v595", True),
        ("5.8.0", True),
        ("5.10", True),
        ("10.0.1", True),
        ("5.7.19", False),
        ("4.18.0-553.el8.x86_64", False),
        ("6", False),
        ("", False),
        ("nonsense", False),
        ("x.y.z", False),
        ("5.8-rc1", False),
    ],
)
def test_syncfs_is_used_where_it_reports_errors(release: str, reports: bool) -> None:
    assert syncfs_reports_errors(release or "-") is reports


def test_the_running_kernel_is_asked() -> None:
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    assert syncfs_reports_errors() is ((major, minor) >= (5, 8))


PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "on-disk.md"
ROW: Final = re.compile(r"^\| (.*`.*) \| (rename|link) \| (yes|no) \| (yes|no) \| (.+) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[bool, bool, bool, bool]]:
    """The page's table: file system -> (persistent, atomic_rename, ordered, syncfs)."""
    found = {}
    for names, way, ordered, syncfs, why in ROW.findall(PAGE.read_text()):
        for name in re.findall(r"`([\w.-]+)`", names):
            without = " without a journal" if "without a journal" in names else ""
            found[name + without] = (
                "gone with the power" not in why,
                way == "rename",
                ordered == "yes",
                syncfs == "yes",
            )
    return found


def test_page_says_of_each_file_system_what_mq_does_on_it(machine: Machine) -> None:
    machine.journal("sda1-8")
    told = rows()
    assert {"ext4", "ext4 without a journal", "xfs", "btrfs", *_KNOWN} <= set(told)
    for row, traits in told.items():
        kind, _, without = row.partition(" ")
        machine._lines.clear()
        machine.mount(kind, "/dev/sdb1" if without else "/dev/sda1")
        found = machine.mount_of()
        assert (found.persistent, found.atomic_rename, found.ordered, found.syncfs) == traits, row
