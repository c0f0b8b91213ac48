"""The verb ``certificate``: a certificate that signs itself, and its key, by the program ``openssl``.

Making one needs a library of cryptography, which Python brings none of and serving needs none of; ``openssl`` is on
every machine that speaks TLS.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import click

from mq.cli.commands import REFUSED, Number
from mq.cli.terminal import say

CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"
_HOST: Final = re.compile(r"(?=.{1,253}\Z)(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_-]+)*", re.ASCII)
_HERE: Final = ("localhost", "127.0.0.1", "::1")
_LONGEST_COMMON_NAME: Final = 64
_REQUEST: Final = """[req]
prompt = no
distinguished_name = subject
x509_extensions = extensions
[subject]
CN = {common}
[extensions]
subjectAltName = {names}
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyCertSign
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
"""
"""Whole, so that nothing of the machine's own openssl.cnf counts. It signs itself, and so is its own authority: checks
by the letter (Python 3.13) ask for keyCertSign then."""


def _check_names(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if not _is_address(name) and _HOST.fullmatch(name) is None:
            raise click.BadParameter(f"{name!a:.60} is neither a host name nor an IP address")
    return given


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@click.command("certificate")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    callback=_check_names,
    help="Host name or IP address to include in the certificate in addition to this machine's host name, localhost and "
    "the loopback addresses. Can be repeated.",
)
@click.option(
    "--days",
    metavar="NUMBER",
    type=Number(1, 3650),
    default=365,
    show_default=True,
    help="Number of days for which the certificate is valid.",
)
def certificate_command(folder: str, names: tuple[str, ...], days: int) -> None:
    """Create a self-signed TLS certificate and its key.

    The files cert.pem and key.pem are written to FOLDER; existing files are never overwritten. To trust the
    server, clients need cert.pem (mq --ca, curl --cacert).
    """
    hostname = socket.gethostname()
    own = (*_HERE, hostname) if _HOST.fullmatch(hostname) else _HERE
    try:
        certificate, key = make_certificate(Path(folder), tuple(dict.fromkeys((*names, *own))), days)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else folder
        _fail(
            f"{where} already exists and was not overwritten"
            if isinstance(error, FileExistsError)
            else f"cannot create {where}: {error.strerror}"
        )
    except NoCertificate as error:
        _fail(str(error))
    say(f"{certificate}\n{key}")
    say(
        f"To use the certificate, run mq serve --tls-cert {certificate} --tls-key {key}. Clients must use "
        f"--ca {certificate}",
        err=True,
    )


def _fail(text: str) -> NoReturn:
    say(f"mq: {text}", err=True)
    sys.exit(REFUSED)


class NoCertificate(Exception):
    """``openssl`` is not there, or made none. The text says why and what to do."""


def make_certificate(folder: Path, names: tuple[str, ...], days: int) -> tuple[Path, Path]:
    """Make both files; the key is readable for its owner alone.

    Args:
        names: host names and addresses, at least one; they are checked already.

    Returns:
        (certificate, key)

    Raises:
        FileExistsError: one of them is there. Nothing was changed.
        NoCertificate: there is no ``openssl``, or it failed.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # whatever the umask is: others may read the certificate, and put no key in its place
    targets = folder / CERTIFICATE, folder / KEY
    for target in targets:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "file exists", str(target))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mq-certificate-") as scratch:
        request, certificate, key = (Path(scratch) / name for name in ("request", CERTIFICATE, KEY))
        alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
        request.write_text(_REQUEST.format(common=names[0][:_LONGEST_COMMON_NAME], names=alternatives))
        _run_openssl(request, certificate, key, days)
        # The key first: a certificate whose key is there is whole. A link overwrites nothing.
        os.link(key, targets[1])
        os.link(certificate, targets[0])
    return targets


def _run_openssl(request: Path, certificate: Path, key: Path, days: int) -> None:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-config", str(request), "-out", str(certificate), "-keyout", str(key)]
    command = ["openssl", "req", "-x509", "-sha256", "-days", str(days), *curve, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, umask=0o077)
    except FileNotFoundError:
        raise NoCertificate("the program openssl was not found. Install it (apt install openssl)") from None
    if done.returncode:
        reason = " ".join(done.stderr.split())[-300:]
        raise NoCertificate(f"openssl failed: {reason}")
    certificate.chmod(0o644)
