"""The verb ``user``: what it prints, what it asks for, and what it never takes."""

from __future__ import annotations

import copy
import os
import pty
import pwd
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mq import cli
from mq.access import TokenExpired, UserDirectory
from mq.access.hashes import COST, PasswordHash, token_hash
from mq.access.rights import Right, User
from mq.access.user_limits import KEYS, UserLimits
from mq.cli import user
from mq.client import Client
from mq.settings import LINES
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.cases import for_each

TOKEN_FORM = re.compile(r"mq_[A-Za-z0-9_-]{43}")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in LINES:
        monkeypatch.delenv(line.variable, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "users.toml")


def run(*args: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["user", *args], input=typed, prog_name="mq")


def test_a_user_with_a_token(path: str) -> None:
    done = run(
        "add", "shop", "--users", path, "--right", "publish=orders.*", "--right", "publish=x", "--right", "consume=*"
    )
    assert done.exit_code == 0
    assert TOKEN_FORM.fullmatch(done.stdout.strip())  # that and nothing else, so that a script can take it
    assert "cannot be shown again" in done.stderr
    assert "SIGHUP" in done.stderr
    user = UserDirectory(path).by_token(done.stdout.strip())
    assert user is not None
    assert user.rights == {Right.PUBLISH: ("orders.*", "x"), Right.CONSUME: ("*",)}


def test_a_user_without_rights_is_told_to_have_none(path: str) -> None:
    done = run("add", "shop", "--users", path)
    assert "shop has no rights yet" in done.stderr
    assert 'Add some in the users file below [users."shop"]' in done.stderr
    assert TOKEN_FORM.fullmatch(done.stdout.strip())
    assert "no right" not in run("add", "other", "--users", path, "--right", "consume=*").stderr


def test_a_user_with_a_password_from_standard_input(path: str) -> None:
    done = run("add", "anna", "--users", path, "--password", typed=f"{PASSWORD}\n")
    assert done.exit_code == 0
    assert PASSWORD not in done.output
    access = UserDirectory(path)
    assert access.verify("anna", PASSWORD) is not None
    assert f"scrypt:{COST.n}:" in Path(path).read_text()


@pytest.mark.slow
def test_a_password_that_is_typed_is_not_shown(path: str) -> None:
    """As a process: only a real terminal has an echo to turn off."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mq", "user", "add", "anna", "--password", "--users", path]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        for prompt in (b"Password:", b"confirmation:"):
            while prompt not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, PASSWORD.encode() + b"\n")
        while b"SIGHUP" not in shown:
            shown += os.read(ours, 1000)
        assert process.wait(30) == 0
    os.close(ours)
    assert PASSWORD.encode() not in shown
    assert UserDirectory(path).verify("anna", PASSWORD) is not None


def test_a_list_shows_no_hash(path: str) -> None:
    write_users(
        Path(path),
        '[users.shop]\ntokens = ["TOKEN"]\npublish = ["orders.*", "x"]\n[users.anna]\npassword = "PASSWORD"\n',
    )
    done = run("list", "--users", path)
    assert done.stdout == ("shop\n  publish: orders.* x\n  password: no, tokens: 1\nanna\n  password: yes, tokens: 0\n")


def test_tokens_come_and_go(path: str) -> None:
    write_users(Path(path), '[users.shop]\ntokens = ["TOKEN"]\n')
    second = run("token", "shop", "--users", path).stdout.strip()
    assert UserDirectory(path).by_token(TOKEN) == UserDirectory(path).by_token(second)
    assert (
        "Revoked 1 older token; the user's newest token is still valid."
        in run("retire", "shop", "--users", path).stderr
    )
    assert UserDirectory(path).by_token(TOKEN) is None
    assert UserDirectory(path).by_token(second) is not None
    third = run("token", "shop", "--only", "--users", path).stdout.strip()
    assert UserDirectory(path).by_token(second) is None
    assert UserDirectory(path).by_token(third) is not None
    assert run("remove", "shop", "--users", path).exit_code == 0
    assert UserDirectory(path).by_token(third) is None


def test_the_file_is_named_in_four_ways(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_users(Path(path), "[users.here]")
    assert "here" in run("list", "--users", path).stdout
    assert "here" in CliRunner().invoke(cli.main, ["--users", path, "user", "list"]).stdout
    (tmp_path / "mq.toml").write_text(f'users = "{path}"')
    assert "here" in CliRunner().invoke(cli.main, ["--config", str(tmp_path / "mq.toml"), "user", "list"]).stdout
    monkeypatch.setenv("MQ_USERS", path)
    assert "here" in run("list").stdout


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("list",), "no users file was specified: use --users FILE or set MQ_USERS"),
        (("list", "--users", "{path}/x"), "Not a directory"),
        (("add", "here", "--users", "{path}"), "user here already exists"),
        (("add", "a b", "--users", "{path}"), "invalid user name"),
        (("remove", "zoe", "--users", "{path}"), "does not exist"),
        (("token", "zoe", "--users", "{path}"), "does not exist"),
        (("retire", "zoe", "--users", "{path}"), "does not exist"),
        (("add", "zoe", "--password", "--users", "{path}"), "8 to 1024"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_2(path: str, args: tuple[str, ...], reason: str) -> None:
    write_users(Path(path), "[users.here]")
    before = Path(path).read_bytes()
    done = run(*(arg.format(path=path) for arg in args), typed="short\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(r"mq: [^\n]+\n", done.stderr)
    assert reason in done.stderr
    assert "short" not in done.stderr
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("right", ["publish", "publish=", "fly=*", "=*", "Publish=*", "publish=a\tb", ""])
def test_a_wrong_right_says_what_a_right_is(path: str, right: str) -> None:
    done = run("add", "zoe", "--users", path, "--right", right)
    assert done.exit_code == 2
    assert "publish=orders.*" in done.stderr
    assert not Path(path).exists()


@pytest.mark.parametrize("verb", user.user_command.commands)
def test_no_verb_takes_a_secret_as_an_argument(verb: str) -> None:
    command = user.user_command.commands[verb]
    takes_a_value = {param.name for param in command.params if not getattr(param, "is_flag", False)}
    a_daemon = {"url", "credentials", "ca", "certificate", "patience"}  # credentials are a file
    assert takes_a_value <= {"name", "users", "rights", "lasts", "unix", *KEYS} | a_daemon


def test_a_token_that_expires(path: str) -> None:
    write_users(Path(path), "[users.shop]\n")
    token = run("token", "shop", "--expires", "30d", "--users", path).stdout.strip()
    assert UserDirectory(path).by_token(token) is not None
    for days, knows in ((29.99, True), (30.01, False)):
        later = time.time() + days * 86_400
        access = UserDirectory(path, wall_clock=lambda later=later: later)
        if knows:
            assert access.by_token(token) is not None
        else:
            with pytest.raises(TokenExpired):
                access.by_token(token)
    assert re.search(
        r"tokens: 1\n  token expires 2\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\n", run("list", "--users", path).stdout
    )


@for_each("given", ["", "d", "0d", "-1d", "30y", "9999w", "٣d"])
def test_a_duration_that_is_none_is_refused(path: str, given: str) -> None:
    write_users(Path(path), "[users.shop]\n")
    refused = run("token", "shop", "--expires", given, "--users", path)
    assert refused.exit_code == 2
    assert not refused.stdout


def test_a_user_of_the_machine_needs_no_token(path: str) -> None:
    us = pwd.getpwuid(os.geteuid())
    done = run("add", "us", "--users", path, "--unix", us.pw_name, "--right", "consume=*")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"  unix: {us.pw_name}\n" in run("list", "--users", path).stdout
    found = UserDirectory(path).by_uid(us.pw_uid)
    assert found is not None
    assert found.name == "us"


def test_a_user_of_the_machine_may_have_a_password_too(path: str) -> None:
    us = pwd.getpwuid(os.geteuid())
    done = run("add", "us", "--users", path, "--unix", us.pw_name, "--password", typed=f"{PASSWORD}\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert UserDirectory(path).verify("us", PASSWORD) == UserDirectory(path).by_uid(us.pw_uid)


def test_a_login_name_of_nobody_is_refused(path: str) -> None:
    done = run("add", "us", "--users", path, "--unix", "nobody-of-that-name")
    assert done.exit_code == 2
    assert "the user does not exist on this machine" in done.stderr
    assert not Path(path).exists()


def test_a_user_with_a_key_for_amazons_sdks(path: str) -> None:
    done = run("add", "shop", "--users", path, "--right", "publish=*", "--aws-key")
    assert done.exit_code == 0
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    access = UserDirectory(path)
    assert access.by_aws_key(found["AWS_ACCESS_KEY_ID"]) == (
        access.again(User("shop", {})),
        found["AWS_SECRET_ACCESS_KEY"],
    )
    listed = run("list", "--users", path).stdout
    assert f"access keys for AWS SDKs: {found['AWS_ACCESS_KEY_ID']}" in listed
    assert found["AWS_SECRET_ACCESS_KEY"] not in listed
    newer = run("aws-key", "shop", "--only", "--users", path).stdout
    assert newer.startswith("AWS_ACCESS_KEY_ID=MQIA")
    assert UserDirectory(path).by_aws_key(found["AWS_ACCESS_KEY_ID"]) is None
    assert "does not exist" in run("aws-key", "other", "--users", path).stderr


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The users of a cluster, as the node at --url has them."""
    tables: dict[str, Any] = {}
    monkeypatch.setattr(Client, "users", lambda self: copy.deepcopy(tables))
    monkeypatch.setattr(Client, "put_user", lambda self, name, table: tables.__setitem__(name, dict(table)))
    monkeypatch.setattr(Client, "delete_user", lambda self, name: tables.pop(name))
    return tables


def test_a_user_of_a_cluster_is_made_changed_and_removed(cluster: dict[str, Any]) -> None:
    done = run("add", "shop", "--cluster", "--right", "publish=orders.*")
    token = done.stdout.strip()
    assert TOKEN_FORM.fullmatch(token)
    assert "in effect on all connected nodes" in done.stderr
    assert cluster == {"shop": {"tokens": [token_hash(token)], "publish": ["orders.*"]}}, "no secret is sent"
    second = run("token", "shop", "--cluster").stdout.strip()
    assert cluster["shop"]["tokens"] == [token_hash(token), token_hash(second)]
    listed = run("list", "--cluster").stdout
    assert listed.splitlines() == ["shop", "  publish: orders.*", "  password: no, tokens: 2"]
    assert "Revoked 1 older token; the user's newest token is still valid." in run("retire", "shop", "--cluster").stderr
    assert cluster["shop"]["tokens"] == [token_hash(second)]
    assert run("remove", "shop", "--cluster").exit_code == 0
    assert cluster == {}
    gone = run("remove", "shop", "--cluster")
    assert (gone.exit_code, "does not exist" in gone.stderr) == (2, True)


def test_a_password_of_a_cluster_is_sent_as_a_hash(cluster: dict[str, Any]) -> None:
    assert run("add", "anna", "--cluster", "--password", typed=f"{PASSWORD}\n").exit_code == 0
    assert PASSWORD not in str(cluster)
    assert PasswordHash.parse(cluster["anna"]["password"]).fits(PASSWORD)


@pytest.mark.parametrize("flags", [("--unix", "root"), ("--aws-key",), ("--users", "x.toml")])
def test_what_is_one_machine_s_is_no_cluster_s(cluster: dict[str, Any], flags: tuple[str, ...]) -> None:
    done = run("add", "shop", "--cluster", *flags)
    assert (done.exit_code, cluster) == (2, {})
    assert "--cluster" in done.stderr


def test_limits_of_a_user_are_set_changed_and_shown(path: str) -> None:
    done = run("add", "shop", "--users", path, "--right", "publish=*", "--max-connections", "5", "--max-queues", "7")
    assert done.exit_code == 0
    assert "  max_connections: 5\n  max_queues: 7\n" in run("list", "--users", path).stdout
    done = run("limit", "shop", "--users", path, "--max-queues", "none", "--max-publish-rate", "2.5")
    assert (done.exit_code, "SIGHUP" in done.stderr) == (0, True)
    assert done.stdout == "max_connections: 5\nmax_queues: none\nmax_publish_rate: 2.5\n"
    assert run("limit", "shop", "--users", path).stdout == done.stdout
    user = UserDirectory(path).again(User("shop", {}))
    assert user is not None
    assert user.limits == UserLimits(connections=5, publish_rate=2.5)


@pytest.mark.parametrize(
    ("option", "value"), [("--max-queues", "1.5"), ("--max-connections", "-1"), ("--max-publish-rate", "0")]
)
def test_wrong_limit_says_what_a_limit_is(path: str, option: str, value: str) -> None:
    write_users(Path(path), "[users.shop]\n")
    done = run("limit", "shop", "--users", path, option, value)
    assert done.exit_code == 2
    assert "number" in done.stderr
    assert '"none" for no limit' in done.stderr


def test_limit_of_an_unknown_user_is_refused(path: str) -> None:
    write_users(Path(path), "[users.shop]\n")
    for more in ((), ("--max-queues", "1")):
        done = run("limit", "ben", "--users", path, *more)
        assert (done.exit_code, 'user "ben" does not exist' in done.stderr) == (2, True)
