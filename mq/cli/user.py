"""The verb ``user``: changes the users of a file, or of a cluster. It takes no secret as an argument, for others can
read arguments; it asks for a password, or makes a token and prints it once. Hashes alone go to a cluster."""

from __future__ import annotations

import copy
import functools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from mq.access.aws_keys import AwsKey
from mq.access.hashes import check_password, time_text
from mq.access.rights import Right
from mq.access.user_limits import KEYS, is_limit, limits_of
from mq.access.users_editor import UsersEditor, UsersFile
from mq.access.users_file import Account, check_modes, is_pattern, shared_account
from mq.cli.commands import CANNOT_START, Commands, Duration
from mq.cli.remote import REMOTE_NAMES, Remote, remote_flags, remote_of, told
from mq.cli.terminal import say
from mq.errors import InvalidSetting
from mq.message import shorten
from mq.quantities import show_count
from mq.settings import load_settings

_LONGEST_SECONDS: Final = 3660 * 86_400
_TAKES_EFFECT: Final = "Send SIGHUP to a running daemon to apply the change."

_WITHOUT_RIGHTS: Final = (
    '{name} has no rights yet. Add some in the users file below [users."{name}"], such as consume = '
    '["orders.*"], or remove the user and add it again with --right RIGHT=PATTERN.'
)


def _parse_rights(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[Right, list[str]]:
    rights: dict[Right, list[str]] = {}
    for text in given:
        word, _, pattern = text.partition("=")
        if word not in list(Right) or not is_pattern(pattern):
            known = ", ".join(Right)
            raise click.BadParameter(f"use the form RIGHT=PATTERN (such as publish=orders.*). Known rights: {known}")
        rights.setdefault(Right(word), []).append(pattern)
    return rights


def _editing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the flags that say which users are meant; it gets what edits them first."""

    @click.option("--users", metavar="FILE", help="Path of the users file.  [MQ_USERS]")
    @click.option(
        "--cluster",
        "is_cluster",
        is_flag=True,
        help="Manage the users of the cluster at --url instead of the users in a users file.",
    )
    @remote_flags
    @functools.wraps(command)
    def with_editor(*args: Any, users: str | None, is_cluster: bool, **rest: Any) -> Any:
        if is_cluster and users is not None:
            raise click.UsageError("use either --users (for a users file) or --cluster (for the users of a cluster)")
        daemon = {name: rest.pop(name) for name in REMOTE_NAMES}  # what is wrong with them is no matter of a file
        with _refusing(), told():
            editor: UsersFile | ClusterUsers = ClusterUsers(remote_of(daemon)) if is_cluster else _file(users)
            return command(editor, *args, **rest)

    return with_editor


def _parse_limit(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """The limit that ``100`` stands for; infinite for ``none``."""
    if given is None or given == "none":
        return None if given is None else math.inf
    number = float(given) if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", given, re.ASCII) else -1
    value = int(number) if number == int(number) else number
    if not is_limit(str(parameter.name), value):
        what = "a number greater than 0" if parameter.name == "max_publish_rate" else "a whole number"
        raise click.BadParameter(f'the limit must be {what}, or "none" for no limit')
    return value


def _limit_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the flags of limits; it gets those that were given, by their keys in the users file, as `limits`;
    None for one that is to be no limit."""

    @click.option(
        "--max-connections",
        metavar="NUMBER",
        callback=_parse_limit,
        help='Maximum number of connections that the user may have open; the value "none" means no limit.',
    )
    @click.option(
        "--max-queues",
        metavar="NUMBER",
        callback=_parse_limit,
        help='Maximum number of queues that the user may create; the value "none" means no limit.',
    )
    @click.option(
        "--max-publish-rate",
        metavar="NUMBER",
        callback=_parse_limit,
        help='Maximum rate at which the user may publish, in messages per second; the value "none" means no limit.',
    )
    @functools.wraps(command)
    def with_limits(*args: Any, **rest: Any) -> Any:
        given = {key: rest.pop(key) for key in KEYS}
        limits = {key: None if value == math.inf else value for key, value in given.items() if value is not None}
        return command(*args, limits=limits, **rest)

    return with_limits


class ClusterUsers(UsersEditor):
    """The users of a cluster, by way of one of its nodes."""

    def __init__(self, daemon: Remote) -> None:
        self._daemon = daemon

    def accounts(self) -> tuple[Account, ...]:
        """The users, as they are at that node."""
        with self._daemon.client() as client:
            return tuple(shared_account(name, table) for name, table in client.users().items())

    @contextmanager
    def changing(self) -> Iterator[Any]:
        """The tables of users. What was changed is in effect at all nodes that are members, once the block is left."""
        with self._daemon.client() as client:
            before = client.users()
            users = copy.deepcopy(dict(before))
            yield users
            for name, table in users.items():
                if before.get(name) != table:
                    client.put_user(name, table)
            for name in before.keys() - users.keys():
                client.delete_user(name)


@click.group("user", cls=Commands)
def user_command() -> None:
    """Manage users and their limits, tokens and access keys."""


@user_command.command("add")
@click.argument("name")
@click.option(
    "--right",
    "rights",
    metavar="RIGHT=PATTERN",
    multiple=True,
    callback=_parse_rights,
    help="Right to grant to the user, and the queues to which it applies; for example, publish=orders.*. Can be "
    "repeated.",
)
@click.option("--password", "asks", is_flag=True, help="Ask for a password instead of creating a token.")
@click.option(
    "--unix",
    metavar="LOGIN",
    help="Let the operating-system user LOGIN connect as this user over the daemon's Unix socket, without a token.",
)
@click.option("--aws-key", "has_key", is_flag=True, help="Create an access key for AWS SDKs instead of a token.")
@_limit_flags
@_editing
def add_command(
    editor: UsersFile | ClusterUsers,
    /,
    name: str,
    rights: dict[Right, list[str]],
    asks: bool,
    unix: str | None,
    has_key: bool,
    limits: dict[str, float | None],
) -> None:
    """Add a user and print the user's token. The token cannot be shown again."""
    if unix is not None or has_key:
        _with_keys(editor)
    most = limits_of({key: value for key, value in limits.items() if value is not None})
    token = editor.add(name, rights, _ask_password() if asks else None, unix, only_aws_key=has_key, limits=most)
    key = _with_keys(editor).add_aws_key(name) if has_key else None
    if not rights:
        say(_WITHOUT_RIGHTS.format(name=name), err=True)
    if key is None:
        _print_token(editor, token)
    else:
        _print_key(key)


@user_command.command("list")
@_editing
def list_command(editor: UsersFile | ClusterUsers, /) -> None:
    """List users with their rights, limits and login methods. Secrets are not shown."""
    accounts = editor.accounts()
    for user, password, tokens, certificate, unix in accounts:
        say(user.name)
        for right, patterns in user.rights.items():
            say(f"  {right}: {' '.join(patterns)}")
        for key, value in user.limits.table().items():
            say(f"  {key}: {value}")
        say(f"  password: {'yes' if password else 'no'}, tokens: {len(tokens)}")
        if certificate is not None:
            say(f"  certificate: {certificate}")
        if unix is not None:
            say(f"  unix: {unix}")
        keys = editor.aws_keys(user.name) if isinstance(editor, UsersFile) else []
        if keys:
            say(f"  access keys for AWS SDKs: {' '.join(keys)}")
        for token in tokens:
            if token.expires is not None:
                say(f"  token {'expires' if token.expires > time.time() else 'expired'} {time_text(token.expires)}")


@user_command.command("limit")
@click.argument("name")
@_limit_flags
@_editing
def limit_command(editor: UsersFile | ClusterUsers, /, name: str, limits: dict[str, float | None]) -> None:
    """Show or change a user's limits."""
    if limits:
        now = editor.limit(name, limits)
        say(_takes_effect(editor), err=True)
    else:
        found = next((account.user.limits for account in editor.accounts() if account.user.name == name), None)
        if found is None:
            raise InvalidSetting(f"user {shorten(name)} does not exist")
        now = found
    table = now.table()
    for key in KEYS:
        say(f"{key}: {table[key]}" if key in table else f"{key}: none")


@user_command.command("remove")
@click.argument("name")
@_editing
def remove_command(editor: UsersFile | ClusterUsers, /, name: str) -> None:
    """Remove a user."""
    editor.remove(name)
    say(_takes_effect(editor), err=True)


@user_command.command("token")
@click.argument("name")
@click.option(
    "--only",
    is_flag=True,
    help="Also revoke all of the user's other tokens and the user's password. Access keys for AWS "
    "SDKs are not affected.",
)
@click.option(
    "--expires",
    "lasts",
    metavar="DURATION",
    type=Duration(1, _LONGEST_SECONDS),
    help="Time for which the token is valid, such as 12h or 30d. [default: no limit]",
)
@_editing
def token_command(editor: UsersFile | ClusterUsers, /, name: str, only: bool, lasts: float | None) -> None:
    """Create another token for a user and print it. The token cannot be shown again."""
    token = editor.add_token(name, only=only, expires=None if lasts is None else int(time.time() + lasts))
    _print_token(editor, token)


@user_command.command("aws-key")
@click.argument("name")
@click.option("--only", is_flag=True, help="Also revoke all of the user's other access keys.")
@_editing
def aws_key_command(editor: UsersFile | ClusterUsers, /, name: str, only: bool) -> None:
    """Create an additional access key with which the user can connect through AWS SDKs, and print it.

    The key cannot be shown again.
    """
    _print_key(_with_keys(editor).add_aws_key(name, only=only))


@user_command.command("retire")
@click.argument("name")
@_editing
def retire_command(editor: UsersFile | ClusterUsers, /, name: str) -> None:
    """Revoke all of a user's tokens except the newest one."""
    count = editor.retire(name)
    revoked = show_count(count, "older token")
    say(f"Revoked {revoked}; the user's newest token is still valid. {_takes_effect(editor)}", err=True)


def _file(users: str | None) -> UsersFile:
    """The file that the verb, the program, the environment or the settings' file names, in this order."""
    flags: Mapping[str, str | None] = click.get_current_context().find_root().obj or {}
    path = load_settings(flags if users is None else {**flags, "users": users}, os.environ).users
    if not path:
        raise InvalidSetting("no users file was specified: use --users FILE or set MQ_USERS")
    check_modes(path, "the users file")
    return UsersFile(path)


def _with_keys(editor: UsersFile | ClusterUsers) -> UsersFile:
    """The file, which alone may have AWS keys and login names.

    Raises:
        click.UsageError: it is a cluster.
    """
    if isinstance(editor, UsersFile):
        return editor
    raise click.UsageError(
        "access keys for AWS SDKs and login names (--unix) are stored on each machine, not in the cluster. Omit "
        "--cluster and use --users"
    )


def _takes_effect(editor: UsersFile | ClusterUsers) -> str:
    return _TAKES_EFFECT if isinstance(editor, UsersFile) else "The change is in effect on all connected nodes."


def _ask_password() -> str:
    """A password from the terminal, typed twice and unseen; without one, the first line of standard input."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    check_password(password)
    return password


def _print_token(editor: UsersFile | ClusterUsers, token: str | None) -> None:
    if token is not None:
        say(token)
        say("Save this token: it cannot be shown again.", err=True)
    say(_takes_effect(editor), err=True)


def _print_key(key: AwsKey) -> None:
    """Print a key as variables of a shell, and as a file of credentials has it."""
    say(f"AWS_ACCESS_KEY_ID={key.id}\nAWS_SECRET_ACCESS_KEY={key.secret}")
    say(f"Save this key: it cannot be shown again. {_TAKES_EFFECT}", err=True)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidSetting as error:
        say(f"mq: {error}", err=True)
        sys.exit(CANNOT_START)
