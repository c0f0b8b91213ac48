"""What a dead letter tells of its way, as RabbitMQ has it: the header ``x-death``, the latest death first, and three
headers of the first one.

A client may have written these headers. What makes no sense in them is left out; where all headers make no sense, a
message dies and does not tell.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from mq.amqp.errors import Refused
from mq.amqp.properties import Properties

DEATHS: Final = "x-death"
FIRST: Final = ("queue", "reason", "exchange")
"""What is kept of the first death, each as ``x-first-death-...``."""

_NEVER: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EXPIRATION: Final = "original-expiration"


class Reason(StrEnum):
    """Why a message died."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"


def deaths_of(properties: Properties) -> list[Mapping[str, Any]]:
    """The deaths of a message, the latest first."""
    try:
        found = properties.headers().get(DEATHS)
    except Refused:
        return []
    return [_clean(death) for death in found if isinstance(death, dict)] if isinstance(found, list) else []


def _clean(death: Mapping[str, Any]) -> dict[str, Any]:
    """A death with all that belongs to it, each of its type: so that it can be written again."""
    count, time, keys = death.get("count"), death.get("time"), death.get("routing-keys")
    clean: dict[str, Any] = {name: _text(death.get(name)) for name in FIRST}
    clean["count"] = count if isinstance(count, int) and 0 < count < 2**62 else 0
    clean["time"] = time if isinstance(time, datetime.datetime) else _NEVER
    clean["routing-keys"] = [_text(key) for key in keys] if isinstance(keys, list) else []
    return clean | ({_EXPIRATION: _text(death[_EXPIRATION])} if _EXPIRATION in death else {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def died(
    properties: Properties, queue: str, reason: Reason, exchange: str, routing_key: str, time: datetime.datetime
) -> Properties:
    """The properties of a message that has died. It expires no more.

    Args:
        properties: as they were.
        queue: where it died.
        reason: why.
        exchange: where it had been published.
        routing_key: with which key.
        time: when it died.
    """
    expires_no_more = frozenset({"expiration"})
    try:
        known = properties.headers()
    except Refused:
        return properties.changed({}, expires_no_more)
    deaths = deaths_of(properties)
    same = next((death for death in deaths if (death["queue"], death["reason"]) == (queue, reason)), None)
    if same is None:
        death: dict[str, Any] = {"queue": queue, "reason": reason.value, "exchange": exchange, "count": 1, "time": time}
        expiration = properties.text("expiration")
        death |= {"routing-keys": [routing_key]} | ({_EXPIRATION: expiration} if expiration else {})
    else:
        death = {**same, "count": same["count"] + 1}
    headers: dict[str, Any] = {DEATHS: [death, *(one for one in deaths if one is not same)]}
    headers |= {name: death[key] for key in FIRST if (name := f"x-first-death-{key}") not in known}
    return properties.changed(headers, expires_no_more)


def goes_in_circles(properties: Properties, queue: str) -> bool:
    """Whether a dead letter comes back to a queue that it died in, and nobody rejected it on the way: then it is
    dropped, or it would go round for ever."""
    reasons = []
    for death in deaths_of(properties):
        reasons.append(death["reason"])
        if death["queue"] == queue:
            return Reason.REJECTED not in reasons
    return False
