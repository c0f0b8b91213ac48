"""The program ``mq``: reads the settings, puts the rooms together, and stops when told to.

``mq`` alone serves. A verb is a command of the group :data:`main`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial, reduce
from typing import Any, Final, NoReturn

import click
import trio

from mq import __version__
from mq.broker import BrokerConfig, open_broker
from mq.errors import InvalidSetting, StorageUnusable
from mq.settings import CONFIG_FLAG, CONFIG_VARIABLE, LINES, Line, Settings, load_settings
from mq.web.app import WebApp
from mq.web.endpoints import Endpoints
from mq.web.serve import CannotListen, first_of, serve

logger = logging.getLogger(__name__)

CANNOT_START: Final = 2
"""The exit status when a setting, the store or the port does not let mq start."""


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a flag for each line of the settings' table, and ``--config``.

    It gets them as text by field name; None is "not given".
    """
    options = [_option(line) for line in LINES]
    options.append(click.option(CONFIG_FLAG, metavar="FILE", help=f"Settings as TOML.  [{CONFIG_VARIABLE}]"))
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _option(line: Line) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    shown = f"; default {line.shown}" if line.shown else ""
    text = f"{line.help[0].upper()}{line.help[1:]}.  [{line.variable}{shown}]"
    if line.is_switch:
        return click.option(line.flag, line.name, flag_value="true", default=None, help=text)
    return click.option(line.flag, line.name, metavar="VALUE", help=text)


@click.group(invoke_without_command=True)
@settings_options
@click.version_option(__version__, prog_name="mq")
@click.pass_context
def main(context: click.Context, /, **flags: str | None) -> None:
    """A durable message queue over HTTP. Without a command it serves.

    A flag beats its environment variable, which beats the file.
    """
    context.obj = flags
    if context.invoked_subcommand is None:
        _serve(flags)


@main.command("serve")
@settings_options
@click.pass_obj
def serve_command(flags_before: Mapping[str, str | None], /, **flags: str | None) -> None:
    """Serve queues over HTTP."""
    _serve({**flags_before, **{name: value for name, value in flags.items() if value is not None}})


def _serve(flags: Mapping[str, str | None]) -> None:
    refusal: BaseException | None = None
    try:
        settings = load_settings(flags, os.environ)
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
        trio.run(_serve_until_signalled, settings)
    except* (InvalidSetting, StorageUnusable, CannotListen) as refusals:
        refusal = first_of(refusals)
    except* Exception:
        logger.critical("mq ends on an unexpected error. What it acknowledged is in the store: start it again")
        raise
    if refusal is not None:
        click.echo(f"mq: {refusal}", err=True)
        sys.exit(CANNOT_START)


async def _serve_until_signalled(settings: Settings) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_heed, signals, stop)
            await _serve_until(stop, settings)
            nursery.cancel_scope.cancel()


async def _heed(signals: AsyncIterator[int], stop: trio.Event) -> None:
    async for number in signals:
        if stop.is_set():
            _leave(number)
        logger.info("stopping on %s; once more stops at once", signal.Signals(number).name)
        stop.set()


def _leave(number: int) -> NoReturn:
    os._exit(128 + number)  # nothing is lost: what was acknowledged is durable


async def _serve_until(stop: trio.Event, settings: Settings) -> None:
    config = BrokerConfig(
        workers=settings.workers,
        peers=settings.peers,
        delay_seconds=settings.delay,
        mover=not settings.no_mover,
        reaper=not settings.no_reaper,
        max_body=settings.max_body,
    )
    async with open_broker(settings.store, config) as broker, trio.open_nursery() as nursery:
        app = WebApp(Endpoints(broker, settings.max_body))
        urls = await nursery.start(partial(serve, app, settings.address, settings.port, stop=stop.wait))
        durable = "durable" if broker.description.durable else "not durable"
        click.echo(f"mq {__version__} serves {broker.description.name} ({durable}) on {' '.join(urls)}", err=True)
