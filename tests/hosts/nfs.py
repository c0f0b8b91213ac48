"""A folder that one host exports over NFSv4, by the kernel's server, mounted on others by the kernel's client."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.hosts.network import Host, Network, until_done

_TOOLS: Final = ("rpc.nfsd", "rpc.mountd", "nfsdcld", "exportfs", "mount.nfs4")
_SILENT_SECONDS: Final = 10
"""A client that is not heard for so long loses its locks, and a server that comes back waits so long for clients."""
_PREPARE: Final = """
set -e
mkdir -p "$0/export"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /run/rpc /var/lib/nfs/v4recovery /var/lib/nfs/nfsdcld
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t rpc_pipefs rpc /run/rpc
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,sync,no_root_squash,fsid=0,no_subtree_check "*:$0/export"
"""


def missing() -> str:
    """Why there can be no NFS here; empty when there can."""
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian's nfs-kernel-server)"
    known = Path("/proc/filesystems").read_text("ascii").split()
    absent = [kind for kind in ("nfs4", "nfsd") if kind not in known]
    return f"this kernel has no {absent[0]} (tests/hosts/uml.sh has one that does)" if absent else ""


class Nfs:
    """One export, and a mount of it on each host but the last, which serves.

    Args:
        folder: where the export and the mount points are, a folder a host.
        hosts: the last has the one copy.
    """

    def __init__(self, network: Network, folder: Path, hosts: tuple[str, ...]) -> None:
        self._clients = {name: network[name] for name in hosts[:-1]}
        self._server = network[hosts[-1]]
        self._folder = folder

    def start(self) -> None:
        """Export the folder and mount it.

        Raises:
            HostsFailed: NFS says no, or takes too long.
        """
        place = self._folder / self._server.name
        place.mkdir(parents=True)
        self._server.run("bash", "-c", _PREPARE, str(place))
        for program in (("nfsdcld", "-F", "-p", "/run/rpc"), ("rpc.mountd", "-F", "-N", "2", "-N", "3")):
            self._server.start(*program, log=place / f"{program[0]}.log")
        self.revive_copy(self._server.name)
        for name, host in self._clients.items():
            self.root(name).mkdir(parents=True)
            until_done(lambda host=host, name=name: self._mount(host, self.root(name)))

    def root(self, name: str) -> Path:
        """Where it is mounted on a host. To be looked at from there alone."""
        return self._folder / name / "mount"

    def kill_copy(self, name: str) -> None:
        """The server, which is on the host `name`, answers no more; what it was asked for is in the kernel's hands."""
        self._server.run("rpc.nfsd", "0")

    def revive_copy(self, name: str) -> None:
        """Start the server on the host `name`."""
        versions = ("-N", "3", "-V", "4.2", "--tcp")
        self._server.run("rpc.nfsd", *versions, "-G", str(_SILENT_SECONDS), "-L", str(_SILENT_SECONDS), "8")

    def is_healed(self, name: str) -> bool:
        """Whether no copy lacks anything: there is one."""
        return bool(name)

    def _mount(self, host: Host, target: Path) -> None:
        host.run("mount", "-t", "nfs4", "-o", "vers=4.2", f"{self._server.address}:/", str(target))
