"""Lines of the programs' log: how one is written, for eyes or as JSON, and how much weight it needs.

A line never has a body, a token or a password in it; ``tests/test_log_lines.py`` looks for them. That is why libraries
of others log nothing below INFO here, whatever the level: some write down every header.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

REQUESTS: Final = logging.getLogger("mq.requests")
"""Gets a line for each request over HTTP, where that is wanted."""

_OWN_LOGGERS: Final = "mq"
_FIELDS: Final = "mq_fields"


def write(logger: logging.Logger, event: str, **values: str | float | None) -> None:
    """Write a line of fields: ``event=... key=value ...``, as JSON the same by name. Each value is as JSON has it, in
    ASCII, so that none can begin a line of its own; those of None are left out."""
    known = {name: value for name, value in values.items() if value is not None}
    text = " ".join((f"event={event}", *(f"{name}={json.dumps(value)}" for name, value in known.items())))
    logger.info("%s", text, extra={_FIELDS: {"event": event, **known}})


class TextLines(logging.Formatter):
    """A line for eyes. Text that a client chose cannot begin another line, or command a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """As logging's, with what is no visible character written as in Python."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class JsonLines(logging.Formatter):
    """A line for programs: one object with ``time`` (UTC, RFC 3339), ``level``, ``logger``, ``message``, the fields of
    the line where it has some, and ``exception``, the traceback of an error in mq itself."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def formatter(format: str, text: str = "%(asctime)s %(levelname)s %(message)s") -> logging.Formatter:
    """What writes lines in a format.

    Args:
        format: one of :data:`FORMATS`.
    """
    return JsonLines() if format == JSON else TextLines(text)


def begin(level: str, format: str = TEXT, *, requests: bool = False) -> None:
    """Write the log to standard error from now on, unless it is written somewhere already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(format))
    handler.addFilter(_is_for_us)
    logging.basicConfig(handlers=[handler])
    change(level=level, requests=requests)


def change(*, level: str | None = None, requests: bool | None = None) -> None:
    """Log more, or less, from now on.

    Args:
        level: least weight of a line, one of :data:`LEVELS`; None for no change.
        requests: whether each request over HTTP gets a line; None for no change.
    """
    if level is not None:
        logging.getLogger().setLevel(level.upper())
    if requests is not None:
        REQUESTS.setLevel(logging.INFO if requests else logging.CRITICAL)


def level() -> str:
    """The least weight of a line now."""
    return logging.getLevelName(logging.getLogger().level).lower()


def _is_for_us(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO or record.name.partition(".")[0].startswith(_OWN_LOGGERS)
