"""What both sides agree on before they work: the highest channel, the largest frame, the heartbeat."""

from __future__ import annotations

from typing import NamedTuple

from pamqp import commands as methods

from mq.amqp.errors import Code, Refused
from mq.amqp.frames import SMALLEST_FRAME_MAX
from mq.amqp.session import Limits


class Tuned(NamedTuple):
    """What was agreed on: as in :class:`~mq.amqp.session.Limits`."""

    channel_max: int
    frame_max: int
    heartbeat_seconds: int


def negotiate(method: methods.Connection.TuneOk, limits: Limits) -> Tuned:
    """What the client wants, if it is within what was offered. 0 is no limit, and no heartbeat.

    Raises:
        Refused: 530.
    """
    if 0 < method.frame_max < SMALLEST_FRAME_MAX:
        text = f"negotiated frame_max = {method.frame_max} is lower than the minimum allowed value"
        raise Refused(Code.NOT_ALLOWED, f"{text} ({SMALLEST_FRAME_MAX})")
    for name, wanted, most in (
        ("channel_max", method.channel_max, limits.channel_max),
        ("frame_max", method.frame_max, limits.frame_max),
    ):
        if not 0 < wanted <= most:
            shown = f"{wanted}{'' if wanted else ' (no limit)'}"
            text = f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})"
            raise Refused(Code.NOT_ALLOWED, text)
    return Tuned(method.channel_max, method.frame_max, method.heartbeat)
