"""The tool that counts the files of a message's walk finds them, and the walks stay as short as they are."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from mq.storage.files.mount import mount_of_root

TREE: Final = Path(__file__).resolve().parent.parent

BOUNDS: Final = {
    "HTTP publish": (16, 52),
    "HTTP fetch with wait, and the publish that ends it": (35, 195),
    "AMQP publish, with its confirm": (22, 99),
    "HTTP remove": (25, 94),
}
"""Way -> the most files and changes of file. A walk may take a step more where a task in the background meets it."""

BOUNDS_WITH_A_LOG: Final = {
    "HTTP publish": (18, 52),
    "HTTP fetch with wait, and the publish that ends it": (37, 195),
    "AMQP publish, with its confirm": (21, 75),
    "HTTP remove": (26, 77),
}
"""The same where the temporary folder is on a file system with a journal."""

BOUNDS_THROUGH_NEW: Final = {
    "HTTP publish": (25, 148),
    "HTTP fetch with wait, and the publish that ends it": (37, 213),
    "AMQP publish, with its confirm": (30, 210),
    "HTTP remove": (26, 95),
}
"""The same where a power cut can leave a partial file under its name, as on btrfs: each message goes through new/."""

KNOWN: Final = {
    "HTTP publish": {"mq/web/message_operations.py", "mq/broker/publishing.py", "mq/storage/files/posix.py"},
    "HTTP fetch with wait, and the publish that ends it": {"mq/broker/dispatch.py", "mq/broker/publishing.py"},
    "AMQP publish, with its confirm": {"mq/amqp/protocol/publishes.py", "mq/amqp/server/publishes.py"},
    "HTTP remove": {"mq/broker/consuming.py", "mq/storage/files/posix.py"},
}
"""Way -> files that it cannot do without."""


@pytest.mark.slow  # it serves a daemon, and waits for fetches that wait
def test_walks_pass_known_files_and_stay_short() -> None:
    command = [sys.executable, str(TREE / "tools/walk.py"), "--files"]
    ran = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=120, check=True)
    root, table, *lists = ran.stdout.strip().split("\n\n")
    rows = {
        way: (int(files), int(changes)) for way, files, changes in re.findall(r"\| (.+?) \| (\d+) \| (\d+) \|", table)
    }
    entered = {
        head.removesuffix(":"): [f.strip() for f in files] for head, *files in (part.split("\n") for part in lists)
    }
    mount = mount_of_root(tempfile.gettempdir())
    bounds = BOUNDS_THROUGH_NEW if mount.atomic_rename and mount.persistent else BOUNDS
    if root == "A root with a log:":
        bounds = BOUNDS_WITH_A_LOG
    assert rows.keys() == entered.keys() == bounds.keys()
    for way, (files, changes) in rows.items():
        assert len(set(entered[way])) == len(entered[way]) == files
        assert KNOWN[way] <= set(entered[way])
        assert all((TREE / name).is_file() for name in entered[way])
        most_files, most_changes = bounds[way]
        assert (files <= most_files, files <= changes <= most_changes) == (True, True), way
