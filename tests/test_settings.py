"""Four sources and their order; a wrong value names where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.cli import load_verb
from mq.errors import InvalidSetting
from mq.settings import (
    EXPERIMENTS,
    LINES,
    OTHER_VARIABLES,
    Experiments,
    Settings,
    load_settings,
    near_misses,
)
from tests.cases import for_each


def in_file(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "mq.toml"
    path.write_text(text)
    return {"MQ_CONFIG": str(path)}


def refusal(flags: dict[str, str], environment: dict[str, str]) -> str:
    with pytest.raises(InvalidSetting) as caught:
        load_settings(flags, environment)
    text = str(caught.value)
    assert text.isprintable()  # so it is one line, too
    return text


def test_defaults() -> None:
    settings = load_settings({}, {})
    assert settings == Settings()
    assert (settings.address, settings.port, settings.workers, settings.peers) == ("127.0.0.1", 8080, 8, 0)
    assert (settings.root, settings.store) == ("/tmp/mq", "posix:/tmp/mq")
    assert (settings.visibility, settings.max_body) == (30, 64 * 1024 * 1024)
    assert (settings.no_mover, settings.no_reaper, settings.log_level) == (False, False, "info")


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    environment = in_file(tmp_path, "workers = 2\npeers = 2\nport = 2") | {"MQ_WORKERS": "3", "MQ_PEERS": "3"}
    settings = load_settings({"workers": "4", "port": None}, environment)
    assert (settings.workers, settings.peers, settings.port, settings.visibility) == (4, 3, 2, 30)


def test_the_config_flag_beats_its_variable(tmp_path: Path) -> None:
    environment = in_file(tmp_path, "workers = 2")
    (tmp_path / "other.toml").write_text("workers = 3")
    assert load_settings({}, environment).workers == 2
    assert load_settings({"config": str(tmp_path / "other.toml")}, environment).workers == 3


def test_the_storage_beats_the_root() -> None:
    assert load_settings({"root": "/a"}, {}).store == "posix:/a"
    assert load_settings({"root": "/a", "storage": "tmpfs:/b"}, {}).store == "tmpfs:/b"


def test_with_amqp_what_need_not_last_is_in_memory_where_the_store_is_ours_alone() -> None:
    assert load_settings({"root": "/a"}, {}).served_store == "layered:posix:/a"
    for flags in ({"amqp_port": "0"}, {"peers": "1"}, {"no_mover": "true"}, {"no_reaper": "true"}):
        assert load_settings({"root": "/a", **flags}, {}).served_store == "posix:/a"
    assert load_settings({"storage": "layered:tmpfs:/a"}, {}).served_store == "layered:tmpfs:/a"


def test_vhosts_are_names_with_commas_between(tmp_path: Path) -> None:
    assert load_settings({"amqp_vhosts": "blue, green"}, {}).amqp_vhosts == ("blue", "green")
    assert load_settings({}, in_file(tmp_path, 'amqp_vhosts = ["a,b", "c"]')).amqp_vhosts == ("a,b", "c")
    for wrong in ("", "a,,b", "x" * 256):
        assert "amqp_vhosts must be a comma-separated list of names" in refusal({"amqp_vhosts": wrong}, {})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("MQ_PROT", "MQ_PORT"),
        ("MQ_WORKER", "MQ_WORKERS"),
        ("mq_root", "MQ_ROOT"),
        ("MQPORT", "MQ_PORT"),
        ("MQ_ULR", "MQ_URL"),
        ("MQ_CONFG", "MQ_CONFIG"),
    ],
)
def test_near_misses(name: str, near: str) -> None:
    assert near_misses({name: "1", "PATH": "/bin", "MQ_ROOT": "/r"}) == {name: near}


def test_what_others_call_so_is_no_near_miss() -> None:
    kubernetes = ["MQ_SERVICE_HOST", "MQ_SERVICE_PORT", "MQ_PORT_8080_TCP", "MQ_PORT_8080_TCP_ADDR"]
    others = [
        "MQ_SEEDS",
        "MQ_COMPILED",
        "MQSERVER",
        "MQ_INSTALLATION_PATH",
        "MQ_ATTRIBUTE_PORTS",
        "PORT",
        "_MQ_COMPLETE",
    ]
    assert (
        near_misses(dict.fromkeys([*kubernetes, *others, *OTHER_VARIABLES, *(line.variable for line in LINES)], "1"))
        == {}
    )


def test_the_verbs_variables_are_known() -> None:
    variables = {parameter.envvar for parameter in load_verb("send").params if parameter.envvar}
    assert len(variables) > 4
    assert variables <= set(OTHER_VARIABLES)


@for_each("line", LINES)
def test_every_setting_has_a_flag_a_variable_and_a_key(tmp_path: Path, line) -> None:
    value = {
        "address": "::1",
        "root": "/r",
        "storage": "memory:",
        "log_level": "debug",
        "log_format": "json",
        "socket": "/s,mode=0660",
        "journal_keep": "2GiB,1h",
        "default_store": "cluster",
        "base_path": "/mq",
        "trusted_proxies": "10.0.0.0/8,unix",
    }.get(line.name, "1")
    expected = load_settings({line.name: value}, {})
    assert expected != Settings()
    assert load_settings({}, {line.variable: value}) == expected
    assert load_settings({}, in_file(tmp_path, f'{line.name} = "{value}"')) == expected
    assert line.flag.removeprefix("--").replace("-", "_") == line.name
    assert line.help


@pytest.mark.parametrize(
    ("given", "path"), [("/mq", "/mq"), ("/mq/", "/mq"), ("mq", "/mq"), ("/tools/mq", "/tools/mq"), ("/", ""), ("", "")]
)
def test_a_base_path_has_a_slash_before_it_and_none_behind(given: str, path: str) -> None:
    assert load_settings({"base_path": given}, {}).base_path == path


@pytest.mark.parametrize("wrong", ["/m q", "/../mq", "/./mq", "/-/mq", "//mq", "/mq?x", "/%6dq", "/mq;x"])
def test_a_base_path_that_is_none_is_refused(wrong: str) -> None:
    assert "base_path must be a path" in refusal({"base_path": wrong}, {})


def test_trusted_proxies_are_networks() -> None:
    networks = ("127.0.0.1", "10.0.0.0/8", "fd00::/8", "unix")
    assert load_settings({"trusted_proxies": ", ".join(networks)}, {}).trusted_proxies == networks
    for wrong in ("proxy.example", "10.0.0.0/33", "10.0.0.0/8,,::1", "*"):
        assert "trusted_proxies must be a comma-separated list of addresses or networks" in refusal(
            {"trusted_proxies": wrong}, {}
        )


def test_a_file_may_hold_values_of_toml(tmp_path: Path) -> None:
    text = 'port = 0\nvisibility = 0.5\nmax_body = 1024\nno_mover = true\nno_reaper = false\nroot = "/var/lib/mq"\n'
    settings = load_settings({}, in_file(tmp_path, text))
    assert settings == Settings(port=0, visibility=0.5, max_body=1024, no_mover=True, root="/var/lib/mq")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1 << 20),
        ("1KiB", 1 << 10),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        (" 2GIB ", 2 << 30),
        ("1024GiB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert load_settings({"max_body": text}, {}).max_body == size


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("0.001", 0.001), ("1.5", 1.5), ("43200", 43200)])
def test_visibility_timeouts(text: str, seconds: float) -> None:
    assert load_settings({"visibility": text}, {}).visibility == seconds


@pytest.mark.parametrize(
    ("word", "on"), [("1", True), ("true", True), ("Yes", True), ("ON", True), ("0", False), ("no", False)]
)
def test_switches(word: str, on: bool) -> None:
    assert load_settings({}, {"MQ_NO_MOVER": word}).no_mover is on


@for_each(
    "name, value",
    [
        ("workers", "x"),
        ("workers", "0"),
        ("workers", "1025"),
        ("workers", "8.0"),
        ("workers", ""),
        ("workers", "9" * 5000),
        ("peers", "-1"),
        ("port", "65536"),
        ("port", "http"),
        ("visibility", "0"),
        ("visibility", "-1"),
        ("visibility", "nan"),
        ("visibility", "inf"),
        ("visibility", "43201"),
        ("visibility", "30y"),
        ("visibility", "-30s"),
        ("max_body", "0"),
        ("max_body", "-5"),
        ("max_body", "1XB"),
        ("max_body", "0.5"),
        ("max_body", "MiB"),
        ("max_body", "1025GiB"),
        ("max_body", "\u0661"),  # a digit, but not one of ours
        ("root", ""),
        ("root", "a\nb"),
        ("root", "a\x00b"),
        ("address", ""),
        ("log_level", "loud"),
        ("no_mover", "maybe"),
        ("socket", "s,mode=660x"),
        ("socket", "s,mode=0o660"),
        ("socket", "s,mode=1660"),
        ("socket", "s,mode=680"),
        ("socket", "s,mode="),
        ("socket", ",mode=0660"),
        ("journal_keep", "30"),
        ("journal_keep", "1GiB,2"),
        ("journal_keep", "1GiB,7d,x"),
        ("journal_keep", "0s"),
        ("schedules_per_user", "ten"),
        ("schedules_per_user", "10001"),
        ("schedules_per_user", "10,nan/s"),
        ("schedules_per_user", "10,fast"),
        ("schedules_per_user", "-1,5/s"),
        ("no_mover", ""),
    ],
)
def test_a_wrong_value_names_its_source(tmp_path: Path, name: str, value: str) -> None:
    line = next(line for line in LINES if line.name == name)
    by_flag = refusal({name: value}, {})
    assert by_flag.startswith(f"{name} must be {line.kind.needs}, got {ascii(value)[:60]}")
    assert by_flag.endswith(f"(from {line.flag})")
    assert refusal({}, {line.variable: value}).endswith(f"(from {line.variable})")
    environment = in_file(tmp_path, f"{name} = {ascii(value) if value.isprintable() else 7.5}")
    assert refusal({}, environment).endswith(f"(from {tmp_path}/mq.toml)")


def test_the_wrong_value_as_the_issue_has_it() -> None:
    expected = "workers must be a whole number from 1 to 1024, got 'x' (from MQ_WORKERS)"
    assert refusal({}, {"MQ_WORKERS": "x"}) == expected


@for_each(
    "text",
    [
        "workers = true",
        "workers = 8.5",
        "visibility = " + "9" * 400,
        "workers = [8]",
        "[workers]",
        "visibility = true",
        "max_body = 1.5",
        "max_body = true",
        "root = 7",
        "address = ['::1']",
        "no_mover = 1",
        "socket = 432",
        "journal_keep = 30",
        "schedules_per_user = 1.5",
        "log_level = 3",
    ],
)
def test_a_value_of_the_wrong_type_in_a_file(tmp_path: Path, text: str) -> None:
    assert "mq.toml" in refusal({}, in_file(tmp_path, text))


@pytest.mark.parametrize(
    ("key", "near"),
    [("worker", "workers"), ("max-body", "max_body"), ("Port", "port"), ("no_mver", "no_mover"), ("lease", "known: ")],
)
def test_an_unknown_key_names_itself_and_the_nearest(tmp_path: Path, key: str, near: str) -> None:
    text = refusal({}, in_file(tmp_path, f'{key} = "1"'))
    assert f'unknown setting "{key}"' in text
    assert "mq.toml" in text
    assert near in text


@pytest.mark.parametrize(
    "broken", [b"workers = ", b"\xff\xfe", b"workers = 1\nworkers = 2", b"<xml>", b"a = " + b"[" * 3000]
)
def test_a_file_that_is_not_toml(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "mq.toml"
    path.write_bytes(broken)
    text = refusal({"config": str(path)}, {})
    assert "is not valid TOML" in text
    assert "(from --config)" in text


@pytest.mark.parametrize(("name", "reason"), [("missing.toml", "No such file"), ("", "Is a directory")])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, reason: str) -> None:
    text = refusal({}, {"MQ_CONFIG": str(tmp_path / name)})
    assert reason in text
    assert "(from MQ_CONFIG)" in text


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1


def test_experiments_are_variables_and_no_settings() -> None:
    assert Experiments.of({}) == (True, True, True)
    assert Experiments.of({"MQ_NO_LOG": "1", "MQ_NO_NATIVE": "0", "MQ_NO_FAST_PATH": ""}) == (True, False, True)
    assert not {line.variable for line in LINES} & set(EXPERIMENTS)
    assert near_misses(dict.fromkeys(EXPERIMENTS, "1")) == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("socket", "/run/mq/http", ("/run/mq/http", 0o600)),
        ("socket", "/run/mq/http,mode=0666", ("/run/mq/http", 0o666)),
        ("journal_keep", "10GiB,30d", (10 << 30, 2_592_000.0)),
        ("journal_keep", "12h", (1 << 30, 43_200.0)),
        ("journal_keep", "5MB", (5_000_000, 604_800.0)),
        ("schedules_per_user", "7", (7, 10.0)),
        ("schedules_per_user", "0,0/s", (0, 0.0)),
        ("schedules_per_user", "20, 0.5/s", (20, 0.5)),
    ],
)
def test_a_setting_of_two_parts_keeps_the_default_of_the_part_that_is_left_out(
    name: str, text: str, value: tuple[object, ...]
) -> None:
    assert getattr(load_settings({name: text}, {}), name) == value
