"""What a program does with nameko: a service that answers and one that hears of events. Takes a URL and a name, prints
what it saw as JSON."""

from __future__ import annotations

import eventlet

eventlet.monkey_patch()

import json  # noqa: E402
import sys  # noqa: E402

from nameko.containers import ServiceContainer  # noqa: E402
from nameko.events import EventDispatcher, event_handler  # noqa: E402
from nameko.rpc import rpc  # noqa: E402
from nameko.standalone.rpc import ClusterRpcProxy  # noqa: E402

url, called = sys.argv[1:]
heard: list[int] = []


class Doubling:
    name = called
    dispatch = EventDispatcher()

    @rpc
    def double(self, number: int) -> int:
        self.dispatch("doubled", number)
        return number * 2

    @rpc
    def fail(self) -> None:
        raise ValueError("as asked")


class Listening:
    name = f"{called}-listening"

    @event_handler(called, "doubled")
    def hear(self, number: int) -> None:
        heard.append(number)


config = {"AMQP_URI": url, "serializer": "json"}
containers = [ServiceContainer(each, config=config) for each in (Listening, Doubling)]
for container in containers:
    container.start()
seen: dict[str, object] = {}
with ClusterRpcProxy(config, timeout=20) as services:
    seen["doubled"] = [services[called].double(number) for number in range(20)]
    waiting = [services[called].double.call_async(number) for number in range(5)]
    seen["async"] = [reply.result() for reply in waiting]
    try:
        services[called].fail()
    except Exception as error:  # noqa: BLE001 - a class of the other side, made here
        seen["failed"] = str(error)
with eventlet.Timeout(20):
    while len(heard) < 25:
        eventlet.sleep(0.01)
seen["heard"] = sorted(heard) == sorted([*range(20), *range(5)])
for container in containers:
    container.stop()
sys.stdout.write(f"{json.dumps(seen)}\n")
