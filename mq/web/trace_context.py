"""The trace that a request belongs to, kept with the messages it publishes (W3C Trace Context, level 1).

It is two attributes of a message, ``traceparent`` and ``tracestate``: every door gives attributes back. Tracing never
refuses a publish: what cannot be read, or has no room, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mq.broker.settings import SettingKind
from mq.web.operations import Parameter
from mq.web.parameters import (
    LARGEST_ATTRIBUTES_BYTES,
    MOST_ATTRIBUTES,
    TRACE_NAMES,
    TRACEPARENT,
    TRACESTATE,
)

_IDS: Final = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
"""The trace, the parent in it, flags."""
_VALID_PARENT: Final = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[!-~]{{1,200}})?")
"""Versions behind the first may have more at the end (section 3.2.4)."""
_VALID_STATE: Final = re.compile(r"[!-~](?:[\t -~]{0,510}[!-~])?")
"""As much as everybody has to carry (section 3.3.1.5). What its members are is for those who read it."""


def _as_it_came(value: Any) -> Any:
    return value


_TEXT: Final = SettingKind(_as_it_came, "text", {"type": "string"})
TRACE_HEADERS: Final = (
    Parameter(TRACEPARENT, _TEXT, "the trace that the message belongs to; one that cannot be read is passed over"),
    Parameter(TRACESTATE, _TEXT, "what tracing systems add to traceparent; means nothing without it"),
)
"""What a publish may say of its trace."""


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace of a request, as attributes; empty where it has none that can be read.

    Args:
        headers: names in small letters.
    """
    parent = headers.get(TRACEPARENT, "").strip()
    if _VALID_PARENT.fullmatch(parent) is None:
        return {}
    state = headers.get(TRACESTATE, "").strip()
    return {TRACEPARENT: parent, TRACESTATE: state} if _VALID_STATE.fullmatch(state) else {TRACEPARENT: parent}


def with_trace(attributes: Mapping[str, Any], trace: Mapping[str, str]) -> Mapping[str, Any]:
    """A message's attributes, as they are kept, with a trace; as they are where they name one, or leave no room.

    Args:
        attributes: of the message, checked. They are not checked once more: a batch has up to 64,000 of them.
        trace: what :func:`trace_of` returned.
    """
    texts = attributes.get("attributes", {})
    if not trace or not texts.keys().isdisjoint(TRACE_NAMES) or len(texts) + len(trace) > MOST_ATTRIBUTES:
        return attributes
    size = len(attributes.get("content_type", "")) + _size(texts) + _size(trace)
    return attributes if size > LARGEST_ATTRIBUTES_BYTES else {**attributes, "attributes": {**texts, **trace}}


def _size(texts: Mapping[str, str]) -> int:
    """Bytes, as attributes are counted."""
    return sum(map(len, texts)) + sum(len(text.encode("utf-8", "surrogateescape")) for text in texts.values())


def without_trace(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers without those of a trace."""
    return {name: value for name, value in headers.items() if name not in TRACE_NAMES}
