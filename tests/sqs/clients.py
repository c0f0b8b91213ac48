"""Unmodified boto3, in both protocols of SQS.

Newer versions of boto3 speak AWS JSON. The same boto3 speaks the older query protocol where the description of the
service that it reads says so, as that of older versions did.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
import botocore.loaders
import botocore.session
import trio
from botocore.config import Config

_NAMES: Final = {
    "AttributeNameList": "AttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "MessageAttributeNameList": "MessageAttributeName",
    "TagKeyList": "TagKey",
    "QueueUrlList": "QueueUrl",
    "MessageList": "Message",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    **{
        f"{action}Batch{kind}EntryList": f"{action}Batch{kind}Entry"
        for action in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
        for kind in ("Request", "Result")
    },
    "QueueAttributeMap": "Attribute",
    "MessageBodyAttributeMap": "MessageAttribute",
    "MessageBodySystemAttributeMap": "MessageSystemAttribute",
    "MessageSystemAttributeMap": "Attribute",
    "TagMap": "Tag",
}
"""What an item or an entry is called in a form and in XML (SQS API reference), by its shape."""


class Client:
    """A client of boto3 for tasks of Trio: each call waits in a thread."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.exceptions = made.exceptions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(**given: Any) -> Any:
            return await trio.to_thread.run_sync(partial(getattr(self.made, name), **given), abandon_on_cancel=True)

        return call


def make_client(url: str, protocol: str, **more: Any) -> Any:
    """A client of boto3.

    Args:
        protocol: ``json`` or ``query``.
        more: for boto3.
    """
    access = {"aws_access_key_id": "any", "aws_secret_access_key": "any"} | more
    config = Config(retries={"max_attempts": 0}, read_timeout=30, proxies={})
    return _session(protocol).client("sqs", endpoint_url=url, region_name="eu-central-1", config=config, **access)


@functools.cache
def _session(protocol: str) -> Any:
    """One for all tests: it takes a quarter of a second to read what is described."""
    session = botocore.session.Session()
    if protocol == "query":
        with tempfile.TemporaryDirectory() as folder:
            described = Path(folder, "sqs", "2012-11-05")
            described.mkdir(parents=True)
            (described / "service-2.json").write_text(json.dumps(_described_as_query()))
            loader = session.get_component("data_loader")
            loader.search_paths.insert(0, folder)
            loader.load_service_model("sqs", "service-2")  # it is remembered from now on
    return boto3.Session(botocore_session=session)


def _described_as_query() -> dict[str, Any]:
    found = botocore.loaders.Loader().load_service_model("sqs", "service-2")
    described: dict[str, Any] = json.loads(json.dumps(found))
    described["metadata"] |= {
        "protocol": "query",
        "protocols": ["query"],
        "xmlNamespace": "http://queue.amazonaws.com/",
    }
    del described["metadata"]["awsQueryCompatible"], described["metadata"]["targetPrefix"]
    shapes = described["shapes"]
    for name, operation in described["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for name, called in _NAMES.items():
        shape = shapes[name]
        if shape["type"] == "list":
            shape["member"]["locationName"] = called
        else:
            shape["key"]["locationName"] = "Key" if name == "TagMap" else "Name"
            shape["value"]["locationName"] = "Value"
    for shape in shapes.values():
        for member in shape.get("members", {}).values():
            if shapes[member["shape"]]["type"] == "map":
                member["locationName"] = _NAMES[member["shape"]]
    return described
