"""The tool that counts the files of a message's walk finds them, and the walks stay as short as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TREE: Final = Path(__file__).resolve().parent.parent

BOUNDS: Final = {
    "HTTP publish": (33, 260),
    "HTTP fetch with wait, and the publish that ends it": (41, 295),
    "AMQP publish, with its confirm": (37, 330),
    "HTTP remove": (34, 168),
}
"""Way -> the most files and changes of file. A walk may take a step more where a task in the background meets it."""

BOUNDS_WITH_A_LOG: Final = {
    "HTTP publish": (31, 126),
    "HTTP fetch with wait, and the publish that ends it": (39, 248),
    "AMQP publish, with its confirm": (35, 164),
    "HTTP remove": (34, 126),
}
"""The same where the temporary folder is on a file system with a journal: no folder is synced there."""

KNOWN: Final = {
    "HTTP publish": {"mq/web/endpoints.py", "mq/broker/publishing.py", "mq/storage/files/posix.py"},
    "HTTP fetch with wait, and the publish that ends it": {"mq/broker/dispatch.py", "mq/broker/publishing.py"},
    "AMQP publish, with its confirm": {"mq/amqp/protocol/channel.py", "mq/amqp/server/publishes.py"},
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
    bounds = BOUNDS_WITH_A_LOG if root == "A root with a log:" else BOUNDS
    assert rows.keys() == entered.keys() == bounds.keys()
    for way, (files, changes) in rows.items():
        assert len(set(entered[way])) == len(entered[way]) == files
        assert KNOWN[way] <= set(entered[way])
        assert all((TREE / name).is_file() for name in entered[way])
        most_files, most_changes = bounds[way]
        assert (files <= most_files, files <= changes <= most_changes) == (True, True), way
