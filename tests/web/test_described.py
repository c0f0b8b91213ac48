"""The description at /-/openapi.json: it is OpenAPI, it is what is served, and the page says the same."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mq.broker.settings import QueueSettings, SettingKind, check_value
from mq.errors import InvalidSetting
from mq.web.endpoints import OPERATIONS, ROUTES, Endpoints
from mq.web.exchange import Request
from mq.web.openapi import REFUSALS, describe, path_of, refusals_of
from mq.web.operations import NO_RIGHT, Operation, Parameter
from mq.web.parameters import read_header, read_query
from tests.cases import for_each
from tests.e2e.daemon import Daemon
from tests.web.talking import ask, detail, stream

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "http.md").read_text()
SETTINGS = "## Settings of a queue"
DESCRIPTION: dict[str, Any] = json.loads(json.dumps(describe(OPERATIONS)))
ROW = re.compile(
    r"^\| (?P<requests>`[A-Z]+ /[^|]*`) \| (?P<right>\w+) \| (?P<does>.+?) \| (?P<answers>.+?) \|$", re.MULTILINE
)
NUMBERS = [
    (operation, parameter, where)
    for operation in OPERATIONS
    for where in ("query", "headers")
    for parameter in getattr(operation, where)
    if "minimum" in parameter.kind.schema
]

each_operation = for_each("operation", OPERATIONS)


def rows() -> dict[str, re.Match[str]]:
    return {request: row for row in ROW.finditer(PAGE) for request in re.findall(r"`([A-Z]+ /[^`]*)`", row["requests"])}


async def test_it_is_served_to_anybody(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "GET", "/-/openapi.json")
    assert reply.status == 200
    assert json.loads(reply.body) == DESCRIPTION
    assert (await ask(endpoints, "HEAD", "/-/openapi.json")).status == 200


@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_it_is_openapi() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(DESCRIPTION)


def test_every_route_is_in_it_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods}
    routed = {(method, path_of(each.path)) for route in ROUTES for method, each in route.methods.items()}
    assert {(method, path) for method, path in routed if method != "HEAD"} == described
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names)) == len(described)


def test_it_tells_the_right_of_each_operation() -> None:
    for operation in OPERATIONS:
        described = DESCRIPTION["paths"][path_of(operation.path)][operation.method.lower()]
        assert described["x-right"] == operation.right
        assert bool(described["security"]) == (operation.right != NO_RIGHT)
        assert ("401" in described["responses"]) == (operation.right != NO_RIGHT or 401 in operation.refusals)


@each_operation
def test_the_page_says_the_same(operation: Operation) -> None:
    row = rows()[operation.line]
    if operation.line not in ("GET /-/live", "GET /-/ready"):  # they share a row
        assert row["does"] == operation.text
    told = set(map(int, re.findall(r"\b[1-5]\d\d\b", row["answers"])))
    assert told - {503} == set(operation.answers)


@for_each("operation, parameter, where", NUMBERS)
def test_the_page_has_the_range_of_every_number(operation: Operation, parameter: Parameter, where: str) -> None:
    low, high = (written(parameter.kind.schema[end]) for end in ("minimum", "maximum"))
    [row] = re.findall(rf"^\| `{parameter.name}` \| .+$", PAGE.partition(SETTINGS)[0], re.MULTILINE)
    assert f"from {low} to {high}" in row


@for_each("name, kind", QueueSettings.kinds().items())
def test_the_page_has_the_range_of_every_setting(name: str, kind: SettingKind) -> None:
    [row] = re.findall(rf"^\| `{name}` \| (.+?) \|", PAGE.partition(SETTINGS)[2], re.MULTILINE)
    if "minimum" in kind.schema:
        low, high = (written(kind.schema[end]) for end in ("minimum", "maximum"))
        assert row.removesuffix(" s") == f"{low} to {high}"
    for word in kind.schema.get("enum", []):
        assert f"`{word}`" in row


def test_the_page_knows_every_word() -> None:
    words = {parameter.name for each in OPERATIONS for parameter in (*each.query, *each.headers)}
    words |= DESCRIPTION["components"]["schemas"]["Draft"]["properties"].keys()
    words |= DESCRIPTION["components"]["schemas"]["Message"]["properties"].keys()
    words |= DESCRIPTION["components"]["schemas"]["Redrive"]["properties"].keys()
    words |= DESCRIPTION["components"]["schemas"]["Queue"]["properties"].keys()
    assert {word for word in words if not re.search(rf"`[^`]*\b{word}\b[^`]*`", PAGE)} == set()


def written(number: float) -> str:
    """As people write it on the page."""
    if number >= 10**6 and set(str(int(number))[1:]) == {"0"}:
        return f"10^{len(str(int(number))) - 1}"
    return f"{int(number):,}" if number == int(number) else str(number)


def test_the_page_tells_every_refusal() -> None:
    told = {
        int(status)
        for row in re.findall(r"^\| (\d{3}(?:, \d{3})*) \| .+ \|$", PAGE, re.MULTILINE)
        for status in row.split(", ")
    }
    assert told == set(REFUSALS)


@each_operation
def test_a_refusal_of_its_own_is_one_that_is_explained(operation: Operation) -> None:
    assert set(refusals_of(operation)) <= REFUSALS.keys()
    assert not set(operation.answers) & set(refusals_of(operation))


@each_operation
async def test_a_parameter_that_it_does_not_know_is_refused(endpoints: Endpoints, operation: Operation) -> None:
    await ask(endpoints, "PUT", "/QUEUE")
    reply = await ask_query(endpoints, operation, b"maxx=1")
    assert reply.status == 400
    assert 'unknown parameter "maxx"' in detail(reply)


@each_operation
async def test_a_parameter_that_is_there_twice_is_refused(endpoints: Endpoints, operation: Operation) -> None:
    for parameter in operation.query:
        value = parameter.kind.schema.get("enum", ["1"])[0]
        reply = await ask_query(endpoints, operation, f"{parameter.name}={value}&{parameter.name}={value}".encode())
        assert reply.status == 400
        assert any(said in detail(reply) for said in ("twice", "message's id", "message ids", "id of a connection"))


async def ask_query(endpoints: Endpoints, operation: Operation, query: bytes) -> Any:
    return await endpoints.handle(Request(operation.method, operation.path.encode(), query, {}, stream(), None))


@for_each("operation, parameter, where", NUMBERS)
def test_every_number_ends_where_it_says(operation: Operation, parameter: Parameter, where: str) -> None:
    schema = parameter.kind.schema
    step = 1 if schema["type"] == "integer" else schema["minimum"] or 0.001

    def read(value: object) -> Any:
        if where == "query":
            return read_query(f"{parameter.name}={value}".encode(), [parameter])[parameter.name]
        return read_header({parameter.name.lower(): str(value)}, parameter)

    assert read(schema["minimum"]) == schema["minimum"]
    assert read(schema["maximum"]) == schema["maximum"]
    bad = [schema["minimum"] - step, schema["maximum"] + step, -1, "", "nan", "inf", "1e999", "x", "0x1", "1_0", "1,5"]
    if schema["type"] == "integer":
        bad += ["1.0", "1.5", "1e1"]
    for value in bad:
        with pytest.raises(InvalidSetting, match=parameter.name):
            read(value)


WITH_UNITS = {"visibility", "delay", "ttl", "key_window", "retry_delay", "retry_max", "max_bytes"}


@for_each("name", QueueSettings.kinds())
def test_every_setting_ends_where_its_schema_says(name: str) -> None:
    kind = QueueSettings.kinds()[name]
    good = kind.schema.get("enum", [kind.schema[end] for end in ("minimum", "maximum") if end in kind.schema])
    for value in good:
        assert check_value(name, value, kind) == value
    bad: list[object] = ["", "no such word", [], {}, float("nan")]
    if "minimum" in kind.schema:
        step = 1 if kind.schema["type"] == "integer" else kind.schema["minimum"] or 0.001
        bad += [True, kind.schema["minimum"] - step, kind.schema["maximum"] + step]
        bad.append("-1" if name in WITH_UNITS else str(kind.schema["minimum"]))
    for value in bad:
        with pytest.raises(InvalidSetting, match=name):
            check_value(name, value, kind)
    assert (
        DESCRIPTION["components"]["schemas"]["Settings"]["properties"][name].items()
        >= {key: value for key, value in kind.schema.items() if key in ("minimum", "maximum", "pattern")}.items()
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("examples", "of"),
    [
        *(pytest.param(2, OPERATIONS[part::3], marks=pytest.mark.in_turn(3), id=f"2-part-{part}") for part in range(3)),
        pytest.param(15, OPERATIONS, marks=pytest.mark.proof, id="15"),
    ],
)
def test_the_daemon_is_as_described(temp_root: Path, tmp_path: Path, examples: int, of: Sequence[Operation]) -> None:
    """schemathesis asks for everything in many ways, right ones and wrong ones, always the same."""
    names = [operation.name for operation in of if operation.name != "openapi"]  # it passes over its own source
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("there is no schemathesis here")
    with Daemon(temp_root, tmp_path / "log") as daemon:
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
                *("--config-file", str(HERE / "described" / "schemathesis.toml")),
                *("run", f"http://127.0.0.1:{daemon.port}/-/openapi.json"),
                *("--seed", "1", "--max-examples", str(examples), "--workers", "1", "--request-timeout", "20"),
                *("--continue-on-failure", "--suppress-health-check", "all"),
                *(word for name in names for word in ("--include-operation-id", name)),
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.web.described.hooks", "PYTHONPATH": str(HERE.parents[1])},
            capture_output=True,
            text=True,
            timeout=350,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"Tested: (\d+)", done.stdout)[1] == str(len(names))
        daemon.stop()
    assert "Traceback" not in (tmp_path / "log").read_text()
