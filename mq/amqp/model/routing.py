"""How each type of exchange finds the bindings that match a message. Only bindings here, no vhosts and no queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, Final

from mq.amqp.model.declared import Binding, ExchangeType
from mq.amqp.wire.errors import Code, Refusal

Headers = Callable[[], Mapping[str, Any]]
"""Returns the message's headers. A callable, so that they are decoded only for exchanges that route by them."""

X_MATCH: Final = "x-match"
X_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")
"""What ``x-match`` may be; without the last two, keys that begin with ``x-`` do not count."""
_HASH: Final = "#"


class Matcher(ABC):
    """The bindings of one exchange.

    Attributes:
        looked_at: bindings, or places of patterns, compared with messages so far. Those that match are not counted.
    """

    looks_at_keys = False
    looked_at = 0

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Add a binding; nothing happens when it is there already."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Remove a binding; nothing happens when it is not there."""

    @abstractmethod
    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        """The bindings that match a message.

        Raises:
            Refusal: 502; the headers are malformed.
        """


class _Direct(Matcher):
    """The routing key is that of the binding."""

    looks_at_keys = True

    def __init__(self) -> None:
        self._bindings: dict[str, set[Binding]] = {}

    def add(self, binding: Binding) -> None:
        self._bindings.setdefault(binding.routing_key, set()).add(binding)

    def remove(self, binding: Binding) -> None:
        same_key = self._bindings.get(binding.routing_key, set())
        same_key.discard(binding)
        if not same_key:
            self._bindings.pop(binding.routing_key, None)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        return self._bindings.get(routing_key, frozenset())


class _Fanout(Matcher):
    """Every message matches every binding."""

    def __init__(self) -> None:
        self._bindings: set[Binding] = set()

    def add(self, binding: Binding) -> None:
        self._bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.discard(binding)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        return self._bindings


class _TrieNode:
    """A place in the trie: the nodes that follow, by word, and the bindings of patterns that end here."""

    __slots__ = ("bindings", "following", "is_hash")

    def __init__(self, word: str = "") -> None:
        self.is_hash = word == _HASH
        self.following: dict[str, _TrieNode] = {}
        self.bindings: set[Binding] = set()


class _Topic(Matcher):
    """Words with dots between: ``*`` stands for one word and ``#`` for any number of them, none included."""

    looks_at_keys = True

    def __init__(self) -> None:
        self.looked_at = 0
        self._root = _TrieNode()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in words(binding.routing_key):
            node = node.following.setdefault(word, _TrieNode(word))
        node.bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        """Remove a binding, and every branch that leads nowhere then."""
        path = [self._root]
        for word in words(binding.routing_key):
            if word not in path[-1].following:
                return
            path.append(path[-1].following[word])
        path[-1].bindings.discard(binding)
        for word in reversed(words(binding.routing_key)):
            node = path.pop()
            if node.following or node.bindings:
                return
            del path[-1].following[word]

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        # A set of nodes, moved on word by word: it never exceeds the trie, however many ``#`` a pattern has.
        places = _with_hashes({self._root})
        for word in words(routing_key):
            self.looked_at += len(places)
            places = _with_hashes(_step(places, word))
        found: set[Binding] = set()
        for node in places:
            found |= node.bindings
        return found


def words(key: str) -> list[str]:
    """The words of a key or a pattern. The empty one has none."""
    return key.split(".") if key else []


def _step(places: Set[_TrieNode], word: str) -> set[_TrieNode]:
    """The nodes that `word` leads to. After a ``#`` a word may lead on, or stay."""
    after = {node for node in places if node.is_hash}
    for node in places:
        after |= {node.following[name] for name in (word, "*") if name in node.following}
    return after


def _with_hashes(places: set[_TrieNode]) -> set[_TrieNode]:
    """These nodes, and those behind a ``#`` that stands for no word."""
    waiting = list(places)
    while waiting:
        follower = waiting.pop().following.get(_HASH)
        if follower is not None and follower not in places:
            places.add(follower)
            waiting.append(follower)
    return places


_Header = tuple[str, Hashable]
"""The name of a header, and its type and value; None for any value."""


class _ByHeaders(Matcher):
    """The headers of the message are compared with the arguments of the binding."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._by_header: dict[_Header, set[Binding]] = {}
        self._others: set[Binding] = set()  # those that look at no header

    def add(self, binding: Binding) -> None:
        found_by = _found_by(binding)
        for header in found_by:
            self._by_header.setdefault(header, set()).add(binding)
        if not found_by:
            self._others.add(binding)

    def remove(self, binding: Binding) -> None:
        for header in _found_by(binding):
            same = self._by_header.get(header, set())
            same.discard(binding)
            if not same:
                self._by_header.pop(header, None)
        self._others.discard(binding)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        if not self._by_header and not self._others:
            return frozenset()
        values = headers()
        found = set(self._others)
        for name, value in values.items():
            for header in {(name, None), _header(name, value)}:
                found |= self._by_header.get(header, frozenset())
        self.looked_at += len(found)
        return {binding for binding in found if fits(binding.arguments, values)}


def _found_by(binding: Binding) -> list[_Header]:
    """The headers by which a binding is found: each of which any will do, or one of those that it needs."""
    headers = [_header(name, value) for name, value in _wanted(binding.arguments).items()]
    if binding.arguments.get(X_MATCH, "all").startswith("any"):
        return headers
    return sorted(headers, key=lambda header: header[1] is None)[:1]  # a value rules out more messages than a name


def _header(name: str, value: Any) -> _Header:
    is_looked_up = isinstance(value, str | bytes | int | float)
    return name, (type(value), value) if is_looked_up else None


def fits(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether a binding to a headers exchange takes a message. A value of None asks for no more than the key."""
    wanted = _wanted(arguments)
    compared = (key in headers and (value is None or _same(value, headers[key])) for key, value in wanted.items())
    return all(compared) if arguments.get(X_MATCH, "all").startswith("all") else any(compared)


def _wanted(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that a binding asks for."""
    has_x = arguments.get(X_MATCH, "all").endswith("-with-x")
    return {key: value for key, value in arguments.items() if key != X_MATCH and (has_x or not key.startswith("x-"))}


def _same(value: Any, other: Any) -> bool:
    """Equal and of one class of types: 1 is neither true nor 1.0."""
    return _type_class(value) is _type_class(other) and bool(value == other)


def _type_class(value: Any) -> type:
    return bytes if isinstance(value, str | bytes) else type(value)


_MATCHERS: Final[Mapping[ExchangeType, Callable[[], Matcher]]] = {
    ExchangeType.DIRECT: _Direct,
    ExchangeType.FANOUT: _Fanout,
    ExchangeType.TOPIC: _Topic,
    ExchangeType.HEADERS: _ByHeaders,
}


def matcher(kind: ExchangeType) -> Matcher:
    """A new matcher for an exchange of that type, without bindings."""
    return _MATCHERS[kind]()


def check_binding(kind: ExchangeType, arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a binding to an exchange of that type.

    Raises:
        Refusal: 406; ``x-match`` of a headers exchange is something else.
    """
    if kind is ExchangeType.HEADERS and arguments.get(X_MATCH, "all") not in X_MATCHES:
        given = arguments[X_MATCH]
        raise Refusal(Code.PRECONDITION_FAILED, f"invalid x-match value {given!r}. Use one of {', '.join(X_MATCHES)}")
