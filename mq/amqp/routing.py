"""How each type of exchange finds the bindings that fit a message. Pure: no vhosts, no queues, only bindings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Final, Protocol

from mq.amqp.declared import Binding, Kind
from mq.amqp.errors import Code, Refused

Headers = Callable[[], Mapping[str, Any]]
"""Gives the message's headers: they are decoded for those exchanges only that look at them."""

X_MATCH: Final = "x-match"
X_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")
"""What ``x-match`` may be; without the last two, keys that begin with ``x-`` do not count."""


class Matcher(Protocol):
    """The bindings of one exchange."""

    def add(self, binding: Binding) -> None:
        """One more; nothing happens when it is there already."""

    def remove(self, binding: Binding) -> None:
        """One less; nothing happens when it is not there."""

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        """Those that fit.

        Raises:
            Refused: 502; the headers are malformed.
        """


class Direct:
    """The routing key is that of the binding."""

    def __init__(self) -> None:
        self._bindings: dict[str, set[Binding]] = {}

    def add(self, binding: Binding) -> None:
        """One more."""
        self._bindings.setdefault(binding.routing_key, set()).add(binding)

    def remove(self, binding: Binding) -> None:
        """One less."""
        same_key = self._bindings.get(binding.routing_key, set())
        same_key.discard(binding)
        if not same_key:
            self._bindings.pop(binding.routing_key, None)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        """Those with this key."""
        return self._bindings.get(routing_key, frozenset())


class Fanout:
    """Everything goes everywhere."""

    def __init__(self) -> None:
        self._bindings: set[Binding] = set()

    def add(self, binding: Binding) -> None:
        """One more."""
        self._bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        """One less."""
        self._bindings.discard(binding)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        """All of them."""
        return self._bindings


_HASH: Final = "#"


class _Node:
    """A place in the trie: what follows by word, and the bindings whose pattern ends here."""

    __slots__ = ("bindings", "following", "is_hash")

    def __init__(self, word: str = "") -> None:
        self.is_hash = word == _HASH
        self.following: dict[str, _Node] = {}
        self.bindings: set[Binding] = set()


class Topic:
    """Words with dots between: ``*`` stands for one word and ``#`` for any number of them, none included."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        """One more."""
        node = self._root
        for word in words(binding.routing_key):
            node = node.following.setdefault(word, _Node(word))
        node.bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        """One less, and no branch stays that leads nowhere."""
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
        """Those whose pattern fits. All places that a pattern can have come to, word by word: no pattern makes that
        more than the trie has, however many ``#`` are in it."""
        places = _with_hashes({self._root})
        for word in words(routing_key):
            places = _with_hashes(_step(places, word))
        found: set[Binding] = set()
        for node in places:
            found |= node.bindings
        return found


def words(key: str) -> list[str]:
    """The words of a key or a pattern. The empty one has none."""
    return key.split(".") if key else []


def _step(places: Set[_Node], word: str) -> set[_Node]:
    """Where `word` leads. A place behind a hash is left by a word, or kept."""
    after = {node for node in places if node.is_hash}
    for node in places:
        after |= {node.following[name] for name in (word, "*") if name in node.following}
    return after


def _with_hashes(places: set[_Node]) -> set[_Node]:
    """These places, and those where a hash leads that stands for no word."""
    waiting = list(places)
    while waiting:
        follower = waiting.pop().following.get(_HASH)
        if follower is not None and follower not in places:
            places.add(follower)
            waiting.append(follower)
    return places


class ByHeaders:
    """The headers of the message are compared with the arguments of the binding."""

    def __init__(self) -> None:
        self._bindings: set[Binding] = set()

    def add(self, binding: Binding) -> None:
        """One more."""
        self._bindings.add(binding)

    def remove(self, binding: Binding) -> None:
        """One less."""
        self._bindings.discard(binding)

    def match(self, routing_key: str, headers: Headers) -> Set[Binding]:
        """Those whose arguments fit."""
        values = headers() if self._bindings else {}
        return {binding for binding in self._bindings if fits(binding.arguments, values)}


def fits(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether a binding to a headers exchange takes a message. A value of None asks for no more than the key."""
    mode = arguments.get(X_MATCH, "all")
    wanted = {key: value for key, value in arguments.items() if mode.endswith("-with-x") or not key.startswith("x-")}
    wanted.pop(X_MATCH, None)
    compared = (key in headers and (value is None or _same(value, headers[key])) for key, value in wanted.items())
    return all(compared) if mode.startswith("all") else any(compared)


def _same(value: Any, other: Any) -> bool:
    """Equal and of one class of types: 1 is neither true nor 1.0."""
    return _type_class(value) is _type_class(other) and bool(value == other)


def _type_class(value: Any) -> type:
    return bytes if isinstance(value, str | bytes) else type(value)


_MATCHERS: Final[Mapping[Kind, Callable[[], Matcher]]] = {
    Kind.DIRECT: Direct,
    Kind.FANOUT: Fanout,
    Kind.TOPIC: Topic,
    Kind.HEADERS: ByHeaders,
}


def matcher(kind: Kind) -> Matcher:
    """An empty one for an exchange of that type."""
    return _MATCHERS[kind]()


def check_binding(kind: Kind, arguments: Mapping[str, Any]) -> None:
    """Whether an exchange of that type can have such a binding.

    Raises:
        Refused: 406; ``x-match`` of a headers exchange is something else.
    """
    if kind is Kind.HEADERS and arguments.get(X_MATCH, "all") not in X_MATCHES:
        given = arguments[X_MATCH]
        raise Refused(Code.PRECONDITION_FAILED, f"invalid x-match {given!r}: one of {', '.join(X_MATCHES)}")
