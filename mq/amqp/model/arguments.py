"""The arguments of queues: their names, their valid values, and the check that a queue declared again has the same. The
argument of a consumer is here, too.

An unknown argument is kept and has no effect, as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mq.amqp.model.declared import Queue
from mq.amqp.model.names import SERVER_NAMED
from mq.amqp.wire.errors import Code, Refusal

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
QUEUE_VERSION: Final = "x-queue-version"
SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"
DELIVERY_LIMIT: Final = "x-delivery-limit"
REQUEUE: Final = "x-requeue"
GROUPS: Final = "x-groups"
"""mq's own: the queue has message groups."""

PRIORITY: Final = "x-priority"
"""A consumer's, not a queue's."""

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"

DEFAULTS: Final[Mapping[str, Any]] = {QUEUE_TYPE: CLASSIC}
"""Arguments that are the same as none. RabbitMQ 3.10 has no other: its queue without ``x-overflow`` is not the one with
``drop-head``."""

Check = Callable[[Any], str]
"""Says what is wrong with a value; empty when nothing is."""


def _whole(least: int, most: int) -> Check:
    def check(value: Any) -> str:
        is_fine = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return "" if is_fine else f"the value must be a whole number from {least} to {most}"

    return check


def _word(*words: str) -> Check:
    return lambda value: "" if value in words else f"the value must be one of {', '.join(words)}"


def _text(value: Any) -> str:
    is_fine = isinstance(value, str) and len(value.encode()) <= 255
    return "" if is_fine else "the value must be text of at most 255 bytes"


def _switch(value: Any) -> str:
    return "" if isinstance(value, bool) else "the value must be true or false"


CHECKS: Final[Mapping[str, Check]] = {
    EXPIRES: _whole(1, LONGEST_MS),
    MESSAGE_TTL: _whole(0, LONGEST_MS),
    MAX_LENGTH: _whole(0, 10**12),
    MAX_LENGTH_BYTES: _whole(0, 10**18),
    OVERFLOW: _word("drop-head", "reject-publish", "reject-publish-dlx"),
    DEAD_LETTER_EXCHANGE: _text,
    DEAD_LETTER_ROUTING_KEY: _text,
    MAX_PRIORITY: _whole(0, 255),
    QUEUE_TYPE: _word(CLASSIC, QUORUM),
    QUEUE_MODE: _word("default", "lazy"),
    QUEUE_VERSION: _whole(1, 2),
    SINGLE_ACTIVE_CONSUMER: _switch,
    DELIVERY_LIMIT: _whole(0, 10**6 - 1),
    REQUEUE: _word("front", "back"),
    GROUPS: _switch,
}
"""Argument -> the check of its value. A queue that is declared again must have the same value for each of them."""


def can_be_quorum(queue: Queue) -> bool:
    """Return whether a queue could be highly available, with the arguments that it has."""
    needs_one_node = queue.auto_delete or EXPIRES in queue.arguments
    return queue.is_lasting and bool(queue.name) and not needs_one_node


def check(queue: Queue) -> None:
    """Check the arguments of a queue that is to be declared.

    Raises:
        Refusal: 406; the text names the argument.
    """
    arguments = queue.arguments
    for argument, test in CHECKS.items():
        if argument in arguments:
            wrong = test(arguments[argument])
            if wrong:
                raise _invalid(argument, queue, wrong)
    if DEAD_LETTER_ROUTING_KEY in arguments and DEAD_LETTER_EXCHANGE not in arguments:
        raise _invalid(DEAD_LETTER_ROUTING_KEY, queue, f"{DEAD_LETTER_ROUTING_KEY} requires {DEAD_LETTER_EXCHANGE}")
    if arguments.get(GROUPS) and arguments.get(MAX_PRIORITY):
        raise _invalid(GROUPS, queue, f"{GROUPS} cannot be combined with {MAX_PRIORITY}")
    if arguments.get(QUEUE_TYPE) == QUORUM and not queue.is_lasting:
        raise _invalid(QUEUE_TYPE, queue, "a quorum queue must be durable and must not be exclusive")
    if arguments.get(QUEUE_TYPE) == QUORUM and queue.name.startswith(SERVER_NAMED):
        raise _invalid(QUEUE_TYPE, queue, "a quorum queue must have a name chosen by the client")


def consumer_priority(queue: Queue, given: Mapping[str, Any]) -> int:
    """The priority that a consumer of a queue asks for; 0 where it says nothing.

    Raises:
        Refusal: 406; it is no whole number.
    """
    wanted = given.get(PRIORITY, 0)
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise _invalid(PRIORITY, queue, "the value must be a whole number")
    return wanted


def _invalid(argument: str, queue: Queue, wrong: str) -> Refusal:
    what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    return Refusal(Code.PRECONDITION_FAILED, f"invalid arg '{argument}' for {what}: {wrong}")


def check_same_queue(what: str, received: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that a queue that is declared again has the arguments it was declared with, or their defaults.

    Args:
        what: for the text: ``queue 'q' in vhost '/'``.

    Raises:
        Refusal: 406; one of them is another.
    """
    check_same(what, {**DEFAULTS, **received}, {**DEFAULTS, **current}, CHECKS)


def check_same(what: str, received: Mapping[str, Any], current: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that what is declared again has the arguments it was declared with.

    Args:
        what: for the text: ``queue 'q' in vhost '/'``.

    Raises:
        Refusal: 406; one of them is another.
    """
    for name in names:
        given, there = received.get(name), current.get(name)
        if given != there or isinstance(given, bool) is not isinstance(there, bool):  # True == 1
            given, there = _shown(given), _shown(there)
            text = f"inequivalent arg '{name}' for {what}: received {given} but current is {there}"
            raise Refusal(Code.PRECONDITION_FAILED, text)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower()}'" if isinstance(value, bool) else f"'{value}'"
