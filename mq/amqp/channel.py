"""One channel, without I/O: frames in, commands and bytes out.

What a method does is in three rooms: :mod:`.declaring`, :mod:`.publishing` and :mod:`.consuming`. Here are the tables:
which method goes where, and how each command's result is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pamqp import base
from pamqp import commands as methods

from mq.access import Right
from mq.amqp import commands
from mq.amqp.commands import Arrival, ChannelCommand, ChannelKey, Outcome, Result
from mq.amqp.consuming import Consuming
from mq.amqp.declaring import Declaring
from mq.amqp.errors import Code, Refused
from mq.amqp.frames import BodyFrame, HeaderFrame, MethodFrame, Together
from mq.amqp.hot import AckFrames, PublishFrames
from mq.amqp.publishing import Mode, Publishing
from mq.amqp.session import Session


class State(Enum):
    """Where a channel's life is."""

    OPEN = "open"
    CLOSING = "closing"
    """We have closed it; the client's word on that is awaited, and nothing else is heard."""
    RELEASING = "releasing"
    """The client has closed it; it is told so once what it held has gone back."""
    CLOSED = "closed"


ChannelFrame = MethodFrame | HeaderFrame | BodyFrame | Together
"""What may come on a channel."""


class Channel:
    """A channel that has been opened.

    Args:
        key: which.
        session: what it shares with its connection's other channels.
    """

    def __init__(self, key: ChannelKey, session: Session) -> None:
        self.key = key
        self.state = State.OPEN
        self._session = session
        self._declaring = Declaring(key, session)
        self._publishing = Publishing(key, session)
        self._consuming = Consuming(key, session)
        self._asked: base.Frame | None = None  # the method that a command now stands for
        session.send_method(key.number, methods.Channel.OpenOk)

    def handle(self, frame: ChannelFrame) -> None:
        """The next frame of this channel, or those that belong together.

        Raises:
            Refused: it ends the connection; what ends the channel alone is told to the client.
        """
        if self.state is not State.OPEN:
            self._handle_while_closing(frame)
            return
        try:
            if isinstance(frame, HeaderFrame | BodyFrame):
                self._publishing.take(frame)
            elif self._publishing.expects_content:
                name = _method_of(frame).name
                raise Refused(Code.UNEXPECTED_FRAME, f"expected content for class 60, got {name} instead")
            elif isinstance(frame, PublishFrames):
                self._publishing.publish(frame)
            elif isinstance(frame, AckFrames):
                self._settle(Outcome.ACKNOWLEDGED, frame.tags)
            else:
                self._call(frame.method)
        except Refused as refusal:
            self._fail(refusal, _method_of(frame))

    def _call(self, method: base.Frame) -> None:
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise Refused(Code.COMMAND_INVALID, f"{method.name} is not for a server, or not on a channel")
        handler(self, method)

    def _handle_while_closing(self, frame: ChannelFrame) -> None:
        if self.state is not State.CLOSING or not isinstance(frame, MethodFrame):
            return
        if isinstance(frame.method, methods.Channel.CloseOk):
            self.state = State.CLOSED
        elif isinstance(frame.method, methods.Channel.Close):
            self._session.send_method(self.key.number, methods.Channel.CloseOk)

    def _fail(self, refusal: Refused, method: base.Frame) -> None:
        """Something was refused, for good.

        Raises:
            Refused: the same, if it is more than the channel's end.
        """
        if refusal.closes_connection:
            raise refusal
        self.release()
        self.state = State.CLOSING
        self._session.send_method(
            self.key.number,
            methods.Channel.Close,
            reply_code=refusal.code,
            reply_text=refusal.text,
            class_id=method.index >> 16,
            method_id=method.index & 0xFFFF,
        )

    def release(self) -> None:
        """Give back everything. The channel does nothing more."""
        self._publishing.flush()
        self._publishing.end()
        consumers, deliveries = self._consuming.end()
        self._session.outbox.put(commands.Release(self.key, consumers, deliveries))

    # Results

    def answer(self, command: ChannelCommand, result: Result) -> None:
        """What became of a command.

        Raises:
            Refused: it ends the connection.
        """
        if isinstance(command, commands.Release):
            if self.state is State.RELEASING:
                self.state = State.CLOSED
                self._session.send_method(self.key.number, methods.Channel.CloseOk)
            return
        asked, self._asked = self._asked, None
        if asked is None or self.state is not State.OPEN:
            self._undo(command, result)
            return
        if isinstance(result, Refused):
            self._fail(result, asked)
        else:
            _ANSWERS[type(command)](self, command, result, asked)

    def _undo(self, command: ChannelCommand, result: Result) -> None:
        """A result that comes after the channel's end: nothing may stay that nobody will give back."""
        if isinstance(command, commands.Consume) and isinstance(result, commands.Done):
            self._session.outbox.put(commands.Release(self.key, ((command.tag, command.queue.key),), ()))
        elif isinstance(command, commands.Get) and isinstance(result, commands.Got) and not command.no_ack:
            delivery = commands.Delivery(0, result.arrival.token, command.queue.key, None)
            self._session.outbox.put(commands.Release(self.key, (), (delivery,)))

    def published(self, numbers: Iterable[int], *, is_stored: bool) -> None:
        """These are stored, or they are refused. The publisher is told by :meth:`flush`."""
        if self.state is State.OPEN:
            self._publishing.published(numbers, is_stored=is_stored)

    def flush(self) -> None:
        """Tell the publisher what there is to tell."""
        if self.state is State.OPEN:
            self._publishing.flush()

    def credit(self, tag: str) -> int:
        """How many messages a consumer may be sent now."""
        return self._consuming.credit(tag)

    def deliver(self, tag: str, arrivals: Sequence[Arrival]) -> int:
        """Send messages to a consumer; how many of them, from the first on."""
        return self._consuming.deliver(tag, arrivals)

    def cancelled(self, tag: str) -> None:
        """A consumer has lost its queue."""
        if self._consuming.remove(tag) and "consumer_cancel_notify" in self._session.capabilities:
            self._session.send_method(self.key.number, methods.Basic.Cancel, consumer_tag=tag, nowait=True)

    def flow(self, *, active: bool) -> None:
        """Ask the client to publish nothing for now, or to go on."""
        if self.state is State.OPEN:
            self._session.send_method(self.key.number, methods.Channel.Flow, active=active)

    # Methods

    def _ask(self, command: ChannelCommand, method: base.Frame) -> None:
        self._asked = method
        self._session.outbox.put(command)

    def _reply(self, asked: base.Frame, reply: type[base.Frame], **values: Any) -> None:
        if not getattr(asked, "nowait", False):
            self._session.send_method(self.key.number, reply, **values)

    def _close(self, method: methods.Channel.Close) -> None:
        self.release()
        self.state = State.RELEASING

    def _open_again(self, method: methods.Channel.Open) -> None:
        raise Refused(Code.CHANNEL_ERROR, "second 'channel.open' seen")

    def _flow(self, method: methods.Channel.Flow) -> None:
        self._consuming.flow(active=bool(method.active))
        self._session.send_method(self.key.number, methods.Channel.FlowOk, active=bool(method.active))

    def _flow_ok(self, method: methods.Channel.FlowOk) -> None:
        """The client does as it was asked; what it sends all the same is stored all the same."""

    def _declare(self, make: Callable[[Declaring, Any], ChannelCommand | None], method: base.Frame) -> None:
        command = make(self._declaring, method)
        if command is None:
            self._reply(method, methods.Exchange.DeclareOk)
        else:
            self._ask(command, method)

    def _consume(self, method: methods.Basic.Consume) -> None:
        queue = self._declaring.usable_queue(method.queue, Right.CONSUME)
        tag = self._consuming.new_tag(method.consumer_tag)
        given = method.arguments or {}
        self._ask(commands.Consume(self.key, tag, queue, method.no_ack, method.exclusive, given), method)

    def _cancel(self, method: methods.Basic.Cancel) -> None:
        consumer = self._consuming.consumers.get(method.consumer_tag or "")
        if consumer is None:
            self._reply(method, methods.Basic.CancelOk, consumer_tag=method.consumer_tag)
        else:
            self._ask(commands.Cancel(self.key, consumer.tag, consumer.queue), method)

    def _get(self, method: methods.Basic.Get) -> None:
        queue = self._declaring.usable_queue(method.queue, Right.CONSUME)
        if not method.no_ack and self._session.unsettled >= self._session.limits.unsettled_max:
            raise Refused(Code.PRECONDITION_FAILED, f"{self._session.unsettled} deliveries are not acknowledged")
        self._ask(commands.Get(self.key, queue, method.no_ack), method)

    def _qos(self, method: methods.Basic.Qos) -> None:
        self._consuming.limit(method)
        self._session.send_method(self.key.number, methods.Basic.QosOk)

    def _ack(self, method: methods.Basic.Ack) -> None:
        self._settle(Outcome.ACKNOWLEDGED, [(method.delivery_tag, method.multiple)])

    def _nack(self, method: methods.Basic.Nack) -> None:
        outcome = Outcome.REQUEUED if method.requeue else Outcome.REJECTED
        self._settle(outcome, [(method.delivery_tag, method.multiple)])

    def _reject(self, method: methods.Basic.Reject) -> None:
        outcome = Outcome.REQUEUED if method.requeue else Outcome.REJECTED
        self._settle(outcome, [(method.delivery_tag or 0, False)])

    def _settle(self, outcome: Outcome, tags: Sequence[tuple[int, bool]]) -> None:
        self._consuming.settle(outcome, tags, in_transaction=self._publishing.mode is Mode.TRANSACTION)

    def _recover(self, method: methods.Basic.Recover | methods.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise Refused(Code.NOT_IMPLEMENTED, "requeue=false")
        self._consuming.recover()
        if isinstance(method, methods.Basic.Recover):
            self._session.send_method(self.key.number, methods.Basic.RecoverOk)

    def _publish(self, method: methods.Basic.Publish) -> None:
        self._publishing.begin(method)

    def _confirm_select(self, method: methods.Confirm.Select) -> None:
        self._publishing.choose(Mode.CONFIRM)
        self._reply(method, methods.Confirm.SelectOk)

    def _tx_select(self, method: methods.Tx.Select) -> None:
        self._publishing.choose(Mode.TRANSACTION)
        self._reply(method, methods.Tx.SelectOk)

    def _commit(self, method: methods.Tx.Commit) -> None:
        self._check_transaction()
        messages, settled = self._publishing.uncommitted(), self._consuming.uncommitted()
        self._ask(commands.Commit(self.key, messages, settled), method)

    def _rollback(self, method: methods.Tx.Rollback) -> None:
        self._check_transaction()
        self._publishing.forget()
        self._consuming.rollback()
        self._reply(method, methods.Tx.RollbackOk)

    def _check_transaction(self) -> None:
        if self._publishing.mode is not Mode.TRANSACTION:
            raise Refused(Code.PRECONDITION_FAILED, "channel is not transactional")

    # Answers

    def _done(self, reply: type[base.Frame], asked: base.Frame) -> None:
        self._reply(asked, reply)

    def _declared(self, command: Any, result: commands.Declared, asked: base.Frame) -> None:
        self._declaring.last_queue = result.name
        counts = {"message_count": result.messages, "consumer_count": result.consumers}
        self._reply(asked, methods.Queue.DeclareOk, queue=result.name, **counts)

    def _purged(self, command: Any, result: commands.Counted, asked: base.Frame) -> None:
        self._reply(asked, methods.Queue.PurgeOk, message_count=result.messages)

    def _deleted(self, command: Any, result: commands.Counted, asked: base.Frame) -> None:
        self._reply(asked, methods.Queue.DeleteOk, message_count=result.messages)

    def _consumes(self, command: commands.Consume, result: Any, asked: base.Frame) -> None:
        self._consuming.add(command.tag, command.queue.key, no_ack=command.no_ack)
        self._reply(asked, methods.Basic.ConsumeOk, consumer_tag=command.tag)

    def _consumes_no_more(self, command: commands.Cancel, result: Any, asked: base.Frame) -> None:
        self._consuming.remove(command.tag)
        self._reply(asked, methods.Basic.CancelOk, consumer_tag=command.tag)

    def _got(self, command: commands.Get, result: commands.Got | None, asked: base.Frame) -> None:
        self._consuming.got(result, command.queue.key, no_ack=command.no_ack)


def _method_of(frame: ChannelFrame) -> base.Frame:
    if isinstance(frame, AckFrames):
        return methods.Basic.Ack()
    return methods.Basic.Publish() if isinstance(frame, HeaderFrame | BodyFrame) else frame.method


def _declares(make: Callable[[Declaring, Any], ChannelCommand | None]) -> Callable[[Channel, Any], None]:
    return lambda channel, method: channel._declare(make, method)


def _says(reply: type[base.Frame]) -> Callable[[Channel, Any, Any, Any], None]:
    return lambda channel, command, result, asked: channel._done(reply, asked)


def _says_bound(bound: type[base.Frame], bound_exchange: type[base.Frame]) -> Callable[[Channel, Any, Any, Any], None]:
    return lambda channel, command, result, asked: channel._done(
        bound if command.binding.to.is_queue else bound_exchange, asked
    )


_HANDLERS: Final[Mapping[type[base.Frame], Callable[[Channel, Any], None]]] = {
    methods.Channel.Open: Channel._open_again,
    methods.Channel.Close: Channel._close,
    methods.Channel.Flow: Channel._flow,
    methods.Channel.FlowOk: Channel._flow_ok,
    methods.Exchange.Declare: _declares(Declaring.declare_exchange),
    methods.Exchange.Delete: _declares(Declaring.delete_exchange),
    methods.Exchange.Bind: _declares(Declaring.bind_exchange),
    methods.Exchange.Unbind: _declares(Declaring.unbind_exchange),
    methods.Queue.Declare: _declares(Declaring.declare_queue),
    methods.Queue.Delete: _declares(Declaring.delete_queue),
    methods.Queue.Purge: _declares(Declaring.purge_queue),
    methods.Queue.Bind: _declares(Declaring.bind_queue),
    methods.Queue.Unbind: _declares(Declaring.unbind_queue),
    methods.Basic.Qos: Channel._qos,
    methods.Basic.Consume: Channel._consume,
    methods.Basic.Cancel: Channel._cancel,
    methods.Basic.Get: Channel._get,
    methods.Basic.Publish: Channel._publish,
    methods.Basic.Ack: Channel._ack,
    methods.Basic.Nack: Channel._nack,
    methods.Basic.Reject: Channel._reject,
    methods.Basic.Recover: Channel._recover,
    methods.Basic.RecoverAsync: Channel._recover,
    methods.Confirm.Select: Channel._confirm_select,
    methods.Tx.Select: Channel._tx_select,
    methods.Tx.Commit: Channel._commit,
    methods.Tx.Rollback: Channel._rollback,
}
"""What a client may send on a channel that is open."""

_ANSWERS: Final[Mapping[type[Any], Callable[[Channel, Any, Any, Any], None]]] = {
    commands.DeclareExchange: _says(methods.Exchange.DeclareOk),
    commands.DeleteExchange: _says(methods.Exchange.DeleteOk),
    commands.Bind: _says_bound(methods.Queue.BindOk, methods.Exchange.BindOk),
    commands.Unbind: _says_bound(methods.Queue.UnbindOk, methods.Exchange.UnbindOk),
    commands.DeclareQueue: Channel._declared,
    commands.InspectQueue: Channel._declared,
    commands.PurgeQueue: Channel._purged,
    commands.DeleteQueue: Channel._deleted,
    commands.Consume: Channel._consumes,
    commands.Cancel: Channel._consumes_no_more,
    commands.Get: Channel._got,
    commands.Commit: _says(methods.Tx.CommitOk),
}
"""How what became of a command is told."""
