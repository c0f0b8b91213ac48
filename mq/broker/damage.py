"""What a broker does about damage that its store has found.

A queue whose settings are lost would go on with the defaults: out of order where it kept groups in order, without its
limits and its dead-letter queue. So it is paused, for publishers and consumers, until an operator decides. Likewise a
queue of whose idempotency keys, claims or write jobs some are lost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from mq.broker import batch_consumers, keys
from mq.broker.core import Core
from mq.storage.interface import QUEUE, Damage, Storage, damages_of
from mq.storage.records import put_record

logger = logging.getLogger("mq.broker")

_NAMES: Final = re.compile(rb'"([A-Za-z0-9_][A-Za-z0-9._@-]{0,99})["/]')
"""Strings in a record that may be the name of a queue, or begin with it."""
_INCARNATION: Final = 3
"""The place of the incarnation in an idempotency key's entry."""
_PAUSED: Final = {"paused": True, "publish_paused": True}


async def pause_damaged(core: Core) -> None:
    """Pause the queues that damaged records concern.

    The pause of a queue whose own record is damaged is kept: it lasts until it is resumed. Any other lasts until then,
    or until the next start without that damage.

    Raises:
        StorageError: a pause cannot be kept.
    """
    queues = core.catalog.queues
    for damage in damages_of(core.storage):
        for name in sorted(_queues_of(damage, queues.keys())):
            index = queues[name]
            settings = index.settings.changed(_PAUSED)
            if damage.kind == QUEUE:
                index.incarnation = index.incarnation or await _incarnation_of(core.storage, name)
                await put_record(core.storage, QUEUE, name, index.record(settings))
            index.settings = settings
            logger.error(
                "queue %s is paused because %s is damaged (%s). Run mq doctor, restore the queue's settings, "
                "then run mq resume %s",
                name,
                damage.path,
                damage.why,
                name,
            )


async def _incarnation_of(storage: Storage, queue: str) -> int:
    """The incarnation of a queue whose record is lost, as records of its consumers and keys have it; 0 if none has.

    With it they stay in effect.
    """
    consumers = await storage.records(batch_consumers.KIND)
    found = [record["incarnation"] for key, record in consumers.items() if key.startswith(f"{queue}/")]
    for segment in (await storage.records(keys.KIND)).values():
        of_queue = (kept for key, kept in segment.get("entries", {}).items() if key.startswith(f"{queue}/"))
        found += [kept[_INCARNATION] for kept in of_queue]
    return max(found, default=0)


def _queues_of(damage: Damage, known: Iterable[str]) -> set[str]:
    """The queues that a damaged record concerns, as far as its name or what is left of it tells."""
    if not damage.kind:
        return set()
    names = {name.decode() for name in _NAMES.findall(damage.hint)}
    if damage.key is not None:
        names.add(damage.key.partition("/")[0])
    return names & set(known)
