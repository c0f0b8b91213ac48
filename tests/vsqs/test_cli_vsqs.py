"""``mq vsqs``: the queue from a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mq import cli
from mq.storage.files.mount import Mount
from mq.vsqs import Queue


def run(*args: str, body: bytes = b"") -> Result:
    return CliRunner().invoke(cli.main, ["vsqs", *args], input=body)


def test_send_receive_delete_size(folder: Path) -> None:
    bodies = (b"first\0\xff\n", b"", b"no end of line")
    ids = [run("send", str(folder), body=body).stdout for body in bodies]
    assert sorted(path.name for path in folder.iterdir()) == [id.removesuffix("\n") for id in ids]
    assert run("size", str(folder)).stdout == "3\n"
    for id, body in zip(ids, bodies, strict=True):
        received = run("receive", str(folder))
        assert (received.exit_code, received.stdout_bytes, received.stderr) == (0, body, id)
    assert run("size", str(folder)).stdout == "3\n"
    for id in ids:
        deleted = run("delete", str(folder), id.strip())
        assert (deleted.exit_code, deleted.output) == (0, "")
    assert list(folder.iterdir()) == []


def test_where_a_rename_is_not_atomic_it_says_so_but_not_beside_an_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mq.vsqs._usable_mount", lambda system, path: Mount("ext2"))
    sent = run("send", str(folder), body=b"hello")
    assert (sent.exit_code, sent.stdout.strip().isdecimal()) == (0, True)
    assert f"{folder} is on ext2, where a rename may not survive a crash" in sent.stderr
    assert run("receive", str(folder)).stderr == sent.stdout
    assert caplog.text.count("is on ext2") == 1
    monkeypatch.undo()
    assert run("size", str(folder)).stderr == ""


def test_empty_is_3(folder: Path) -> None:
    empty = run("receive", str(folder))
    assert (empty.exit_code, empty.output) == (3, "")


def test_deleting_what_is_not_there_is_3_and_says_so(folder: Path) -> None:
    gone = run("delete", str(folder), "5")
    assert (gone.exit_code, gone.stdout) == (3, "")
    assert gone.stderr == "mq: message 5 does not exist: it was deleted or never published\n"


def test_a_visibility_of_its_own(folder: Path) -> None:
    with Queue(folder) as queue:
        id = queue.publish(b"x")
        assert run("receive", str(folder), "--visibility", "0.05").stderr == f"{id}\n"
        message = queue.receive(timeout=10)
        assert message is not None
        assert message.id == id


def test_deleted_once_it_is_printed(folder: Path) -> None:
    run("send", str(folder), body=b"x")
    assert run("receive", str(folder), "--delete").stdout == "x"
    assert list(folder.iterdir()) == []


def test_waiting(folder: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "mq", "vsqs", "receive", folder, "--timeout", "inf"], stdout=subprocess.PIPE
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        run("send", str(folder), body=b"at last")
        assert waiting.communicate(timeout=30)[0] == b"at last"
        assert waiting.returncode == 0
    finally:
        waiting.kill()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["size", "{}/none"], "create it with mkdir"),
        (["delete", "{}", "../x"], "is not a message ID"),
        (["send", "{}", "--capacity", "1"], "the queue is full (1 messages)"),
    ],
)
def test_refusals_are_one_line_and_2(folder: Path, args: list[str], text: str) -> None:
    (folder / "5").touch()
    refused = run(*(arg.format(folder) for arg in args))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("mq: ")
    assert refused.stderr.count("\n") == 1
    assert text in refused.stderr


def test_create(folder: Path) -> None:
    assert run("send", "--create", str(folder / "new"), body=b"x").exit_code == 0
    assert run("size", str(folder / "new")).stdout == "1\n"


def test_a_flag_of_the_daemon_before_it_is_refused(folder: Path) -> None:
    refused = CliRunner().invoke(cli.main, ["--max-body", "1", "vsqs", "size", str(folder)])
    assert refused.exit_code == 2
    assert "--max-body is an option of mq serve, not of mq vsqs" in refused.stderr


def test_it_loads_no_event_loop(folder: Path) -> None:
    code = (
        "import sys\nfrom mq.cli import main\n"
        f"main(['vsqs', 'size', {str(folder)!r}], standalone_mode=False)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"trio", "hypercorn", "quart", "mq.broker"} & set(done.stdout.split())
