"""One channel, without I/O: frames in, commands and bytes out.

What a method does stands in :mod:`.declare_methods`, :mod:`.publishes` and :mod:`.deliveries`. Here are the tables:
which method goes where, and how the result of each command is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pamqp import base
from pamqp import commands as methods

from mq.access import Right
from mq.amqp.model.arguments import consumer_priority
from mq.amqp.model.declared import Queue
from mq.amqp.model.names import REPLY_TO, SERVER_NAMED
from mq.amqp.model.topology import server_named
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import ACKNOWLEDGED, ChannelCommand, ChannelKey, Result, Settlement
from mq.amqp.protocol.declare_methods import DeclareMethods
from mq.amqp.protocol.deliveries import Deliveries
from mq.amqp.protocol.publishes import ChannelFrame, ChannelState, Mode, PublishingChannel
from mq.amqp.protocol.session import MOST_TOGETHER, Session
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import MethodFrame


class Channel(PublishingChannel):
    """A channel that has been opened."""

    def __init__(self, key: ChannelKey, session: Session) -> None:
        super().__init__(key, session)
        self._declare_methods = DeclareMethods(key, session)
        self.deliveries = Deliveries(key, session)
        self._asked: base.Frame | None = None  # the method that a command now stands for
        session.send_method(key.number, methods.Channel.OpenOk)

    def _call(self, method: base.Frame) -> None:
        unsure = self._declare_methods.unsure_queue(method)
        if unsure is None:
            self._handle(method)
        else:
            self._ask(commands.FindQueue(self.key, unsure), method)

    def _handle(self, method: base.Frame) -> None:
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise Refusal(
                Code.COMMAND_INVALID,
                f"unexpected method {method.name}: clients must not send this method on a channel",
            )
        handler(self, method)

    def _handle_while_closing(self, frame: ChannelFrame) -> None:
        if self.state is not ChannelState.CLOSING or not isinstance(frame, MethodFrame):
            return
        if isinstance(frame.method, methods.Channel.CloseOk):
            self.state = ChannelState.CLOSED
        elif isinstance(frame.method, methods.Channel.Close):
            self._session.send_method(self.key.number, methods.Channel.CloseOk)

    def _fail(self, refusal: Refusal, method: base.Frame) -> None:
        """Close the channel with a refusal.

        Raises:
            Refusal: the same, if it closes the whole connection.
        """
        if refusal.closes_connection:
            raise refusal
        self.release()
        self.state = ChannelState.CLOSING
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
        self.flush()
        self._end_publishes()
        consumers, deliveries = self.deliveries.end()
        # In parts, of which each is freed once it is put back. The last one is of those that are left.
        last = max(0, len(deliveries) - 1) // MOST_TOGETHER * MOST_TOGETHER
        for at in range(0, last, MOST_TOGETHER):
            self._session.outbox.put(commands.Release(self.key, (), deliveries[at : at + MOST_TOGETHER]))
        self._session.outbox.put(commands.Release(self.key, consumers, deliveries[last:]))

    def leave(self) -> None:
        """Begin a close by the client: give back everything, but store what it has published."""
        self.release()
        self.state = ChannelState.LEAVING

    # Results

    def answer(self, command: ChannelCommand, result: Result) -> None:
        """Tell the client the result of a command.

        Raises:
            Refusal: it ends the connection.
        """
        if isinstance(command, commands.Release):
            return
        asked, self._asked = self._asked, None
        if asked is None or self.state is not ChannelState.OPEN:
            self._undo(command, result)
            return
        if isinstance(result, Refusal):
            self._fail(result, asked)
        else:
            _ANSWERS[type(command)](self, command, result, asked)

    def left(self, result: Result) -> None:
        """Finish a close by the client: what it published is stored, or refused.

        Raises:
            Refusal: it could not be stored; that ends the connection.
        """
        if isinstance(result, Refusal):
            raise result
        self.flush()
        self.state = ChannelState.CLOSED
        self._session.send_method(self.key.number, methods.Channel.CloseOk)

    def _undo(self, command: ChannelCommand, result: Result) -> None:
        """Undo a result that comes after the channel's end, for it would leave a consumer or a message behind."""
        if isinstance(command, commands.Consume) and isinstance(result, commands.Done):
            self._session.outbox.put(commands.Release(self.key, ((command.tag, command.queue.key),), ()))
        elif isinstance(command, commands.Get) and isinstance(result, commands.Got) and not command.no_ack:
            delivery = commands.UnsettledDelivery(0, result.arrival.token, command.queue.key, None)
            self._session.outbox.put(commands.Release(self.key, (), (delivery,)))

    def lose(self, refusal: Refusal, method: base.Frame) -> None:
        """Close the channel for what came of an earlier method of its client: of a publish without confirms, say."""
        if self.state is ChannelState.OPEN:
            self._fail(refusal, method)

    def cancelled(self, tag: str) -> None:
        """Tell a consumer that its queue is gone."""
        if self.deliveries.remove(tag) and "consumer_cancel_notify" in self._session.capabilities:
            self._session.send_method(self.key.number, methods.Basic.Cancel, consumer_tag=tag, nowait=True)

    # Methods

    def _ask(self, command: ChannelCommand, method: base.Frame) -> None:
        self._asked = method
        self._session.outbox.put(command)

    def _reply(self, asked: base.Frame, reply: type[base.Frame], **values: Any) -> None:
        if not getattr(asked, "nowait", False):
            self._session.send_method(self.key.number, reply, **values)

    def _close(self, method: methods.Channel.Close) -> None:
        self.leave()
        self._session.outbox.put(commands.Leave(self.key))

    def _open_again(self, method: methods.Channel.Open) -> None:
        raise Refusal(Code.CHANNEL_ERROR, "received a second 'channel.open' on an open channel")

    def _flow(self, method: methods.Channel.Flow) -> None:
        if not method.active:  # as RabbitMQ: a prefetch is what stops deliveries
            raise Refusal(Code.NOT_IMPLEMENTED, "active=false")
        self._session.send_method(self.key.number, methods.Channel.FlowOk, active=True)

    def _declare(self, make: Callable[[DeclareMethods, Any], ChannelCommand | None], method: base.Frame) -> None:
        command = make(self._declare_methods, method)
        if command is None:
            self._reply(method, methods.Exchange.DeclareOk)
        else:
            self._ask(command, method)

    def _consume(self, method: methods.Basic.Consume) -> None:
        if method.queue == REPLY_TO:
            self._consume_replies(method)
            return
        queue = self._declare_methods.usable_queue(method.queue, Right.CONSUME)
        tag = self.deliveries.new_tag(method.consumer_tag)
        priority = consumer_priority(queue, method.arguments or {})
        self._ask(commands.Consume(self.key, tag, queue, method.no_ack, method.exclusive, priority), method)

    def _consume_replies(self, method: methods.Basic.Consume) -> None:
        if not method.no_ack:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                "a direct reply-to consumer must set no_ack, because it cannot acknowledge messages",
            )
        if self._replies is not None:
            raise Refusal(Code.PRECONDITION_FAILED, "the channel already has a direct reply-to consumer")
        session = self._session
        for right in (Right.CONFIGURE, Right.CONSUME):  # as for any queue that the server names
            session.demand(right, "queue", SERVER_NAMED)
        queue = Queue(session.vhost, server_named(), auto_delete=True, owner=session.owner)
        tag = self.deliveries.new_tag(method.consumer_tag)
        self._ask(commands.Consume(self.key, tag, queue, True, False, replies=True), method)

    def _declare_queue(self, method: methods.Queue.Declare) -> None:
        if not (method.passive and method.queue == REPLY_TO):
            self._declare(DeclareMethods.declare_queue, method)
            return
        # Clients use this to find out whether such an exchange or queue exists.
        self._declare_methods.last_queue = REPLY_TO
        counts = {"message_count": 0, "consumer_count": int(self._replies is not None)}
        self._reply(method, methods.Queue.DeclareOk, queue=REPLY_TO, **counts)

    def _cancel(self, method: methods.Basic.Cancel) -> None:
        consumer = self.deliveries.consumers.get(method.consumer_tag or "")
        if consumer is None:
            self._reply(method, methods.Basic.CancelOk, consumer_tag=method.consumer_tag)
        else:
            self._ask(commands.Cancel(self.key, consumer.tag, consumer.queue), method)

    def _get(self, method: methods.Basic.Get) -> None:
        queue = self._declare_methods.usable_queue(method.queue, Right.CONSUME)
        if not method.no_ack and self._session.unsettled >= self._session.limits.unsettled_max:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                "the client has reached the maximum number of unacknowledged deliveries "
                f"({self._session.limits.unsettled_max}). Acknowledge some of them first",
            )
        if not method.no_ack and not self._session.may_hold(1):
            raise Refusal(
                Code.RESOURCE_ERROR,
                f"the client has {self._session.unsettled} unacknowledged deliveries, and no memory is left for more. "
                "Acknowledge some of them first",
            )
        self._ask(commands.Get(self.key, queue, method.no_ack), method)

    def _qos(self, method: methods.Basic.Qos) -> None:
        self.deliveries.limit(method)
        self._session.send_method(self.key.number, methods.Basic.QosOk)

    def _ack(self, method: methods.Basic.Ack) -> None:
        self._settle(ACKNOWLEDGED, [(method.delivery_tag, method.multiple)])

    def _reject(self, method: methods.Basic.Nack | methods.Basic.Reject) -> None:
        outcome = Settlement.REQUEUED if method.requeue else Settlement.REJECTED
        self._settle(outcome, [(method.delivery_tag or 0, isinstance(method, methods.Basic.Nack) and method.multiple)])

    def _settle(self, outcome: Settlement, tags: Sequence[tuple[int, bool]]) -> None:
        self.deliveries.settle(outcome, tags, in_transaction=self._mode is Mode.TRANSACTION)

    def _recover(self, method: methods.Basic.Recover | methods.Basic.RecoverAsync) -> None:
        if not method.requeue:
            raise Refusal(Code.NOT_IMPLEMENTED, "requeue=false")
        self.deliveries.recover()
        if isinstance(method, methods.Basic.Recover):
            self._session.send_method(self.key.number, methods.Basic.RecoverOk)

    def _select(self, method: methods.Confirm.Select | methods.Tx.Select) -> None:
        is_confirm = isinstance(method, methods.Confirm.Select)
        self._choose(Mode.CONFIRM if is_confirm else Mode.TRANSACTION)
        self._reply(method, methods.Confirm.SelectOk if is_confirm else methods.Tx.SelectOk)

    def _commit(self, method: methods.Tx.Commit) -> None:
        self._check_transaction()
        messages, settled = self._uncommitted_messages(), self.deliveries.uncommitted()
        self._ask(commands.Commit(self.key, messages, settled), method)

    def _rollback(self, method: methods.Tx.Rollback) -> None:
        self._check_transaction()
        self._forget_messages()
        self.deliveries.rollback()
        self._reply(method, methods.Tx.RollbackOk)

    def _check_transaction(self) -> None:
        if self._mode is not Mode.TRANSACTION:
            raise Refusal(Code.PRECONDITION_FAILED, "the channel is not transactional. Send tx.select first")

    # Answers

    def _done(self, reply: type[base.Frame], asked: base.Frame) -> None:
        self._reply(asked, reply)

    def _declared(self, command: Any, result: commands.QueueDeclared, asked: base.Frame) -> None:
        self._declare_methods.last_queue = result.name
        counts = {"message_count": result.messages, "consumer_count": result.consumers}
        self._reply(asked, methods.Queue.DeclareOk, queue=result.name, **counts)

    def _found(self, command: Any, result: Any, asked: base.Frame) -> None:
        """Handle the method again, now that the topology knows whether its queue exists."""
        try:
            self._handle(asked)
        except Refusal as refusal:
            self._fail(refusal, asked)

    def _purged(self, command: Any, result: commands.Counted, asked: base.Frame) -> None:
        self._reply(asked, methods.Queue.PurgeOk, message_count=result.messages)

    def _deleted(self, command: Any, result: commands.Counted, asked: base.Frame) -> None:
        self._reply(asked, methods.Queue.DeleteOk, message_count=result.messages)

    def _consumes(self, command: commands.Consume, result: Any, asked: base.Frame) -> None:
        self.deliveries.add(command.tag, command.queue.key, no_ack=command.no_ack)
        if command.replies:
            self._replies = command.queue
        self._reply(asked, methods.Basic.ConsumeOk, consumer_tag=command.tag)

    def _consumes_no_more(self, command: commands.Cancel, result: Any, asked: base.Frame) -> None:
        self.deliveries.remove(command.tag)
        if self._replies is not None and self._replies.key == command.queue:
            self._replies = None
        self._reply(asked, methods.Basic.CancelOk, consumer_tag=command.tag)

    def _got(self, command: commands.Get, result: commands.Got | None, asked: base.Frame) -> None:
        self.deliveries.got(result, command.queue.key, no_ack=command.no_ack)


def _declares(make: Callable[[DeclareMethods, Any], ChannelCommand | None]) -> Callable[[Channel, Any], None]:
    return lambda channel, method: channel._declare(make, method)


def _binds(command: type[commands.Bind | commands.Unbind]) -> Callable[[Channel, Any], None]:
    return lambda channel, method: channel._ask(command(channel.key, channel._declare_methods.binding(method)), method)


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
    methods.Exchange.Declare: _declares(DeclareMethods.declare_exchange),
    methods.Exchange.Delete: _declares(DeclareMethods.delete_exchange),
    methods.Exchange.Bind: _binds(commands.Bind),
    methods.Exchange.Unbind: _binds(commands.Unbind),
    methods.Queue.Declare: Channel._declare_queue,
    methods.Queue.Delete: _declares(DeclareMethods.delete_queue),
    methods.Queue.Purge: _declares(DeclareMethods.purge_queue),
    methods.Queue.Bind: _binds(commands.Bind),
    methods.Queue.Unbind: _binds(commands.Unbind),
    methods.Basic.Qos: Channel._qos,
    methods.Basic.Consume: Channel._consume,
    methods.Basic.Cancel: Channel._cancel,
    methods.Basic.Get: Channel._get,
    methods.Basic.Publish: Channel._publish,
    methods.Basic.Ack: Channel._ack,
    methods.Basic.Nack: Channel._reject,
    methods.Basic.Reject: Channel._reject,
    methods.Basic.Recover: Channel._recover,
    methods.Basic.RecoverAsync: Channel._recover,
    methods.Confirm.Select: Channel._select,
    methods.Tx.Select: Channel._select,
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
    commands.FindQueue: Channel._found,
    commands.InspectQueue: Channel._declared,
    commands.PurgeQueue: Channel._purged,
    commands.DeleteQueue: Channel._deleted,
    commands.Consume: Channel._consumes,
    commands.Cancel: Channel._consumes_no_more,
    commands.Get: Channel._got,
    commands.Commit: _says(methods.Tx.CommitOk),
}
"""Command -> how its result is told to the client."""
