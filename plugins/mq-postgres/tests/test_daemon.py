"""The daemon on PostgreSQL, over HTTP: killed at once and started again, it has what it had answered for."""

from __future__ import annotations

import hashlib
import http.client
from pathlib import Path

import pytest

from mq.settings import Settings
from tests.e2e.daemon import Daemon, DaemonFailed


def ask(daemon: Daemon, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    """The status, the body, and whose message it is."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("X-Message-Id", "")
    finally:
        connection.close()


@pytest.mark.slow
def test_a_daemon_that_is_killed_has_lost_nothing(place, tmp_path: Path) -> None:
    storage = f"--storage={place.address}"
    with Daemon(tmp_path / "root", tmp_path / "log", storage) as daemon:
        assert ask(daemon, "PUT", "/orders")[0] == 201
        for number in range(30):
            assert ask(daemon, "POST", "/orders/messages", b"%d" % number)[0] == 201
        leased = [ask(daemon, "GET", "/orders/messages?visibility=600") for _ in range(2)]
        assert [body for _, body, _ in leased] == [b"0", b"1"]
        done = leased[1][2]
        assert ask(daemon, "DELETE", f"/orders/messages/{done}")[0] == 202
        with (
            pytest.raises(DaemonFailed, match=r"in use by .*Stop that daemon first"),
            Daemon(tmp_path / "other", tmp_path / "other.log", storage),
        ):
            pytest.fail("two have the store")
        daemon.kill()
        daemon.start()
        found = [ask(daemon, "GET", "/orders/messages") for _ in range(29)]
        assert [body for _, body, _ in found[:28]] == [b"%d" % number for number in range(2, 30)]
        assert found[28][0] in (204, 404), "one is leased, one was removed"
        assert ask(daemon, "DELETE", f"/orders/messages/{leased[0][2]}")[0] == 202
        daemon.kill()
        with place.server.admin() as admin:  # as on a standby that lacks the last change
            admin.execute(f"UPDATE {place.schema}.lane SET landed = landed - 1".encode())
            with pytest.raises(DaemonFailed, match=r"before mq was restarted.*remove .*root/state/confirmed-mq"):
                daemon.start()
            admin.execute(f"UPDATE {place.schema}.lane SET landed = landed + 1".encode())
        daemon.start()
        daemon.stop()


def most_memory(process: int) -> int:
    """The largest resident set that a process ever had, in bytes."""
    [line] = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_the_longest_body_passes_through_and_not_through_memory(place, tmp_path: Path) -> None:
    longest = Settings().max_body
    assert longest >= 64 << 20
    body = hashlib.shake_128(b"no chunk is like another").digest(longest)
    with Daemon(tmp_path / "root", tmp_path / "log", f"--storage={place.address}") as daemon:
        assert ask(daemon, "PUT", "/orders")[0] == 201
        assert ask(daemon, "POST", "/orders/messages", bytes(3 << 20))[0] == 201
        assert ask(daemon, "GET", "/orders/messages?visibility=600")[1] == bytes(3 << 20)
        before = most_memory(daemon.pid)
        assert ask(daemon, "POST", "/orders/messages", body)[0] == 201
        assert ask(daemon, "GET", "/orders/messages?visibility=600")[1] == body
        assert most_memory(daemon.pid) - before < longest // 4
        daemon.stop()
