"""Flags for the users to trust with a root, in programs that are no daemon. Not in ``flags``, for this loads an event
loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, Final

import click

from mq.cli.commands import option_of
from mq.errors import InvalidSetting
from mq.programs import CANNOT_START
from mq.settings import LINES, load_settings
from mq.storage.options import StorageOptions

_OF_TRUST: Final = ("group_writable", "root_owner")


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command`, which works on a root, the flags for the users to trust with it.

    It gets them as `options`, those of a store; a wrong value, wherever it comes from, ends the program with a line.
    """

    @wraps(command)
    def decorated(*args: Any, **given: Any) -> Any:
        try:
            settings = load_settings({name: given.pop(name) for name in _OF_TRUST}, os.environ)
        except InvalidSetting as error:
            click.echo(f"mq: {error}", err=True)
            sys.exit(CANNOT_START)
        options = StorageOptions(group_writable=settings.group_writable, root_owner=settings.root_owner)
        return command(*args, **given, options=options)

    flags = [option_of(line) for line in LINES if line.name in _OF_TRUST]
    return reduce(lambda wrapped, option: option(wrapped), reversed(flags), decorated)
