"""A GlusterFS volume on hosts of a test's own: a copy of every file on each, mounted on each as a client would."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.hosts.network import Host, Network, Process, until_done

VOLUME: Final = "mq"
_TOOLS: Final = ("glusterd", "gluster", "glusterfs")
_PREPARE: Final = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/gluster "$0/lib" "$0/log" "$0/brick" "$0/mount"
mount --bind "$0/lib" /var/lib/glusterd
mount --bind "$0/log" /var/log/glusterfs
"""


def missing() -> str:
    """Why there can be no volume here; empty when there can."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian's glusterfs-server)"
    return "" if Path("/dev/fuse").exists() else "there is no /dev/fuse"


class Gluster:
    """One volume with a replica on each host of a network.

    Args:
        folder: where bricks, logs and mount points are, a folder a host.
        ping_seconds: how long a brick that does not answer is waited for.
    """

    def __init__(self, network: Network, folder: Path, hosts: tuple[str, ...], *, ping_seconds: int = 5) -> None:
        self._hosts = {name: network[name] for name in hosts}
        self._folder = folder
        self._ping_seconds = ping_seconds
        self._managers: dict[str, Process] = {}
        self._mounts: dict[str, Process] = {}

    def start(self) -> None:
        """Make the volume and mount it on each host.

        Raises:
            HostsFailed: GlusterFS says no, or takes too long.
        """
        for name, host in self._hosts.items():
            self._place(name).mkdir(parents=True)
            host.run("bash", "-c", _PREPARE, str(self._place(name)))
            log = self._place(name) / "glusterd.log"
            self._managers[name] = host.start("glusterd", "-N", "-p", "/run/glusterd.pid", log=log)
        first, *others = self._hosts.values()
        until_done(lambda: self._gluster(first, "pool", "list"))
        for host in others:
            until_done(lambda host=host: self._gluster(first, "peer", "probe", host.address))
        bricks = [f"{host.address}:{self._place(name)}/brick" for name, host in self._hosts.items()]
        replicas = ("replica", str(len(bricks)))
        until_done(lambda: self._gluster(first, "volume", "create", VOLUME, *replicas, *bricks, "force"))
        self._gluster(first, "volume", "set", VOLUME, "network.ping-timeout", str(self._ping_seconds))
        self._gluster(first, "volume", "start", VOLUME)
        for name in self._hosts:
            self._mount(name)

    def root(self, name: str) -> Path:
        """Where the volume is mounted on a host. To be looked at from there alone."""
        return self._place(name) / "mount"

    def kill_copy(self, name: str) -> None:
        """kill -9 of the server of a host's copy."""
        self._hosts[name].run("bash", "-c", "kill -9 $(cat /run/gluster/vols/*/*.pid)")

    def revive_copy(self, name: str) -> None:
        """Start the server of a host's copy again; what it has missed is brought to it by and by."""
        self._gluster(self._hosts[name], "volume", "start", VOLUME, "force")

    def is_healed(self, name: str) -> bool:
        """Whether no copy lacks anything, asked on a host."""
        said = self._gluster(self._hosts[name], "volume", "heal", VOLUME, "info", "summary")
        counts = [line.rpartition(":")[2].strip() for line in said.splitlines() if line.startswith("Total Number")]
        return len(counts) == len(self._hosts) and set(counts) == {"0"}

    def _mount(self, name: str) -> None:
        host, log = self._hosts[name], self._place(name) / "mount.log"
        servers = [f"--volfile-server={other.address}" for other in self._hosts.values()]
        flags = ("--no-daemon", f"--volfile-id={VOLUME}", f"--log-file={log}")
        self._mounts[name] = host.start("glusterfs", *flags, *servers, str(self.root(name)), log=log)
        until_done(lambda: host.run("mountpoint", "-q", str(self.root(name))))
        until_done(lambda: host.run("ls", str(self.root(name))))

    def _place(self, name: str) -> Path:
        return self._folder / name

    def _gluster(self, host: Host, *arguments: str) -> str:
        return host.run("gluster", "--mode=script", *arguments)
