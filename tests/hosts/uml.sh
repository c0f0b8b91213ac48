#!/usr/bin/env bash
# Runs tests in a kernel of their own (user-mode Linux), as root, where this machine's kernel has no NFS:
#
#     tests/hosts/uml.sh tests/hosts/test_shared_root.py -m proof -k nfs
#
# Debian: user-mode-linux, kmod, nfs-kernel-server, e2fsprogs. The kernel sees this machine's files as they are; what the
# tests write goes to a disk of its own, which is thrown away. Ends with the status of pytest.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
    tree=$(cd "$(dirname "$0")/../.." && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    truncate -s 3G "$work/disk"
    mkfs.ext4 -q -F "$work/disk"
    # The kernel takes no more than some words, so the rest is in a file, which its first process runs.
    printf '#!/bin/bash\nexec %q --inside %q %q' "$tree/tests/hosts/uml.sh" "$tree" "$work" >"$work/init"
    printf ' %q' "$@" >>"$work/init"
    chmod +x "$work/init"
    linux.uml ubda="$work/disk" root=/dev/root rootfstype=hostfs rootflags=/ rw mem=3G "init=$work/init" \
        con=null con0=fd:0,fd:1 </dev/null >"$work/kernel.log" 2>&1 &
    kernel=$!
    : >"$work/said"
    tail -f --pid="$kernel" "$work/said"
    wait "$kernel" || true
    exit "$(cat "$work/status" 2>/dev/null || { tail -n 20 "$work/kernel.log" >&2; echo 1; })"
fi

tree=$2 work=$3
shift 3
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /run /mnt /var/lib/nfs; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p /run/kernel/lib /mnt/disk
ln -s /usr/lib/uml/modules /run/kernel/lib/modules
for module in nfsd nfsv4 nfs veth bridge; do modprobe -d /run/kernel "$module"; done
ip link set lo up
mount -t ext4 /dev/ubda /mnt/disk
cd "$tree"
export HOME=/mnt/disk TMPDIR=/mnt/disk PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
status=0
.venv/bin/pytest -n0 -p no:cacheprovider --basetemp=/mnt/disk/tests "$@" >"$work/said" 2>&1 || status=$?
echo "$status" >"$work/status"
sync
poweroff -f
