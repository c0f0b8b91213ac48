"""nginx, HAProxy and Caddy as processes of a test, with the configurations of docs/proxies.md."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.documents import blocks
from tests.e2e.daemon import TREE

SECONDS: Final = 20
PAGE: Final = TREE / "docs" / "proxies.md"
_SYSTEM: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/bin"


class Files:
    """A certificate for localhost and mq.example, as the configurations name it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1", "mq.example")
        self.ca = folder / "ca.pem"
        self.certificate, self.key, self.both = (folder / f"{name}.pem" for name in ("cert", "key", "both"))
        authority.cert_pem.write_to_path(self.ca)
        self.key.write_bytes(certificate.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
        self.both.write_bytes(self.certificate.read_bytes() + self.key.read_bytes())
        self.key.chmod(0o600)


def documented(language: str, number: int = 0) -> str:
    """A configuration of the page."""
    return blocks(PAGE, language)[number]


def program(name: str) -> str:
    """Where a proxy is installed; skips without it."""
    found = shutil.which(name, path=_SYSTEM)
    if found is None:
        pytest.skip(f"there is no {name} here: sudo bash tests/setup-system.sh --yes")
    return found


def fitted(text: str, port: int, daemon: int, files: Files) -> str:
    """A configuration for these ports and files. Everything in it that would lead elsewhere is replaced."""
    for old, new in (
        ("mq.example:8443", f"https://localhost:{port}"),
        ("bind :8443", f"bind 127.0.0.1:{port}"),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{daemon}"),
        ("/etc/mq/tls/cert.pem", str(files.certificate)),
        ("/etc/mq/tls/key.pem", str(files.key)),
        ("/etc/mq/tls/both.pem", str(files.both)),
    ):
        text = text.replace(old, new)
    assert "/etc/" not in text
    return text


def _nginx(folder: Path, text: str) -> list[str]:
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    log = f"error_log {folder}/error.log;\npid {folder}/pid;\n"
    config = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""  # else its workers may not write into the folder
    config.write_text(f"daemon off;\n{user}{log}events {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n")
    return [program("nginx"), "-p", str(folder), "-c", str(config), "-e", f"{folder}/error.log"]


def _haproxy(folder: Path, text: str) -> list[str]:
    config = folder / "haproxy.cfg"
    config.write_text(text)
    return [program("haproxy"), "-db", "-f", str(config)]


def _caddy(folder: Path, text: str) -> list[str]:
    config = folder / "Caddyfile"
    # On all addresses the port can be another program's, whose connection begins there.
    options = ("admin off", "auto_https disable_redirects", "skip_install_trust", "default_bind 127.0.0.1")
    config.write_text("\n\t".join(("{", *options, f"storage file_system {folder}")) + f"\n}}\n{text}")
    return [program("caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]


_COMMANDS: Final = {"nginx": _nginx, "haproxy": _haproxy, "caddy": _caddy}


@contextmanager
def running(name: str, folder: Path, text: str, port: int) -> Iterator[None]:
    """A proxy with that configuration, until the block ends."""
    folder.mkdir(exist_ok=True)
    command = _COMMANDS[name](folder, text)
    with (folder / "output").open("wb") as output:
        environment = {"HOME": str(folder), "PATH": _SYSTEM}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    try:
        _wait_until_it_listens(process, port, folder)
        yield
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """Real time: another process starts."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, (folder / "output").read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, (folder / "output").read_text()
            time.sleep(0.02)
        else:
            return
