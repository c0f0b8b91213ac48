"""The cluster's file, and what is said of one that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mq.cli.node import cluster_of
from mq.cluster.config import ClusterConfig, Neighbor, load_cluster
from mq.errors import InvalidSetting
from mq.settings import Settings

GOOD = """\
name = "a"
neighbor_1 = "10.9.0.2:5672"
neighbor_2 = "[fd00::3]:5673"
coordinator = "etcd:http://10.9.0.1:2379"
password = "secret"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(GOOD)
    return path


def test_a_file_that_says_all_there_is_to_say(file: Path) -> None:
    config = load_cluster(str(file), {})
    neighbors = (Neighbor("10.9.0.2", 5672), Neighbor("fd00::3", 5673))
    assert config == ClusterConfig("a", neighbors, "etcd:http://10.9.0.1:2379", "secret")
    assert [str(neighbor) for neighbor in neighbors] == ["10.9.0.2:5672", "[fd00::3]:5673"]
    assert (config.lease_seconds, config.user, config.ca) == (5, "cluster", None)


def test_the_lease_may_have_a_unit(file: Path) -> None:
    file.write_text(GOOD + 'lease_seconds = "8s"\n')
    assert load_cluster(str(file), {}).lease_seconds == 8


def test_flags_say_the_same_and_count(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("secret\n")
    flags = Settings(
        node="a",
        neighbors=("10.9.0.2:5672", "[fd00::3]:5673"),
        coordinator="etcd:http://10.9.0.1:2379",
        cluster_password_file=str(secret),
    )
    assert cluster_of(flags) == replace(load_cluster(str(file), {}), spool_folder="/tmp/mq")  # the root
    both = cluster_of(Settings(cluster=str(file), node="c"))
    assert both is not None
    assert both.node == "c"
    assert cluster_of(Settings()) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "a"', 'name = "a b"', "line 1: the node's name must have 1 to 50 characters: letters"),
        ('name = "a"', "", "cluster.toml: name is missing"),
        ('name = "a"', "name = 1", "line 1: name must be a non-empty string, not 1"),
        ("10.9.0.2:5672", "10.9.0.2", 'line 2: neighbor_1: "10.9.0.2" is not a valid address for a node'),
        ("10.9.0.2:5672", ":5672", 'line 2: neighbor_1: ":5672" is not a valid address for a node'),
        ("10.9.0.2:5672", "10.9.0.2:99999", 'neighbor_1: "10.9.0.2:99999" is not a valid address for a node'),
        ("10.9.0.2:5672", "[fd00::3]:5673", "line 3: neighbor_2 is the same as neighbor_1"),
        ("coordinator", "cordinator", "line 4: unknown key cordinator. Did you mean coordinator?"),
        ('password = "secret"', "", "password_file is missing"),
        ('password = "secret"', 'password_file = "/nowhere"', "line 5: cannot read the password file"),
        ('password = "secret"', 'password = "s"\nlease_seconds = 1', "line 6: lease_seconds must be a whole number"),
        (
            'password = "secret"',
            'password = "s"\nlease_seconds = "5.5s"',
            "line 6: lease_seconds must be a whole number",
        ),
        ('name = "a"', "name =", "is not valid TOML"),
    ],
)
def test_errors_name_the_line(file: Path, old: str, new: str, said: str) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(InvalidSetting) as caught:
        load_cluster(str(file), {})
    assert said in str(caught.value)


THREE_LINES = {
    "keys": 'name = "a"\nneighbor_1 = "127.0.0.1:6002"\nneighbor_2 = "localhost:6003"\n',
    "values": "\na\n127.0.0.1:6002\nlocalhost:6003\n",
    "quoted": '"a"\n\n"127.0.0.1:6002"\n"localhost:6003"',
}


@pytest.mark.parametrize("text", THREE_LINES.values(), ids=THREE_LINES)
def test_three_lines_are_enough_on_one_machine(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cluster"
    path.write_text(text)
    config = cluster_of(Settings(cluster=str(path)))
    neighbors = (Neighbor("127.0.0.1", 6002), Neighbor("localhost", 6003))
    assert config == ClusterConfig("a", neighbors, "etcd:http://127.0.0.1:2379", "", spool_folder="/tmp/mq")
    assert "has no password" in caplog.text


@pytest.mark.parametrize(
    ("address", "neighbor"), [("0.0.0.0", "127.0.0.1:6002"), ("127.0.0.1", "10.9.0.2:5672"), ("node-a", "[::1]:6002")]
)
def test_three_lines_on_a_network_are_for_who_says_insecure(tmp_path: Path, address: str, neighbor: str) -> None:
    path = tmp_path / "cluster"
    path.write_text(f"a\n{neighbor}\n[::1]:6003\n")
    settings = Settings(cluster=str(path), address=address)
    with pytest.raises(
        InvalidSetting, match=r"password_file is missing: .* Set password_file, or start mq with --insecure"
    ):
        cluster_of(settings)
    assert cluster_of(replace(settings, insecure=True)) is not None


def test_three_bare_lines_have_numbers_too(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    path.write_text("a\n127.0.0.1:6002\n\n127.0.0.1\n")
    with pytest.raises(InvalidSetting, match=r"line 4: neighbor_2: .* is not a valid address for a node's AMQP server"):
        cluster_of(Settings(cluster=str(path)))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidSetting, match="cannot read"):
        load_cluster("/nowhere/cluster.toml", {})


def test_what_goes_with_no_cluster(file: Path) -> None:
    with pytest.raises(InvalidSetting, match="--peers cannot be combined with --cluster"):
        cluster_of(Settings(cluster=str(file), peers=1))
    with pytest.raises(InvalidSetting, match="a cluster node requires --amqp-port"):
        cluster_of(Settings(cluster=str(file), amqp_port=0))
    with pytest.raises(InvalidSetting, match="--strict cannot be combined with --cluster"):
        cluster_of(Settings(cluster=str(file), amqp_port=5672, strict=True))
    with pytest.raises(InvalidSetting, match="neighbors must list the addresses of the other two nodes"):
        cluster_of(Settings(neighbors=("10.9.0.2:5672",)))


def test_node_leaves_itself_out_of_three_neighbors() -> None:
    all_three = tuple(f"mq-{number}.pods.shop.svc:5672" for number in range(3))
    for number in range(3):
        config = cluster_of(Settings(node=f"mq-{number}", neighbors=all_three, amqp_port=5672, insecure=True))
        assert config is not None
        assert [str(each) for each in config.neighbors] == [each for each in all_three if f"mq-{number}." not in each]
    with pytest.raises(
        InvalidSetting,
        match=r"\(given: 3\)\. .* must use the node name \(other\) as its host name",
    ):
        cluster_of(Settings(node="other", neighbors=all_three, amqp_port=5672, insecure=True))
