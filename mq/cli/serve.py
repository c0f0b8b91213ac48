"""The verb ``serve``: reads the settings, puts the rooms together, and serves until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from mq import __version__, log_lines
from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.server.exchanges import TopologyPublisher, declared
from mq.amqp.server.listener import serve as serve_amqp
from mq.amqp.server.state import AmqpState
from mq.broker import BrokerConfig, open_broker
from mq.broker.api import DISK, NODE
from mq.broker.clock import Clock
from mq.broker.config import KEY_BYTES
from mq.broker.kernel_clock import boot_seconds, heed_steps, system_clock
from mq.cli import build
from mq.cli.commands import CANNOT_START, settings_options
from mq.cli.garbage import GarbageRounds
from mq.cli.guards import Guards, make_guards, reloading
from mq.cli.journal import journaling
from mq.cli.memory import limit_heaps, returning_memory
from mq.cli.node import cluster_of, clustered
from mq.cli.programs import READY, STOPPING, leave_in_time, run_program, supervised
from mq.cli.terminal import say
from mq.cli.turns import Doorways, check_turns, in_turn
from mq.cluster.config import ClusterConfig
from mq.doors.budget import Budget
from mq.doors.connections import Crowd, raise_most_handles
from mq.doors.exchanges import Exchanges
from mq.doors.listeners import CannotListen
from mq.doors.open_connections import OpenConnections
from mq.doors.quotas import Quotas
from mq.doors.standby import Doorway, Owner
from mq.errors import InvalidSetting, StorageFenced, StorageUnusable
from mq.lifecycle import PROTOCOL
from mq.message import shorten
from mq.observers.metrics import Metrics
from mq.schedules.cluster_schedules import ClusterSchedules
from mq.schedules.scheduler import ScheduleLimits, Scheduler
from mq.settings import AMQP_PORT, Experiments, Settings, load_settings
from mq.sqs.door import SqsDoor
from mq.storage.confirmed import ConfirmedFile
from mq.storage.interface import Storage
from mq.storage.registry import open_storage
from mq.web.app import WebApp
from mq.web.authorizer import Auditor, Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler
from mq.web.front import ANY_HOST, BrowserGuard, RequestLog
from mq.web.proxies import BasePath, BasePathGuard, ProxyGuard, TrustedProxies
from mq.web.serve import serve, serve_socket

logger = logging.getLogger("mq")

GARBAGE_THRESHOLDS: Final = (20_000, 20, 50)
"""When Python collects garbage while a root is being loaded; its default is after every 700 new objects, of which
hardly any is garbage."""

SWITCH_SECONDS: Final = 0.001
"""How long a thread waits for Python before it asks the running one to let it in; Python's default is 5 ms. Each time
the event loop looks for events, the waiting begins anew: a loop that works in passes of 1 ms kept the commit thread
waiting for 80 ms and more."""
_FOLDERS: Final = ("posix", "tmpfs")
"""Stores in which a queue is a folder and a message a file."""

_EMPTIED: Final = "/tmp"
"""A folder that the system empties: by systemd-tmpfiles, at boot, or because it is in memory. /var/tmp is kept."""

_REFUSALS = (InvalidSetting, StorageUnusable, StorageFenced, CannotListen)


@click.command("serve")
@settings_options
@click.pass_obj
def serve_command(flags_before: Mapping[str, str | None], /, **flags: str | None) -> None:
    """Run the daemon: serve queues over HTTP and AMQP."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = load_settings({**flags_before, **given}, os.environ)
    except InvalidSetting as error:
        say(f"mq: {error}", err=True)
        sys.exit(CANNOT_START)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    limit_heaps()
    raise_most_handles()
    log_lines.begin(settings.log_level, settings.log_format, requests=settings.log_requests)
    run_program("mq", partial(_serve, settings), _REFUSALS)


def _broker_config(settings: Settings, cluster: ClusterConfig | None) -> BrokerConfig:
    return BrokerConfig(
        workers=settings.workers,
        peers=settings.peers,
        visibility_seconds=settings.visibility,
        mover=not settings.no_mover,
        reaper=not settings.no_reaper,
        max_body=settings.max_body,
        strict=settings.strict,
        awaits_sink=settings.serves_amqp,
        store=DISK if cluster is None else NODE,
        verify_seconds=settings.verify_every,
        most_keys=settings.memory // KEY_BYTES,
    )


def _open_store(settings: Settings, config: BrokerConfig) -> AbstractAsyncContextManager[Storage]:
    experiments = Experiments.of(os.environ)
    return open_storage(
        settings.served_store,
        sharing=config.sharing,
        native=experiments.native,
        group_writable=settings.group_writable,
        root_owner=settings.root_owner,
        log=experiments.log,
        untested=settings.untested_fs,
        confirmed=ConfirmedFile(Path(settings.root, "state")) if settings.storage else None,
    )


@asynccontextmanager
async def _leaving_in_time() -> AsyncIterator[None]:
    """Once the listeners are closed, the process waits for its store, but not for ever."""
    try:
        yield
    finally:
        leave_in_time("mq")


async def _serve(settings: Settings, stop: trio.Event) -> None:
    _check_strict(settings)
    cluster = cluster_of(settings)
    check_turns(settings, is_node=cluster is not None)
    clock = system_clock()
    guards = make_guards(settings, clock.date_seconds)
    async with supervised(os.environ) as tell_manager, reloading(guards):

        def stands_by(urls: list[str]) -> None:
            _say(
                settings,
                f"mq {__version__} is on standby at {' '.join(urls)}: another daemon is serving "
                f"{shown_store(settings.store)}",
            )
            tell_manager(READY)

        async with in_turn(settings, stop, stands_by) as doorways:
            if doorways is not None:
                await _serve_root(settings, stop, guards, tell_manager, cluster, doorways, clock)


async def _serve_root(
    settings: Settings,
    stop: trio.Event,
    guards: Guards,
    tell_manager: Callable[[str], None],
    cluster: ClusterConfig | None,
    doorways: Doorways,
    clock: Clock,
) -> None:
    config = _broker_config(settings, cluster)
    metrics = Metrics(boot_seconds, folder=settings.folder, version=__version__)
    schedule_limits = ScheduleLimits(*settings.schedules_per_user)
    shared_schedules = ClusterSchedules(limits=schedule_limits)
    users = None if guards.logins is None else guards.logins.access
    budget = Budget(settings.memory, settings.staging, has_users=users is not None)
    garbage = GarbageRounds()
    async with (
        journaling(settings, clock) as journal,
        _open_store(settings, config) as store,
        open_broker(store, config, observers=[metrics, *journal.observers], clock=clock) as local,
        clustered(cluster, local, config, [metrics], stop, shared_schedules, users) as broker,
        _leaving_in_time(),
        returning_memory(budget, garbage.collect_all, local.messages, local.forget_recent),
        trio.open_nursery() as nursery,
    ):
        local.writes.count_in(budget.write_job)
        journal.begin(local)
        metrics.knows = broker.declarations.knows
        seen = OpenConnections()
        quotas = Quotas(seen)
        exchanges = Exchanges()
        scheduler = Scheduler(local, refusal=_no_schedules(config, is_node=cluster is not None), limits=schedule_limits)
        if not settings.strict:
            await scheduler.load()
        schedules = scheduler if cluster is None else shared_schedules
        endpoints = Endpoints(
            broker, settings.max_body, metrics, budget, seen, exchanges, schedules, strict=settings.strict
        )
        logins = guards.logins
        handler: Handler = Auditor(endpoints)
        if logins is not None:
            handler = Authorizer(endpoints, logins, settings.base_path, quotas)
        sqs = SqsDoor(
            handler,
            broker,
            budget,
            nursery,
            guards.logins,
            lease_seconds=settings.visibility,
            base_path=settings.base_path,
            quotas=quotas,
        )
        handler = handler if settings.strict else sqs
        proxies = TrustedProxies(settings.trusted_proxies)
        crowd = Crowd(settings.connections_per_address, is_proxy=proxies.trusts)
        guarded = partial(_guarded, settings, proxies=proxies, crowd=crowd, needs_login=logins is not None)
        app = guarded(handler, settings.hosts)

        async def until_stop() -> None:
            await stop.wait()
            tell_manager(STOPPING)
            endpoints.end_waits()
            sqs.end()
            scheduler.end()

        nursery.start_soon(scheduler.run)
        nursery.start_soon(_heed_until, stop, clock)
        PROTOCOL.set("http")
        serve_web = partial(
            serve,
            certificates=guards.certificates,
            crowd=crowd,
            seen=seen,
            budget=budget,
            fast_lane=Experiments.of(os.environ).fast_path,
            shares_port=settings.reuse_port,
            doorway=doorways.http,
            keep_alive_seconds=settings.keep_alive,
        )
        urls = await nursery.start(partial(serve_web, app, settings.address, settings.port, stop=until_stop))
        if settings.sqs_port:
            alone = guarded(sqs.alone, settings.hosts)
            urls += await nursery.start(partial(serve_web, alone, settings.address, settings.sqs_port, stop=until_stop))
        if settings.serves_amqp:
            body_max = min(settings.max_body, ConnectionLimits().body_max)
            limits = ConnectionLimits(body_max=body_max, channel_max=settings.amqp_channel_max)
            amqp = AmqpState(broker, settings.amqp_vhosts, guards.logins, limits, budget, seen, quotas)
            exchanges.told_by(partial(declared, amqp.topology))
            exchanges.publisher = TopologyPublisher(amqp.topology, amqp.copies, amqp.dead_letters)
            PROTOCOL.set("amqp")
            is_node = cluster is not None  # others know it by its port
            serving = partial(_open_amqp, nursery, settings, amqp, guards, crowd, stop, doorways.amqp)
            urls += await serving(needs_port=is_node)
        if doorways.owner is not None:
            await nursery.start(_take_until, stop, doorways.owner)
        if settings.socket.path:
            # No browser gets there by itself, so any name will do. Behind a proxy it may: where a page comes from still
            # counts.
            by_socket = guarded(handler, [ANY_HOST], needs_login=False)
            urls += await _open_socket(nursery, settings, by_socket, seen, budget, until_stop)
        garbage.begin()
        what = store.description
        durable = "durable" if what.durable else "not durable"
        which = f"{__version__}{build.told(native=getattr(store, 'is_native', False))}"
        _say(settings, f"mq {which} is serving {shown_store(what.name)} ({durable}) on {' '.join(urls)}")
        if engine := getattr(store, "engine", None):
            logger.info("%s: %s", shown_store(what.name), engine)  # behind the line that programs wait for
        tell_manager(READY)
        for line in forgotten(store.description.name, durable=store.description.durable):
            _say(settings, f"mq: {line}")


async def _heed_until(stop: trio.Event, clock: Clock) -> None:
    """Heed steps of the wall clock, until this daemon stops."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heed_steps, clock)
        await stop.wait()
        nursery.cancel_scope.cancel()


async def _take_until(
    stop: trio.Event, owner: Owner, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Take connections from daemons that stand by, until this one stops."""
    async with trio.open_nursery() as nursery:
        await nursery.start(owner.run)
        task_status.started()
        await stop.wait()
        nursery.cancel_scope.cancel()


def _no_schedules(config: BrokerConfig, *, is_node: bool) -> str:
    """Why no schedules can be kept; empty where they can."""
    if is_node:
        return "a cluster node only supports schedules for cluster queues"
    if config.others_move:  # others may have fired, and this broker knows none of their keys
        return "schedules require a daemon that is the only one on its root. Start mq without --peers or --no-mover"
    return ""


def shown_store(address: str) -> str:
    """Return a store's address as users know it: the folder of a root, or NAME:ADDRESS of another backend."""
    address = address.removeprefix("layered:")
    name, _, folder = address.partition(":")
    return folder if name in _FOLDERS else address


def _say(settings: Settings, line: str) -> None:
    """Print a line for the caller of ``mq serve``; where programs read the log, as a line of the log."""
    if settings.log_format == log_lines.JSON:
        logger.warning("%s", line)
    else:
        say(line, err=True)


def forgotten(store: str, *, durable: bool) -> list[str]:
    """The warning about a store that will not keep its messages, as lines; none for any other store."""
    kind, _, place = store.removeprefix("layered:").partition(":")
    advice = "Use a root on disk, such as --root /var/lib/mq"
    if kind == "memory":
        return [f"WARNING: {store} stores all messages in memory, so they will be lost when mq stops. {advice}"]
    if not durable:
        return [
            (
                f"WARNING: {place} is in memory or on a disk that cannot be flushed, so messages will be lost "
                f"in a power failure. {advice}"
            )
        ]
    if kind in _FOLDERS and Path(os.path.realpath(place)).is_relative_to(_EMPTIED):
        return [f"WARNING: {place} is inside {_EMPTIED}, which most systems clear at boot. {advice}"]
    return []


def _check_strict(settings: Settings) -> None:
    if settings.strict and settings.sqs_port:
        raise InvalidSetting("--strict cannot be combined with --sqs-port")
    if settings.strict and settings.store.partition(":")[0] not in _FOLDERS:
        raise InvalidSetting(
            f"--strict requires a storage backend that uses folders ({' or '.join(_FOLDERS)}), not "
            f"{shorten(settings.store)}"
        )


def _guarded(
    settings: Settings,
    handler: Handler,
    hosts: Iterable[str],
    *,
    proxies: TrustedProxies,
    crowd: Crowd,
    needs_login: bool,
) -> WebApp:
    """The handler behind the guards of every HTTP port, as an app."""
    guarded: Handler = BrowserGuard(handler, settings.address, hosts, browsers_lease=settings.strict)
    guarded = RequestLog(guarded)
    if settings.trusted_proxies:
        guarded = ProxyGuard(guarded, proxies, crowd)
    if settings.base_path:
        guarded = BasePathGuard(guarded, settings.base_path)
    return WebApp(guarded, BasePath(settings.base_path), needs_login=needs_login)


async def _open_socket(
    nursery: trio.Nursery,
    settings: Settings,
    app: WebApp,
    seen: OpenConnections,
    budget: Budget,
    until_stop: Callable[[], Awaitable[None]],
) -> list[str]:
    """The URLs."""
    PROTOCOL.set("http")
    fast_lane = Experiments.of(os.environ).fast_path
    serving = partial(serve_socket, app, *settings.socket, fast_lane=fast_lane)
    serving = partial(serving, keep_alive_seconds=settings.keep_alive)
    urls: list[str] = await nursery.start(partial(serving, stop=until_stop, seen=seen, budget=budget))
    return urls


async def _open_amqp(
    nursery: trio.Nursery,
    settings: Settings,
    amqp: AmqpState,
    guards: Guards,
    crowd: Crowd,
    stop: trio.Event,
    doorway: Doorway | None,
    *,
    needs_port: bool,
) -> list[str]:
    """The URLs; none where another program has AMQP's port, and it was not asked for by name."""
    port = AMQP_PORT if settings.amqp_port is None else settings.amqp_port
    serving = partial(serve_amqp, amqp, settings.address, port, stop=stop.wait, version=__version__)
    urls: list[str] = await nursery.start(
        partial(
            serving,
            certificates=guards.amqp_certificates,
            crowd=crowd,
            shares_port=settings.reuse_port,
            needs_port=needs_port or settings.amqp_port is not None,
            doorway=doorway,
        )
    )
    if not urls:
        _say(
            settings,
            f"mq: port {port} is in use by another program, so AMQP is not served. Choose another port with "
            "--amqp-port",
        )
    return urls
