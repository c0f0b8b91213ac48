"""The inventory of a root: a record that lists all other records by the names of their files.

A record that is deleted by mistake leaves nothing behind. So the inventory is written at a clean stop, and while a log
is in use at its start and with each checkpoint that has new names to list. The log has what came after that. A start
compares the inventory with the files.
"""

from __future__ import annotations

from typing import Final

from mq.storage.files.calls import SyncFailed
from mq.storage.files.records import Records

INVENTORY: Final = "inventory"
"""The kind of record."""
_KEY: Final = "records"


def keep_inventory(records: Records) -> None:
    """Write the inventory if records have come or gone since it was written. Durable on return.

    Without room or a free file handle the old one stays, unless it lists records that are gone: then there is none.
    """
    have_gone = records.have_gone
    names = records.new_names()
    if names is None:
        return
    kinds = {kind: sorted(files) for kind, files in names.items() if files and kind != INVENTORY}
    try:
        records.put(INVENTORY, _KEY, {"kinds": kinds})
    except SyncFailed:
        raise
    except OSError:
        records.names_are_new(have_gone=have_gone)
        if records.have_gone:
            records.unsynced().drop(INVENTORY, _KEY)  # which needs neither room nor a handle; the next sync brings it


def read_inventory(records: Records) -> dict[str, list[str]] | None:
    """Of each kind of record, the first parts of its files' names; None if there is no inventory that can be read."""
    value = records.get(INVENTORY, _KEY)
    return None if value is None else value["kinds"]
