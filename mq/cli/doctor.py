"""The verb ``doctor``: looks through a root, with or without a daemon on it, and repairs only when asked."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
from tqdm import tqdm

from mq.broker import background_check
from mq.cli.commands import CANNOT_START, FINDINGS, Duration, trust_options
from mq.cli.record_schemas import flaw_of
from mq.cli.remote import fail, json_option
from mq.cli.terminal import say, say_json
from mq.errors import StorageFull, StorageUnusable
from mq.quantities import show_count
from mq.storage.files.doctor import (
    InspectableRoot,
    Inspection,
    check_ownership,
    engine_of,
    open_to_inspect,
    quarantine,
    repair,
)
from mq.storage.interface import Damage
from mq.storage.options import StorageOptions


@click.command("doctor")
@click.argument("root", envvar="MQ_ROOT", type=click.Path())
@click.option("--no-bodies", is_flag=True, help="Check file names only; do not read messages or verify checksums.")
@click.option("--repair", "repairs", is_flag=True, help="Repair the problems that the daemon would repair at startup.")
@click.option(
    "--quarantine",
    "folder",
    type=click.Path(),
    metavar="FOLDER",
    help="Move damaged files, and files that do not belong to mq, to this folder.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help=(
        "List the data that was lost because files are missing or damaged, and accept the loss so that mq can "
        "serve the root again."
    ),
)
@click.option(
    "--pause",
    type=Duration(),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="If problems are found while a daemon is serving the root, the check is repeated after this pause.",
)
@json_option
@trust_options
def doctor_command(
    root: str,
    no_bodies: bool,
    repairs: bool,
    folder: str | None,
    accept_loss: bool,
    pause: float,
    as_json: bool,
    trust: Mapping[str, Any],
) -> None:
    """Check a root for damaged, duplicate and unrelated files.

    A root is the folder in which mq stores its queues. Without --repair, --quarantine or --accept-loss, nothing is
    changed, so the check can run while a daemon is serving the root. The exit status is 5 if problems remain.
    """
    try:
        if accept_loss:
            check_ownership(root, StorageOptions(**trust))
            _tell_losses(repair(root, StorageOptions(**trust), accept_loss=True), as_json=as_json)
        if repairs or folder is not None:
            check_ownership(root, StorageOptions(**trust))
        seen = _look(root, no_bodies, pause, folder, needs_alone=repairs or folder is not None, as_json=as_json)
        if seen.found and (repairs or folder is not None):
            if repairs:
                repair(root, StorageOptions(**trust))
            seen = _look(root, no_bodies, pause, None, needs_alone=True, as_json=as_json)
        if not as_json:
            say(str(engine_of(root)), err=True)
    except (StorageUnusable, StorageFull) as error:
        fail(str(error), CANNOT_START)
    sys.exit(FINDINGS if seen.found else 0)


def _look(
    root: str, no_bodies: bool, pause: float, folder: str | None, *, needs_alone: bool, as_json: bool
) -> Inspection:
    """Inspect the root, print the findings, and move them away if the flags say so."""
    with open_to_inspect(root) as look:
        if needs_alone and not look.unserved:
            raise StorageUnusable("the root is in use: stop mq, mq-mover and mq-reaper first")
        with tqdm(disable=None, unit=" messages", leave=False) as bar:
            seen = look.inspect(bodies=not no_bodies, pause=lambda: time.sleep(pause), told=bar.update, schema=flaw_of)
        _tell(look, seen, as_json=as_json)
        if folder is not None:
            for source, target in quarantine(look, seen.found, folder):
                if as_json:
                    say_json({"moved": _shown(source), "to": _shown(target)})
                else:
                    say(f"moved    {_shown(source)} to {_shown(target)}")
    return seen


def _tell_losses(losses: list[Damage], *, as_json: bool) -> None:
    for loss in losses:
        if as_json:
            say_json({"lost": _shown(loss.path), "detail": loss.why})
        else:
            say(f"lost     {_shown(loss.path)}: {loss.why}")
    if not as_json:
        say(
            "the losses listed above are recorded as accepted. mq can serve this root folder again"
            if losses
            else "no data was lost, so mq can serve this root folder"
        )


def _tell(look: InspectableRoot, seen: Inspection, *, as_json: bool) -> None:
    for finding, path, detail, id in sorted(seen.found, key=lambda found: (found.kind.value, found.path)):
        if as_json:
            say_json({"finding": finding.value, "path": _shown(path), "detail": detail, "id": id})
        else:
            say(f"{finding.value:8} {_shown(path)}: {detail}")
    counts = Counter(found.kind.value for found in seen.found)
    if as_json:
        say_json(engine_of(os.path.dirname(look.folders.layout.state))._asdict())
        served = not look.unserved
        say_json({"messages": seen.messages, "unchecked": seen.unchecked, "served": served, "findings": counts})
    else:
        while_served = "" if look.unserved else " (while a daemon is running)"
        problems = ", ".join(f"{count} {finding}" for finding, count in sorted(counts.items())) or "no problems found"
        unchecked = f", {seen.unchecked} of them without a checksum" if seen.unchecked else ""
        say(f"checked {show_count(seen.messages, 'message')}{unchecked}{while_served}: {problems}")
    _tell_check(look, as_json=as_json)


def _tell_check(look: InspectableRoot, *, as_json: bool) -> None:
    """Print how far the daemon's background check is, and what it has found."""
    record = look.records.get(background_check.KIND, background_check.KEY)
    if record is None:
        return
    progress = background_check.PassProgress.stored(record)
    damaged = record.get("damaged", [])
    if as_json:
        say_json({"check": progress._asdict(), "damaged": damaged})
        return
    for queue, id, why in damaged:
        say(f"background verification: message {id} in queue {queue} is damaged: {why}")
    current = (
        f"; current pass: {progress.checked} of {progress.total} messages, started at {_utc(progress.began_ms)}"
        if progress.queue
        else ""
    )
    say(
        f"background verification of messages: the last complete pass finished at {_utc(progress.ended_ms)}{current}"
        if progress.ended_ms
        else f"background verification of messages: no pass has been completed yet{current}"
    )


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shown(path: str) -> str:
    """A path as one line of text, whatever bytes it has."""
    return path if path.isprintable() else ascii(path)
