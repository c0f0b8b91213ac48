"""The arguments of queues: which there are, what they may be, and which of them have to be the same when a queue is
declared again. Those that nobody here knows are kept, as RabbitMQ does, and mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mq.amqp.declared import Queue
from mq.amqp.errors import Code, Refused

LONGEST_MS: Final = 315_576_000_000
"""Ten years, in milliseconds: the longest time to live."""

EXPIRES: Final = "x-expires"
MESSAGE_TTL: Final = "x-message-ttl"
MAX_LENGTH: Final = "x-max-length"
MAX_LENGTH_BYTES: Final = "x-max-length-bytes"
OVERFLOW: Final = "x-overflow"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_ROUTING_KEY: Final = "x-dead-letter-routing-key"
MAX_PRIORITY: Final = "x-max-priority"
QUEUE_TYPE: Final = "x-queue-type"
QUEUE_MODE: Final = "x-queue-mode"
SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
REQUEUE: Final = "x-requeue"

QUORUM: Final = "quorum"

Check = Callable[[Any], str]
"""Says what is wrong with a value; empty when nothing is."""


def _whole(least: int, most: int) -> Check:
    def check(value: Any) -> str:
        is_fine = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return "" if is_fine else f"must be a whole number from {least} to {most}"

    return check


def _word(*words: str) -> Check:
    return lambda value: "" if value in words else f"must be one of {', '.join(words)}"


def _text(value: Any) -> str:
    is_fine = isinstance(value, str) and len(value.encode()) <= 255
    return "" if is_fine else "must be a text of at most 255 bytes"


def _not_on(value: Any) -> str:
    return "" if value is False else "is not implemented"


CHECKS: Final[Mapping[str, Check]] = {
    EXPIRES: _whole(1, LONGEST_MS),
    MESSAGE_TTL: _whole(0, LONGEST_MS),
    MAX_LENGTH: _whole(0, 10**12),
    MAX_LENGTH_BYTES: _whole(0, 10**18),
    OVERFLOW: _word("drop-head", "reject-publish", "reject-publish-dlx"),
    DEAD_LETTER_EXCHANGE: _text,
    DEAD_LETTER_ROUTING_KEY: _text,
    MAX_PRIORITY: _whole(0, 255),
    QUEUE_TYPE: _word("classic", QUORUM),
    QUEUE_MODE: _word("default", "lazy"),
    SINGLE_ACTIVE_CONSUMER: _not_on,
    REQUEUE: _word("front", "back"),
}
"""Argument -> what it may be. All of them have to be the same when the queue is declared again."""


def check(queue: Queue) -> None:
    """Whether a queue can be declared with its arguments.

    Raises:
        Refused: 406; the text names the argument.
    """
    arguments = queue.arguments
    for argument, test in CHECKS.items():
        if argument in arguments:
            wrong = test(arguments[argument])
            if wrong:
                raise _invalid(argument, queue, wrong)
    if DEAD_LETTER_ROUTING_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        raise _invalid(DEAD_LETTER_ROUTING_KEY, queue, f"needs {DEAD_LETTER_EXCHANGE}")
    if arguments.get(QUEUE_TYPE) == QUORUM and not queue.is_lasting:
        raise _invalid(QUEUE_TYPE, queue, "a quorum queue is durable and not exclusive")


def _invalid(argument: str, queue: Queue, wrong: str) -> Refused:
    what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    return Refused(Code.PRECONDITION_FAILED, f"invalid arg '{argument}' for {what}: {wrong}")


def check_same(what: str, received: Mapping[str, Any], current: Mapping[str, Any], names: Iterable[str]) -> None:
    """Whether something is declared again as it is.

    Args:
        what: for the text: ``queue 'q' in vhost '/'``.
        received: arguments of the client.
        current: those that it was declared with.
        names: the arguments that count.

    Raises:
        Refused: 406; one of them is another.
    """
    for name in names:
        if received.get(name) != current.get(name):
            given, there = (_shown(values.get(name)) for values in (received, current))
            text = f"inequivalent arg '{name}' for {what}: received {given} but current is {there}"
            raise Refused(Code.PRECONDITION_FAILED, text)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"'{value}'"
