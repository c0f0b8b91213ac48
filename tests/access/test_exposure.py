"""Which addresses may be listened on, with how much protection."""

from __future__ import annotations

import pytest

from mq.access.exposure import Protection, check_exposure, is_loopback
from mq.errors import InvalidSetting

NOTHING = Protection(has_users=False, has_tls=False, has_client_ca=False)
USERS = NOTHING._replace(has_users=True)
TLS = NOTHING._replace(has_tls=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"])
def test_on_this_machine_nothing_is_asked_for(address: str) -> None:
    assert is_loopback(address)
    check_exposure(address, NOTHING, insecure=False)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1", "2001:db8::1", "example.org", "localhost.example.org", "0", "127.1"],
)
@pytest.mark.parametrize(
    ("protection", "lacks"),
    [(NOTHING, ("--tls-cert", "--users")), (USERS, ("--tls-cert",)), (TLS, ("--users",))],
)
def test_elsewhere_what_is_lacking_is_told(address: str, protection: Protection, lacks: tuple[str, ...]) -> None:
    assert not is_loopback(address)
    with pytest.raises(InvalidSetting) as caught:
        check_exposure(address, protection, insecure=False)
    text = str(caught.value)
    assert address in text
    assert tuple(flag for flag in ("--tls-cert", "--users") if flag in text) == lacks
    assert "--insecure" in text
    check_exposure(address, protection, insecure=True)


@pytest.mark.parametrize("protection", [TLS._replace(has_users=True), TLS._replace(has_client_ca=True)])
def test_tls_and_somebody_who_is_known_will_do(protection: Protection) -> None:
    check_exposure("0.0.0.0", protection, insecure=False)
