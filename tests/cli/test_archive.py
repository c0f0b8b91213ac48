"""Messages to a file and back: nothing is lost on the way, and what is no message is told with its place."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.cli.archive import FORMATS, BadArchive, format_of, read, writer
from mq.client import Outgoing, Received

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
MESSAGES = st.lists(
    st.builds(
        Received,
        queue=st.just("q"),
        id=st.uuids().map(str),
        content_type=TEXT.filter(bool),
        attributes=st.dictionaries(TEXT, TEXT, max_size=3),
        receives=st.integers(0, 9),
        state=st.just("ready"),
        body=st.binary(max_size=2000),
    ),
    max_size=5,
)


def written(format: str, path: str, messages: list[Received]) -> io.BytesIO:
    file = io.BytesIO()
    archive = writer(format, file, path)
    for message in messages:
        archive.add(message)
    archive.close()
    return io.BytesIO(file.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("path", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.tar.xz", "a.jsonl", "-"])
@given(messages=MESSAGES)
def test_there_and_back(path: str, messages: list[Received]) -> None:
    kind = format_of(path)
    expected = [Outgoing(each.body, each.content_type, attributes=each.attributes) for each in messages]
    assert list(read(kind, written(kind, path, messages))) == expected


def test_the_name_says_the_format() -> None:
    assert [format_of(name) for name in ("a.tar", "a.tgz", "a.jsonl", "a", "-")] == [
        "tar",
        "tar",
        "jsonl",
        "jsonl",
        "jsonl",
    ]


def test_a_tar_holds_a_file_a_message() -> None:
    message = Received(queue="q", id="ID", body=b"hello", state="ready", attributes={"a": "b"})
    with tarfile.open(fileobj=written("tar", "a.tar", [message])) as tar:
        (member,) = tar
        assert (member.name, tar.extractfile(member).read()) == ("ID", b"hello")
        assert member.pax_headers["SCHILY.xattr.user.mq.export.attributes"] == '{"a": "b"}'


def test_any_tar_is_read() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        member = tarfile.TarInfo("folder/letter.txt")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    assert list(read("tar", io.BytesIO(file.getvalue()))) == [Outgoing(b"hi")]


def test_empty_lines_are_passed_over() -> None:
    assert list(read("jsonl", io.BytesIO(b'\n{"body": "a"}\n \n'))) == [Outgoing(b"a")]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"body": 1}',
        b'{"base64": "?"}',
        b"\xff",
        b'{"body": "", "attributes": 1}',
        b'{"body": "", "content_type": 1}',
    ],
)
def test_a_line_that_is_no_message_is_told(line: bytes) -> None:
    messages = read("jsonl", io.BytesIO(b'{"body": "a"}\n' + line + b"\n"))
    assert next(messages) == Outgoing(b"a")
    with pytest.raises(BadArchive, match="line 2"):
        next(messages)


def test_a_tar_that_is_none_or_half_is_told() -> None:
    whole = written("tar", "a.tar", [Received(queue="q", id="ID", body=bytes(5000))]).getvalue()
    for data in (b"no tar at all" * 100, whole[:2000]):
        with pytest.raises(BadArchive):
            list(read("tar", io.BytesIO(data)))


def test_every_format_has_both_ways() -> None:
    for kind in FORMATS:
        assert list(read(kind, written(kind, "-", []))) == []
