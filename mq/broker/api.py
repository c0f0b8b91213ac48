"""What every door may ask of a broker: of the one in this process (:class:`~mq.broker.broker.Broker`), or of the one
that a node of a cluster shows to its doors. What the methods mean is said at the former."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mq.broker.browsing import Browsed, Ranges
from mq.broker.claims import Batch, Standing
from mq.broker.consuming import Removal
from mq.broker.exclusion import Exclusion
from mq.broker.heirs import Heir
from mq.broker.holding import Held
from mq.broker.looking import READY, Seen
from mq.broker.places import Membership
from mq.broker.publishing import Draft, Published
from mq.broker.queue_settings import QueueSettings
from mq.broker.queues import LARGEST_SLICE, Inventory, QueueStatus, Redriven
from mq.broker.uploads import Upload
from mq.errors import MQError
from mq.message import Message, MessageId, QueueName
from mq.storage.interface import Description


class DeclarationsAPI(Protocol):
    """As :class:`~mq.broker.declarations.Declarations`."""

    def knows(self, queue: str) -> bool: ...

    def ready(self, queue: str) -> int: ...

    async def look(self, queue: str) -> None: ...

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]: ...

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool: ...

    def on_closed(self, told: Callable[[str], None]) -> None: ...

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None: ...

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None: ...

    def inherit(self, heir: Heir) -> None: ...

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None: ...

    async def drop(self, kind: str, key: str) -> None: ...

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]: ...


class ClaimsAPI(Protocol):
    """As :class:`~mq.broker.claiming.Claiming`."""

    async def consumers(self, queue: str) -> list[Standing]: ...

    async def consumer(self, queue: str, name: str) -> Standing: ...

    async def start(self, queue: str, name: str) -> Standing: ...

    async def claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = ...,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = ...,
    ) -> Batch | None: ...

    async def read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int
    ) -> list[tuple[int, Message]]: ...

    async def acknowledge(self, queue: str, name: str, batch: int, epoch: int) -> None: ...

    async def forget(self, queue: str, name: str) -> None: ...


class BrowsingAPI(Protocol):
    """As :class:`~mq.broker.browsing.Browsing`."""

    async def browse(self, queue: str, *, after: int = 0, up_to: int | None = None, most: int = 100) -> Browsed: ...

    async def ranges(self, queue: str, parts: int) -> Ranges: ...


class BrokerAPI(Protocol):
    """As :class:`~mq.broker.broker.Broker`."""

    @property
    def declarations(self) -> DeclarationsAPI: ...

    @property
    def claims(self) -> ClaimsAPI: ...

    @property
    def browsing(self) -> BrowsingAPI: ...

    @property
    def description(self) -> Description: ...

    @property
    def ready(self) -> bool: ...

    @property
    def membership(self) -> Membership: ...

    async def has_queue(self, queue: str) -> bool: ...

    async def create_queue(self, queue: str, place: str | None = None) -> bool: ...

    async def delete_queue(self, queue: str) -> None: ...

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings: ...

    async def status(self, queue: str) -> QueueStatus: ...

    async def queues(self) -> list[QueueStatus]: ...

    def inventory(self) -> Iterator[Inventory]: ...

    async def purge(self, queue: str) -> int: ...

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven: ...

    async def stage(self, chunks: AsyncIterable[bytes]) -> Upload: ...

    async def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[Published | MQError]: ...

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None: ...

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]: ...

    async def give_back(self, messages: Sequence[Message]) -> None: ...

    async def take(self, queue: str, *, wait: float = 0) -> Message | None: ...

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None: ...

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]: ...

    async def requeue(self, queue: str, id: str, *, receipt: str | None = None) -> None: ...

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None: ...

    async def hold(
        self, queue: str, most: int = 1, *, wait: float = 0, exclusion: Exclusion | None = None
    ) -> list[Held]: ...

    async def exclude(self, queue: str) -> Exclusion: ...

    async def acknowledge(self, held: Sequence[Held], *, durable: bool = False) -> None: ...

    async def put_back(self, held: Sequence[Held], *, redelivered: bool = True, to_back: bool = False) -> None: ...

    async def reject(self, held: Sequence[Held]) -> None: ...

    async def show(self, queue: str, id: str) -> Seen: ...

    async def peek(
        self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100
    ) -> list[Seen]: ...
