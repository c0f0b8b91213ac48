"""Files of users for tests. The hashes are cheap: what a guess costs is a matter of test_hashes.py."""

from __future__ import annotations

from pathlib import Path

from mq.access import User
from mq.access.hashes import Cost, PasswordHash, token_hash
from mq.access.users_file import read_users

CHEAP = Cost(2, 1, 1)
PASSWORD = "correct horse"
TOKEN = "mq_" + "t" * 43
OTHER_TOKEN = "mq_" + "o" * 43


def write_users(path: Path, text: str) -> str:
    """Write the file, closed to others; PASSWORD and TOKEN in the text stand for their hashes."""
    text = text.replace("OTHER_TOKEN", str(token_hash(OTHER_TOKEN))).replace("TOKEN", str(token_hash(TOKEN)))
    path.write_text(text.replace("PASSWORD", str(PasswordHash.of(PASSWORD, CHEAP))))
    path.chmod(0o600)
    return str(path)


def users_in(path: str | Path) -> dict[str, User]:
    """The users in a file, by name."""
    return {account.user.name: account.user for account in read_users(str(path))}
