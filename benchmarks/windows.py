"""AMQP publishes with a thousand confirms outstanding on one connection: how its clients publish much."""

from __future__ import annotations

from typing import Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.codec import Steps
from benchmarks.systems.mq import MqAmqp
from benchmarks.systems.rabbitmq import RabbitClassic

WINDOW: Final = 1000


class WindowCodec(AmqpCodec):
    """As in Codec; one publish is a hundred messages, and ends when no more than 900 confirms are outstanding.

    Attributes:
        size: messages that it sends together.
    """

    size: Final = 100

    def publish(self) -> Steps:
        """As in Codec."""
        return self.publish_many(self.size, outstanding=WINDOW - self.size)


class MqWindow(MqAmqp):
    """mq."""

    name = "mq-window"
    codec = WindowCodec


class RabbitWindow(RabbitClassic):
    """RabbitMQ, a classic queue."""

    name = "rabbitmq-window"
    codec = WindowCodec
