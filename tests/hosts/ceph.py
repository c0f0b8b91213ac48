"""CephFS on hosts of a test's own: a copy of every object on each, mounted on each by ceph-fuse as a client would."""

from __future__ import annotations

import json
import secrets
import shutil
import uuid
from pathlib import Path
from typing import Final

from tests.hosts.network import Host, HostsFailed, Network, Process, until_done

_TOOLS: Final = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph-authtool", "monmaptool")
_ASKED_AGAIN: Final = 5
_DISK_BYTES: Final = 4 << 30
"""Of each store of objects: a sparse file."""
_MONITOR_PORT: Final = 6789
SHUT_OUT_SECONDS: Final = 30
"""A client that is not heard for so long is shut out for good, and till then others wait for what it holds. Ceph takes
no less; its default is 60."""
_CONFIG: Final = """
[global]
fsid = {fsid}
mon host = v1:{monitor}:{port}
auth cluster required = none
auth service required = none
auth client required = none
ms bind msgr2 = false
osd pool default size = {copies}
osd pool default min size = {enough}
osd pool default pg autoscale mode = off
osd objectstore = bluestore
bluestore block size = {bytes}
osd heartbeat interval = 1
osd heartbeat grace = {grace}
mon osd min down reporters = 1
mon data avail warn = 1
mon data avail crit = 1
run dir = {folder}/run
log file = {folder}/log/$name.log
pid file = {folder}/run/$name.pid
admin socket =
mon data = {folder}/$name
osd data = {folder}/$name
mds data = {folder}/$name
mgr data = {folder}/$name
mgr initial modules =
"""


def missing() -> str:
    """Why there can be no CephFS here; empty when there can."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian's ceph-mon, ceph-mgr, ceph-osd, ceph-mds and ceph-fuse)"
    return "" if Path("/dev/fuse").exists() else "there is no /dev/fuse"


class Ceph:
    """A file system with a store of objects on each of some hosts, and the one monitor and the one server of names on
    another host, which no test disturbs.

    Args:
        folder: where stores, logs and mount points are, a folder a host.
        silent_seconds: how long a store that does not answer is waited for.
    """

    def __init__(
        self, network: Network, folder: Path, hosts: tuple[str, ...], keeper: str, *, silent_seconds: int = 5
    ) -> None:
        self._hosts = {name: network[name] for name in hosts}
        self._keeper = network[keeper]
        self._folder = folder
        self._numbers = {name: number for number, name in enumerate(hosts)}
        self._stores: dict[str, Process] = {}
        self._mounts: dict[str, Process] = {}
        self._others: list[Process] = []
        self._config = folder / "ceph.conf"
        self._fsid = str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
        self._text = _CONFIG.format(
            fsid=self._fsid,
            monitor=self._keeper.address,
            port=_MONITOR_PORT,
            copies=len(hosts),
            enough=len(hosts) // 2 + 1,
            bytes=_DISK_BYTES,
            grace=silent_seconds,
            folder=folder,
        )

    def start(self) -> None:
        """Make the file system and mount it on each host.

        Raises:
            HostsFailed: Ceph says no, or takes too long.
        """
        for part in ("run", "log", "mon.a", "mgr.a", "mds.a", *(f"osd.{number}" for number in self._numbers.values())):
            (self._folder / part).mkdir(parents=True)
        self._config.write_text(self._text)
        self._start_monitor()
        for name in self._hosts:
            self._make_store(name)
            self.revive_copy(name)
            until_done(lambda name=name: self._check_up(name))
        until_done(lambda: self._ask("osd", "pool", "create", "names", "8"))
        until_done(lambda: self._ask("osd", "pool", "create", "bodies", "8"))
        until_done(lambda: self._ask("fs", "new", "mq", "names", "bodies"))
        until_done(lambda: self._ask("fs", "set", "mq", "session_timeout", str(SHUT_OUT_SECONDS)))
        self._others.append(self._run(self._keeper, "ceph-mds", "-f", "-i", "a"))
        until_done(self._check_active)
        for name in self._hosts:
            self._mount(name)

    def root(self, name: str) -> Path:
        """Where it is mounted on a host. To be looked at from there alone."""
        return self._folder / name / "mount"

    def kill_copy(self, name: str) -> None:
        """kill -9 of the server of a host's copy."""
        self._stores[name].kill()

    def revive_copy(self, name: str) -> None:
        """Start the server of a host's copy; what it has missed is brought to it by and by."""
        self._stores[name] = self._run(self._hosts[name], "ceph-osd", "-f", "-i", str(self._numbers[name]))

    def is_healed(self, name: str) -> bool:
        """Whether no copy lacks anything. `name` is the host on which it is asked; all know the same."""
        said = self._ask("pg", "dump", "pgs_brief", "-f", "json")
        return said.count('"state":"active+clean"') == said.count('"state":')

    def mount_again(self, name: str) -> None:
        """As an operator does on a host that was shut out, once nothing there uses the mount any more."""
        self._mounts[name].kill()
        self._hosts[name].run("umount", "--lazy", str(self.root(name)))
        self._mount(name)

    def _start_monitor(self) -> None:
        keys, known = str(self._folder / "keyring"), str(self._folder / "monitors")
        address = f"[v1:{self._keeper.address}:{_MONITOR_PORT}]"
        everything = [word for part in ("mon", "osd", "mds", "mgr") for word in ("--cap", part, "allow *")]
        self._keeper.run("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", address, known)
        self._keeper.run("ceph-authtool", "--create-keyring", keys, "--gen-key", "-n", "mon.", *everything[:3])
        self._keeper.run("ceph-authtool", keys, "--gen-key", "-n", "client.admin", *everything)
        config = ("-c", str(self._config), "-i", "a")
        self._keeper.run("ceph-mon", *config, "--mkfs", "--monmap", known, "--keyring", keys)
        self._others.append(self._run(self._keeper, "ceph-mon", "-f", "-i", "a"))
        until_done(lambda: self._ask("status"))
        self._others.append(self._run(self._keeper, "ceph-mgr", "-f", "-i", "a"))

    def _make_store(self, name: str) -> None:
        own = str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
        number = str(self._numbers[name])
        self._ask("osd", "new", own)  # the numbers count from 0
        made = ("--mkfs", "--osd-uuid", own, "--fsid", self._fsid)
        self._hosts[name].run("ceph-osd", "-c", str(self._config), "-i", number, *made)

    def _check_up(self, name: str) -> None:
        """Start a store anew that has ended: the first is told "wrong fsid", too."""
        if not self._stores[name].is_running():
            self.revive_copy(name)
        known = json.loads(self._ask("osd", "dump", "-f", "json"))["osds"]
        if not any(store["up"] for store in known if store["osd"] == self._numbers[name]):
            raise HostsFailed(f"the store on {name} is not up")

    def _check_active(self) -> None:
        if "up:active" not in self._ask("mds", "stat"):
            raise HostsFailed("the server of names is not ready")

    def _mount(self, name: str) -> None:
        host, target = self._hosts[name], self.root(name)
        target.mkdir(parents=True, exist_ok=True)
        self._mounts[name] = self._run(host, "ceph-fuse", "-f", str(target))
        until_done(lambda: host.run("mountpoint", "-q", str(target)))
        until_done(lambda: host.run("ls", str(target)))

    def _run(self, host: Host, program: str, *arguments: str) -> Process:
        log = self._folder / "log" / f"{host.name}-{program}.out"
        keys = ("--keyring", str(self._folder / "keyring"))
        return host.start(program, "-c", str(self._config), *keys, *arguments, log=log)

    def _ask(self, *words: str) -> str:
        keys = ("--keyring", str(self._folder / "keyring"))
        command = ("ceph", "-c", str(self._config), *keys, "--connect-timeout", "10", *words)
        for _ in range(_ASKED_AGAIN):  # on a busy machine it asks before it knows which cluster it asks: "wrong fsid"
            try:
                return self._keeper.run(*command)
            except HostsFailed as error:
                if "problem getting command descriptions" not in str(error):
                    raise
        return self._keeper.run(*command)
