"""AMQP publishes with a thousand confirms outstanding on one connection: how its clients publish much."""

from __future__ import annotations

from typing import Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.codec import Steps
from benchmarks.systems.mq import MqAmqp
from benchmarks.systems.rabbitmq import RabbitClassic


class WindowCodec(AmqpCodec):
    """As in Codec; one publish is a thousand.

    Attributes:
        size: messages before it waits for all of their confirms.
    """

    size: Final = 1000

    def publish(self) -> Steps:
        """As in Codec."""
        return self.publish_many(self.size)


class MqWindow(MqAmqp):
    """mq."""

    name = "mq-window"
    codec = WindowCodec


class RabbitWindow(RabbitClassic):
    """RabbitMQ, a classic queue."""

    name = "rabbitmq-window"
    codec = WindowCodec
