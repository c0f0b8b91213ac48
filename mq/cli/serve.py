"""The verb ``serve``: reads the settings, puts the rooms together, and serves until told to stop."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import click
import trio

from mq import __version__
from mq.amqp.door import Door
from mq.amqp.server import serve as serve_amqp
from mq.amqp.session import Limits
from mq.broker import BrokerConfig, open_broker
from mq.cli.clustering import cluster_of, clustered
from mq.cli.flags import settings_options
from mq.cli.journaling import journaling
from mq.cli.protect import make_guards, reloading
from mq.doors.listening import CannotListen
from mq.errors import InvalidSetting, StorageFenced, StorageUnusable
from mq.lifecycle import DOOR
from mq.observers.metrics import Metrics
from mq.programs import CANNOT_START, collect_seldom, run_program
from mq.settings import Settings, load_settings
from mq.storage.interface import Storage
from mq.storage.registry import open_storage
from mq.web.access import Gate
from mq.web.app import WebApp
from mq.web.endpoints import Endpoints
from mq.web.serve import serve

GARBAGE_THRESHOLDS: Final = (20_000, 20, 50)
"""When Python looks for garbage; by itself it does after every 700 objects more. The thousand messages that are under
way are none, and were looked at over and over: that took an eighth of a publish over AMQP."""

_REFUSALS = (InvalidSetting, StorageUnusable, StorageFenced, CannotListen)


@click.command("serve")
@settings_options
@click.pass_obj
def serve_command(flags_before: Mapping[str, str | None], /, **flags: str | None) -> None:
    """Serve queues over HTTP and AMQP."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = load_settings({**flags_before, **given}, os.environ)
    except InvalidSetting as error:
        click.echo(f"mq: {error}", err=True)
        sys.exit(CANNOT_START)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    run_program("mq", partial(_serve, settings), _REFUSALS, settings.log_level)


def _open_store(settings: Settings) -> AbstractAsyncContextManager[Storage]:
    return open_storage(
        settings.served_store,
        shared=settings.peers > 0,
        watched=settings.no_mover or settings.no_reaper,
        max_lease_seconds=settings.delay,
        native=not settings.no_native,
    )


async def _serve(settings: Settings, stop: trio.Event) -> None:
    if settings.reuse_port and not settings.peers:
        raise InvalidSetting(
            "reuse_port is for daemons that serve one root together: say how many others there are (--peers)"
        )
    config = BrokerConfig(
        workers=settings.workers,
        peers=settings.peers,
        delay_seconds=settings.delay,
        mover=not settings.no_mover,
        reaper=not settings.no_reaper,
        max_body=settings.max_body,
    )
    cluster = cluster_of(settings)
    guards = make_guards(settings)
    metrics = Metrics()
    async with (
        journaling(settings) as journal,
        _open_store(settings) as store,
        open_broker(store, config, observers=[metrics, *journal.observers]) as local,
        clustered(cluster, local, config, [metrics]) as broker,
        reloading(guards),
        trio.open_nursery() as nursery,
    ):
        journal.begin(local)
        endpoints = Endpoints(broker, settings.max_body, metrics)
        app = WebApp(endpoints if guards.access is None else Gate(endpoints, guards.access))

        async def until_stop() -> None:
            await stop.wait()
            endpoints.end_waits()

        DOOR.set("http")
        serve_web = partial(
            serve,
            certificates=guards.certificates,
            fast_lane=not settings.no_fast_lane,
            shares_port=settings.reuse_port,
        )
        urls = await nursery.start(partial(serve_web, app, settings.address, settings.port, stop=until_stop))
        if settings.amqp_port:
            limits = Limits(body_max=min(settings.max_body, Limits().body_max))
            door = Door(broker, settings.amqp_vhosts, guards.access, limits)
            amqp = partial(serve_amqp, door, settings.address, settings.amqp_port, stop=stop.wait, version=__version__)
            DOOR.set("amqp")
            amqp = partial(amqp, certificates=guards.amqp_certificates, shares_port=settings.reuse_port)
            urls += await nursery.start(amqp)
        collect_seldom()
        durable = "durable" if broker.description.durable else "not durable"
        click.echo(f"mq {__version__} serves {broker.description.name} ({durable}) on {' '.join(urls)}", err=True)
