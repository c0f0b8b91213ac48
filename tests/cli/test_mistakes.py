"""Typical mistakes of new users: each is answered with what to write instead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import click
import httpx
import pytest
import trio

from mq.amqp.wire.errors import WrongProtocol
from mq.amqp.wire.frames import FrameReader
from mq.cli import main, pipeline, synonyms
from mq.client import Access, BadRequest, Client, NotFound, Outgoing, Retry, UnexpectedResponse, Unreachable
from mq.client.amqp import connect
from mq.client.errors import connection_reason
from tests.cli.conftest import Mq
from tests.client.inside import Inside


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        *(("publish", "send"), ("get", "receive"), ("list", "queues"), ("consume", "receive"), ("serv", "serve")),
        *(("PUBLISH", "send"), ("subscribe", "receive"), ("create", "queue create"), ("drain", "cluster drain")),
        *(("help", "--help"), ("version", "--version"), ("recieve", "receive"), ("purge-queue", "purge")),
    ],
)
def test_a_command_of_another_queue_names_the_one_of_mq(mq: Mq, command: str, meant: str) -> None:
    done = mq(command, "q")
    assert done.status == 2
    assert f"unknown command '{command}': did you mean {meant}?" in done.error


@pytest.mark.parametrize(
    ("group", "command", "meant"),
    [
        *(("queue", "list", "mq queues"), ("queue", "new", "create"), ("queue", "rm", "delete")),
        *(("queue", "purge", "mq purge"), ("schedule", "add", "put"), ("schedule", "ls", "list")),
        *(("user", "delete", "remove"), ("user", "create", "add"), ("cluster", "list", "status")),
        *(("vsqs", "publish", "send"), ("vsqs", "get", "receive")),
    ],
)
def test_a_command_of_another_program_names_the_one_of_the_group(mq: Mq, group: str, command: str, meant: str) -> None:
    done = mq(group, command, "q")
    assert done.status == 2
    assert f"unknown command '{command}': did you mean {meant}?" in done.error


def test_a_command_that_is_like_no_other_gets_no_guess(mq: Mq) -> None:
    assert mq("xyzzy").error == "mq: unknown command 'xyzzy'. See mq --help\n"


def test_every_synonym_leads_to_a_command_or_an_option() -> None:
    context = click.Context(main, info_name="mq")
    commands = {"mq": main, "mq-pipeline": pipeline.main}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        commands[name] = command
    options: set[str] = set()
    for group in commands.values():
        children = group.commands.values() if isinstance(group, click.Group) else ()
        for command in (group, *children):
            options |= {option for parameter in command.params for option in parameter.opts}
    for group_name, table in synonyms.COMMANDS.items():
        for synonym, meant in table.items():
            path = meant.removeprefix("mq ").split() if meant.startswith("mq ") or group_name == "mq" else [meant]
            start = main if meant.startswith("mq ") else commands[group_name]
            for part in path:
                if part.startswith("--"):
                    assert part in ("--help", "--version")
                    break
                assert isinstance(start, click.Group)
                found = start.get_command(context, part)
                assert found is not None, (group_name, synonym, meant)
                start = found
    assert {f"--{meant}" for likely in synonyms.OPTIONS.values() for meant in likely} <= options


def test_a_message_in_the_place_of_a_file_is_answered_with_its_option(client: Client, mq: Mq) -> None:
    done = mq("send", "q", "hello world")
    assert done.status == 2
    assert "-m 'hello world'" in done.error
    assert client.queue("q").ready == 0


def test_a_misspelt_option_names_the_right_one(mq: Mq) -> None:
    assert "no such option '--rot': did you mean --root?" in mq("--rot", "/tmp/x").error


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        *(
            ("serve --host 0.0.0.0", "--address"),
            ("serve --data /tmp/x", "--root"),
            ("serve --take-turns", "--standby"),
        ),
        *(("serve --delay 10m", "--visibility"), ("serve --strict-seeds", "--strict"), ("serve -v", "--log-level")),
        *(
            ("send q --body x", "--message"),
            ("send q -m x --expires 5", "--ttl"),
            ("send q -m x --prio 5", "--priority"),
        ),
        *(("receive q --count 3", "--max"), ("receive q -f", "--follow"), ("purge q --force", "--yes")),
        *(("queues --server 127.0.0.1", "--url"), ("queues --host h", "--url"), ("queues --port 5672", "--url")),
        ("schedule put s q --interval 5", "--every"),
    ],
)
def test_an_option_of_another_program_names_the_one_of_mq(mq: Mq, line: str, meant: str) -> None:
    option = next(word for word in line.split() if word.startswith("-") and word != "-m")
    assert f"no such option '{option}': did you mean {meant}?" in mq(*line.split()).error


@pytest.mark.parametrize("line", ["serve --xyzzy", "serve -x", "queues --frobnicate 3", "send q -m x --bcd"])
def test_an_option_that_is_like_no_other_gets_no_guess(mq: Mq, line: str) -> None:
    assert "did you mean" not in mq(*line.split()).error


def test_an_option_of_a_command_before_it_is_sent_behind_it(mq: Mq) -> None:
    error = mq("--url", "http://127.0.0.1:8080", "queues").error
    assert "no such option '--url': it belongs after the command, as in mq queues --url." in error


def test_a_setting_of_a_queue_as_an_option_is_answered_with_its_form(mq: Mq) -> None:
    for verb in ("create", "set"):
        error = mq("queue", verb, "q", "--max-bytes", "5").error
        assert error == f"mq: settings are written without dashes. Use max_bytes=VALUE. See mq queue {verb} --help\n"


def test_durations_with_units_are_accepted(client: Client, mq: Mq) -> None:
    assert mq("send", "q", "-m", "x", "--delay", "10m", "--ttl", "2h").status == 0
    assert client.queue("q").delayed == 1
    assert mq("queue", "set", "q", "visibility=1.5h", "ttl=7d").status == 0
    settings = client.queue("q").settings
    assert (settings["visibility"], settings["ttl"]) == (5400, 604_800)
    assert mq("schedule", "put", "s", "q", "--every", "10m", "-m", "x").status in (0, 1)  # no schedules in this daemon
    for wrong in ("-1", "10y", ""):
        assert "30, 1.5h, 10m or 7d" in mq("send", "q", "-m", "x", f"--delay={wrong}").error


def test_the_client_takes_durations_with_units(client: Client) -> None:
    client.publish("q", "x", delay="10m", ttl="2h")
    client.publish_many("q", [Outgoing("y", ttl="1h"), Outgoing("z", delay="1.5h")])
    assert (client.queue("q").ready, client.queue("q").delayed) == (1, 2)
    message = client.fetch("q", visibility="2m")
    assert message is not None
    assert message.lease == 120
    client.extend(message, "3m")
    with client.handling(message, max_handling="1h"):
        pass
    with pytest.raises(ValueError, match=r"delay must be a number of seconds .* not '10y'"):
        client.publish("q", "x", delay="10y")


def test_a_wrong_duration_over_http_is_shown_as_it_came(daemon: Inside, client: Client) -> None:
    with httpx.Client(base_url="http://mq.test", transport=daemon) as plain:
        answer = plain.post("/q/messages", content=b"x", headers={"X-Message-Delay": "x"})
        assert answer.status_code == 400
        assert answer.json()["detail"] == (
            'X-Message-Delay must be a duration from 0 to 3652.5d, such as 30, 1.5h, 10m or 7d, not "x"'
        )
        assert plain.post("/q/messages", content=b"x", headers={"X-Message-Delay": "10m"}).status_code == 201
        for wrong in ("1e3", "-5", "", "5 m", "inf", "10M"):
            answer = plain.post("/q/messages", content=b"x", headers={"X-Message-Delay": wrong})
            assert (answer.status_code, f'not "{wrong}"' in answer.json()["detail"]) == (400, True), wrong
        lines = plain.post("/q/messages/batch", json=[{"body": {"a": 1}}, {"base64": "?"}]).text.splitlines()
        assert '\\"body\\" must be text. Send an object or another value as JSON text' in lines[0]
        assert '\\"base64\\" must be valid base64' in lines[1]


def test_a_lease_is_extended_and_ended_by_durations_with_units_over_http(daemon: Inside, client: Client) -> None:
    with httpx.Client(base_url="http://mq.test", transport=daemon) as plain:
        for change in ({"visibility": "10m"}, {"delay": "1.5h"}, {"delay": "1h"}, {"visibility": "0s"}, {"delay": "0"}):
            client.publish("q", "x")
            message = client.fetch("q", visibility="1m")
            assert message is not None
            answer = plain.patch(f"/q/messages/{message.id}", json=change)
            assert answer.status_code == 200, answer.text
            assert isinstance(answer.json()[next(iter(change))], float), answer.text
            assert plain.delete(f"/q/messages/{message.id}").status_code == 202
        wrong = plain.patch(f"/q/messages/{message.id}", json={"visibility": "10y"})
        assert (wrong.status_code, "7d" in wrong.json()["detail"]) == (400, True)


def test_deleting_a_queue_that_does_not_exist_names_the_nearest(client: Client, mq: Mq) -> None:
    client.create_queue("orders")
    done = mq("queue", "delete", "order", "--yes")
    assert done.status == 1
    assert done.error == 'mq: queue "order" does not exist: did you mean orders?\n'
    assert mq("queue", "delete", "xyz", "--yes").error == 'mq: queue "xyz" does not exist\n'


def test_a_value_of_another_type_is_refused_by_name(client: Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delay": [1]}, r"delay must be a number of seconds or text such as .*, not \[1\]"),
        ({"ttl": True}, "ttl must be .*, not True"),
        ({"delay": timedelta(minutes=5)}, "delay must be .*, not datetime.timedelta"),
        ({"at": "2030-05-01"}, "the argument \"at\" must be a datetime with a time zone, not '2030-05-01'"),
        ({"attributes": {"tries": 1}}, r"attribute 'tries' must be text, not int. Use str\(value\)"),
    ]
    for given, text in wrong:
        with pytest.raises(TypeError, match=text):
            client.publish("q", "x", **given)
    for given, text in wrong[3:]:
        with pytest.raises(TypeError, match=text):
            client.publish_many("q", [Outgoing("x", **given)])
    assert client.queue("q").ready == 0


def test_the_clients_own_times_take_durations_with_units() -> None:
    retry = Retry(patience="1m", first="100ms", longest="1.5m")
    assert (retry.patience, retry.first, retry.longest) == (60, 0.1, 90)
    assert Access(timeout="2m").timeout == 120
    for wrong in ("10y", "", -1):
        with pytest.raises(ValueError, match="timeout must be a number of seconds or text such as 30"):
            Access(timeout=wrong)
        with pytest.raises(ValueError, match="patience must be"):
            Retry(patience=wrong)


def test_the_settings_of_a_queue_take_durations_and_sizes_with_units(client: Client, mq: Mq) -> None:
    client.configure("q", ttl="7d", retry_max="1.5h", max_bytes="10MB")
    settings = client.queue("q").settings
    assert (settings["ttl"], settings["retry_max"], settings["max_bytes"]) == (604_800, 5400, 10_000_000)
    assert mq("queue", "set", "q", "max_bytes=64KiB").status == 0
    assert client.queue("q").settings["max_bytes"] == 65_536
    for wrong in ("10XB", "-1", "", "64Ki"):
        error = mq("queue", "set", "q", f"max_bytes={wrong}").error
        assert error == (
            f'mq: max_bytes must be a size from 0 to 1000000TB, such as 65536, 64KiB or 10MB, not "{wrong}"\n'
        )


@pytest.mark.parametrize("value", [{"a": 1}, 7, None, 1.5, True, [1], [{"a": 1}], ("a", "b"), {1, 2}])
def test_a_value_that_is_no_body_is_answered_with_json(client: Client, value: Any) -> None:
    with pytest.raises(TypeError, match=r"json\.dumps"):
        client.publish("q", value)
    with pytest.raises(TypeError, match=r"json\.dumps"):
        client.publish_many("q", [value])
    assert client.queue("q").ready == 0


def test_a_queue_that_does_not_exist_is_answered_in_the_words_of_the_caller(client: Client, mq: Mq) -> None:
    with pytest.raises(NotFound, match=r'Create it with client\.create_queue\("nosuch"\)'):
        client.publish("nosuch", "x")
    for remove in (client.delete_queue, client.purge):
        with pytest.raises(NotFound, match=r'queue "nosuch" does not exist$'):
            remove("nosuch")
    assert "mq queue create nosuch" in mq("send", "nosuch", "-m", "x").error


def test_a_priority_without_effect_is_warned_of(client: Client, mq: Mq) -> None:
    done = mq("send", "q", "-m", "x", "--priority", 3)
    assert done.status == 0
    assert "max_priority" in done.error
    assert "max_priority" in mq("schedule", "put", "s", "q", "--every", "5m", "-m", "x", "--priority", 3).error
    client.configure("q", max_priority=9)
    assert not mq("send", "q", "-m", "x", "--priority", 3).error


def test_a_url_of_the_other_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="use the HTTP URL, such as http://"):
        Client("amqp://127.0.0.1")


async def test_an_http_url_is_not_one_of_amqp() -> None:
    with pytest.raises(ValueError, match="use an AMQP URL, such as amqp://"):
        async with connect("http://127.0.0.1:8080"):
            pass


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives one connection this answer, on the port that is returned."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):  # a client that expects TLS resets the connection
                connection.recv(4096)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_request_of_http_on_the_port_of_amqp_is_answered_with_the_reason() -> None:
    server = FrameReader()
    server.feed(b"GET /-/queues HTTP/1.1\r\n")
    with pytest.raises(WrongProtocol) as caught:
        server.begin()
    with (
        answering(caught.value.answer) as port,
        Client(f"http://127.0.0.1:{port}", retry=Retry(patience=0)) as client,
        pytest.raises(BadRequest, match="this is an AMQP port"),
    ):
        client.queues()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET /-/queues HTTP/1.1\r\n", "the client sent HTTP to the AMQP port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the client uses TLS, but TLS is not enabled in mq"),
        (b"SSH-2.0-OpenSSH\r\n", "the client does not speak AMQP 0-9-1"),
    ],
)
def test_the_log_says_what_reached_the_port_of_amqp(sent: bytes, reason: str) -> None:
    server = FrameReader()
    server.feed(sent)
    with pytest.raises(WrongProtocol, match=reason):
        server.begin()


async def test_a_server_with_another_kind_of_connection_is_named() -> None:
    with (
        answering(b"HTTP/1.1 400 \r\n\r\n") as port,
        Client(f"https://127.0.0.1:{port}", retry=Retry(patience=0)) as client,
        pytest.raises(Unreachable, match=r"the server does not use TLS. Use http:// or amqp:// in the URL$"),
    ):
        client.queues()
    with (
        answering(b"HTTP/1.1 400 \r\n\r\n") as port,
        trio.fail_after(60),
        pytest.raises(Unreachable, match="the server does not use TLS"),
    ):
        async with connect(f"amqps://127.0.0.1:{port}"):
            pass
    with answering(b"") as port, trio.fail_after(60), pytest.raises(Unreachable, match="If it uses TLS, use an amqps"):
        async with connect(f"amqp://127.0.0.1:{port}"):
            pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("[Errno 111] Connection refused", "Connection refused. Check that the daemon is running"),
        (
            "[Errno 111] Error connecting to ('::1', 1): Connection refused",
            "Connection refused. Check that the daemon is running",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
            "certificate verify failed: self-signed certificate. Specify the CA certificate to trust",
        ),
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("", "OSError"),
    ],
)
def test_a_failed_connection_is_explained_without_numbers(error: str, reason: str) -> None:
    assert connection_reason(OSError(error)) == reason


async def test_the_port_of_http_is_recognised_by_the_client_of_amqp() -> None:
    with (
        answering(b"HTTP/1.1 400 \r\n\r\n") as port,
        trio.fail_after(60),
        pytest.raises(UnexpectedResponse, match="HTTP port"),
    ):
        async with connect(f"amqp://127.0.0.1:{port}"):
            pass
