"""mq over the SQS API: AWS JSON 1.0, as today's SDKs send it, but for the signature."""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.load.codec import Steps, check
from benchmarks.load.http import Answer, HttpCodec

_URL: Final = "http://localhost/000000000000/"


class SqsCodec(HttpCodec):
    """As in Codec."""

    def __init__(self, queue: str, body: bytes) -> None:
        super().__init__(queue, body)
        self._send = self._action("SendMessage", MessageBody=body.decode())
        self._receive = self._action("ReceiveMessage")

    def parse(self, data: bytes) -> tuple[Answer, int] | None:
        """As in Codec. Each answer has its body."""
        found = super().parse(data)
        if found is None:
            return None
        answer, size = found
        return answer._replace(body=data[size - answer.length : size]), size

    def create(self) -> Steps:
        _good((yield self._action("CreateQueue", QueueName=self.queue)))

    def delete(self) -> Steps:
        _good((yield self._action("DeleteQueue")))

    def publish(self) -> Steps:
        _good((yield self._send))

    def fetch_nothing(self) -> Steps:
        check(not _good((yield self._receive)), "a message")

    def consume(self) -> Steps:
        [message] = _good((yield self._receive))["Messages"]
        check(len(message["Body"]) == len(self.body), message)
        _good((yield self._action("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])))

    def _action(self, name: str, **members: str) -> bytes:
        body = json.dumps({"QueueUrl": _URL + self.queue, **members}).encode()
        headers = (f"X-Amz-Target: AmazonSQS.{name}", "Content-Type: application/x-amz-json-1.0")
        return self._request("POST", "/", body, *headers)


def _good(answer: Answer) -> Any:
    check(answer.head.startswith(b"HTTP/1.1 200"), answer)
    return json.loads(answer.body or b"{}")
