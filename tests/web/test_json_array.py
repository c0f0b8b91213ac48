"""A JSON array comes out as the lines of its elements would, in whatever pieces its bytes come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import InvalidRequest, MQError
from mq.web.endpoints import Endpoints
from mq.web.json_lines import Array
from tests.cases import for_each
from tests.web.talking import ask

texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(['"', "\\", "[{,", "]}", "\n", "é\r\n"])
elements = st.fixed_dictionaries(
    {"body": texts}, optional={"attributes": st.dictionaries(texts, texts, max_size=2), "more": st.lists(texts)}
)


def read(data: bytes, *pieces: int) -> list[dict[str, Any] | MQError]:
    """What is in `data`, which comes in pieces of these sizes, again and again."""
    found: list[dict[str, Any] | MQError] = []
    reader = Array(found.append)
    start = number = 0
    while start < len(data):
        size = pieces[number % len(pieces)] if pieces else len(data)
        reader.feed(data[start : start + size])
        start, number = start + size, number + 1
    reader.end()
    return found


@pytest.mark.slow
@given(st.lists(elements, max_size=5), st.lists(st.integers(1, 9), max_size=3), st.booleans(), st.booleans())
def test_elements_come_out_as_they_are(values: Any, pieces: list[int], indented: bool, ascii: bool) -> None:
    data = json.dumps(values, indent=2 if indented else None, ensure_ascii=ascii).encode()
    assert read(data, *pieces) == values
    assert read(b"\r\n" + data + b" \n", *pieces) == values


@for_each(
    "data",
    [
        b"",
        b"[",
        b"[{}",
        b"{}",
        b"x",
        b"[]]",
        b"[] x",
        b"[][]",
        b"[,]",
        b"[{},]",
        b"[{},,{}]",
        b"[}",
        b'["a',
        b"]",
        b'"',
    ],
)
def test_what_is_no_array_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(data)
    with pytest.raises(InvalidRequest):
        read(data, 1)


def test_an_element_that_is_wrong_costs_the_others_nothing() -> None:
    found = read(b'[{"body": "a"}, 7, {"a" "b"}, {"body": "b\nc"}, [1, 2], "x", {"body": "d"}]', 3)
    assert [isinstance(value, MQError) for value in found] == [False, True, True, True, True, True, False]


async def test_a_batch_and_a_removal_of_many(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    headers = {"content-type": "application/json"}
    batch = json.dumps([{"body": "a"}, {"body": "b", "delay": -1}, {"base64": "/w=="}]).encode()
    said = [
        json.loads(line)
        for line in (await ask(endpoints, "POST", "/q/messages/batch", batch, headers=headers)).body.splitlines()
    ]
    assert [each["status"] for each in said] == [201, 400, 201]
    ids = json.dumps([{"id": each["id"]} for each in said if "id" in each]).encode()
    reply = await ask(endpoints, "POST", "/q/messages/delete", ids, headers=headers)
    assert [json.loads(line)["status"] for line in reply.body.splitlines()] == [202, 202]
    assert (await ask(endpoints, "POST", "/q/messages/batch", b"[]", headers=headers)).status == 400
    assert (await ask(endpoints, "GET", "/q/messages")).status == 204


async def test_a_whole_that_is_wrong_stores_nothing(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    headers = {"content-type": "application/json"}
    assert (await ask(endpoints, "POST", "/q/messages/batch", b'[{"body": "a"}', headers=headers)).status == 400
    assert (await ask(endpoints, "GET", "/q/messages")).status == 204
