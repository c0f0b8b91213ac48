"""What an address may say, and what it never may."""

from __future__ import annotations

from pathlib import Path

import pytest
from mq_postgres.address import Address, parse_address
from mq_postgres.store import make_postgres

from mq.errors import StorageUnusable
from mq.storage.interface import Sharing
from mq.storage.options import StorageOptions
from tests.cases import for_each


@for_each(
    "rest, parameters",
    [
        ("//mq@localhost/mq", {"host": "localhost", "user": "mq", "sslmode": "prefer"}),
        ("//127.0.0.1:6000/mq", {"host": "127.0.0.1", "port": "6000", "sslmode": "prefer"}),
        ("//[::1]:6000/mq", {"host": "::1", "port": "6000", "sslmode": "prefer"}),
        ("///mq", {"sslmode": "prefer"}),
        ("///mq?host=/run/postgresql", {"host": "/run/postgresql", "sslmode": "prefer"}),
        ("//m%40q@db.example/mq", {"host": "db.example", "user": "m@q", "sslmode": "verify-full"}),
        ("//a,b:6000/mq", {"host": "a,b", "port": ",6000", "sslmode": "verify-full"}),
        ("//localhost,b/mq", {"host": "localhost,b", "sslmode": "verify-full"}),
        ("//127.0.0.1.example/mq", {"host": "127.0.0.1.example", "sslmode": "verify-full"}),
        ("//db.example/mq?sslmode=require", {"host": "db.example", "sslmode": "require"}),
        ("//db.example/mq?sslrootcert=/ca.pem", {"sslrootcert": "/ca.pem", "sslmode": "verify-full"}),
    ],
)
def test_says_where_and_how(rest: str, parameters: dict[str, str]) -> None:
    """Remote, nothing less than a checked certificate, unless it is said."""
    found = parse_address(rest).parameters
    assert found["dbname"] == "mq"
    assert found.items() >= parameters.items()
    assert ("target_session_attrs" in found) == ("host" in found and not found["host"].startswith("/"))


def test_the_deadline_may_have_a_unit() -> None:
    assert parse_address("//localhost/mq?deadline=1.5m").deadline == 90


@for_each(
    "rest, text",
    [
        ("", "requires a host and a database"),
        ("//localhost", "requires a host and a database"),
        ("mq", "requires a host and a database"),
        ("//mq:hunter2@localhost/mq", "must not contain a password"),
        ("//localhost/mq?password=hunter2", "must not contain a password"),
        ("//localhost/mq?schema=Orders", "invalid schema name"),
        ("//localhost/mq?schema=pg_mine", "invalid schema name"),
        ("//localhost/mq?schema=a-b%22", "invalid schema name"),
        ("//localhost/mq?sslmode=on", "unknown sslmode"),
        ("//localhost/mq?deadline=0", "such as deadline=10s"),
        ("//localhost/mq?options=-c", "unknown option"),
        ("//localhost/mq?host=/run", "only accepts a Unix socket folder"),
        ("//a b/mq", "invalid PostgreSQL hosts"),
        ("//[::1/mq", "invalid PostgreSQL address"),
    ],
)
def test_says_what_makes_no_sense(rest: str, text: str) -> None:
    with pytest.raises(StorageUnusable, match=text) as raised:
        parse_address(rest)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("sharing", [Sharing.PEERS, Sharing.WATCHED])
def test_says_whom_it_does_not_serve(sharing: Sharing) -> None:
    with pytest.raises(StorageUnusable, match="one daemon at a time"):
        make_postgres("//localhost/mq", StorageOptions(sharing=sharing))


def test_a_password_file_is_for_mq_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    address = Address({}, password_file=str(file))
    file.chmod(0o604)
    with pytest.raises(StorageUnusable, match="run chmod 600 on the file") as raised:
        address.password()
    assert "hunter2" not in str(raised.value)
    file.chmod(0o640)
    assert address.password() == "hunter2"
    file.unlink()
    with pytest.raises(StorageUnusable, match="cannot read the password file"):
        address.password()
