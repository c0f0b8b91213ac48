"""Names of AMQP in mq's grammar: reversible, and no two share one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mq.amqp.model.names import decode, encode
from mq.message import QueueName
from tests.cases import for_each

short = st.text(max_size=255).filter(lambda text: len(text.encode("utf-8", "surrogatepass")) <= 255)
texts = short.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
vhosts = texts.filter(bool)


@for_each(
    "vhost, name, written",
    [
        ("/", "orders", "orders"),
        ("/", "a.b@c-d_9", "a.b@c-d_9"),
        ("/", "q" * 100, "q" * 100),
        ("/", "a b", "_@@@a@20b"),
        ("/", "", "_@@@"),
        ("/", "-dash", "_@@@-dash"),
        ("/", "_@x", "_@@@_@40x"),
        ("/", "é/ü", "_@@@@c3@a9@2f@c3@bc"),
        ("blue", "orders", "_@blue@@orders"),
        ("a/b", "q", "_@a@2fb@@q"),
        ("/", "q" * 101, "_@@.5d74eb5b9e7b4c1b96b6b30bd60cd66ff32ac35a2f9eda85d9a25e8ebd5a6a63"),
    ],
)
def test_how_names_are_written(vhost: str, name: str, written: str) -> None:
    assert encode(vhost, name)[:4] == written[:4]
    assert len(encode(vhost, name)) == len(written)
    if not written.startswith("_@@."):
        assert encode(vhost, name) == written
        assert decode(written) == (vhost, name)


@given(vhosts, texts)
@example("/", "_@@@a")
@example("@", "@")
@example("-", "x@@y")
def test_what_is_not_a_digest_leads_back(vhost: str, name: str) -> None:
    written = encode(vhost, name)
    assert QueueName(written) == written
    assert decode(written) == (None if written.startswith("_@@.") else (vhost, name))


@given(st.lists(st.tuples(vhosts, texts), max_size=20, unique=True))
@example([("a", "b" * 200), ("a", "b" * 201), ("ab", "b" * 199)])
def test_no_two_share_a_name(pairs: list[tuple[str, str]]) -> None:
    assert len({encode(*pair) for pair in pairs}) == len(pairs)


@for_each("name", ["_@", "_@zz", "_@@@%", "_@@@@zz", "_@@@@FF", "_@@.abc", "_@@@a", "_@@@@ff", "_@@@@41"])
def test_what_encode_never_makes_leads_nowhere(name: str) -> None:
    assert decode(name) is None
