"""Which addresses may be listened on, with how much protection."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from mq.errors import InvalidSetting
from mq.message import shorten


class Protection(NamedTuple):
    """What stands between a door and its clients.

    Attributes:
        has_users: it lets in users alone.
        has_tls: nothing can be read on the way.
        has_client_ca: over TLS, it lets in only clients with a certificate.
    """

    has_users: bool
    has_tls: bool
    has_client_ca: bool


def check_exposure(address: str, protection: Protection, *, insecure: bool) -> None:
    """Refuse to listen where strangers could read along or log in.

    Args:
        address: IP address or host name.
        protection: what there is.
        insecure: allow it all the same.

    Raises:
        InvalidSetting: the network could reach it, and it lacks TLS, or users.
    """
    if insecure or is_loopback(address):
        return
    lacking = []
    if not protection.has_tls:
        lacking.append("without TLS (--tls-cert, --tls-key)")
    if not protection.has_users and not protection.has_client_ca:
        lacking.append("without users (--users)")
    if lacking:
        what = " and ".join(lacking)
        raise InvalidSetting(f"listening on {shorten(address)} {what} is refused: add that, or say --insecure")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it. Of names only ``localhost`` counts: others may lead anywhere."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
