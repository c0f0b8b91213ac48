"""The flags of the settings' table, for every verb that reads settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from mq.settings import CONFIG_FLAG, CONFIG_VARIABLE, LINES, Line


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a flag for each line of the settings' table, and ``--config``.

    It gets them as text by field name; None is "not given".
    """
    options = [option_of(line) for line in LINES]
    options.append(click.option(CONFIG_FLAG, metavar="FILE", help=f"Settings as TOML.  [{CONFIG_VARIABLE}]"))
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def option_of(line: Line) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flag of one line."""
    shown = f"; default {line.shown}" if line.shown else ""
    text = f"{line.help[0].upper()}{line.help[1:]}.  [{line.variable}{shown}]"
    if line.is_switch:
        return click.option(line.flag, line.name, flag_value="true", default=None, help=text)
    return click.option(line.flag, line.name, metavar="VALUE", help=text)
