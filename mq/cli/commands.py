"""What the programs' command lines share: commands that say no in one line, exit statuses, flags of the settings.

Click tells a usage error in three lines, and an abort with status 1 whatever ended it. Commands of these classes end
with one line. What a verb prints itself is not here. Nothing here loads an event loop or a store, for most verbs need
neither.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from math import inf
from typing import Any, Final, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from mq.cli.streams import CannotWrite, checked_streams
from mq.cli.synonyms import AFTER_COMMAND, command_meant, option_meant
from mq.cli.terminal import say
from mq.errors import InvalidSetting
from mq.message import shorten
from mq.quantities import DURATION_EXAMPLES, parse_duration, parse_size, show_duration
from mq.settings import CONFIG_FLAG, CONFIG_VARIABLE, LINES, SettingLine, load_settings

# Exit statuses; docs/cli.md has them for users.
REFUSED: Final = 1
"""The daemon or Spark refused the request, a part of the work failed, or a confirmation was declined."""
CANNOT_START: Final = 2
"""A setting, the store or the port does not let a program start. Click ends with it on a wrong command line."""
EMPTY: Final = 3
"""There was no message, or not that one."""
NOT_NOW: Final = 4
"""The daemon is away, busy or full, or a disk is: trying again later may help."""
FINDINGS: Final = 5
"""A check found what should not be."""
CANNOT_WRITE: Final = 6
"""Standard output is full or closed."""
BROKEN_PIPE: Final = 141
"""The reader of standard output has gone: as shells have it after SIGPIPE."""
INTERRUPTED: Final = 130
"""After Control-C, as shells have it."""

LONGEST_TTL_SECONDS: Final = 315_576_000.0
"""Ten years: the longest delay and time to live that a daemon takes."""
_FEW: Final = 10
"""Commands that an error still lists; ``mq`` has more."""
_OF_TRUST: Final = ("group_writable", "root_owner")
_EXTRA: Final = re.compile(r"Got unexpected extra arguments? \((.*)\)\.?")
"""Click's text for arguments after the last one."""


class Duration(click.ParamType[float]):
    """A duration on the command line, which the command gets in seconds.

    Args:
        low: seconds of the shortest one.
        high: seconds of the longest one; with infinity, ``inf`` is one, too.
    """

    name = "duration"

    def __init__(self, low: float = 0.0, high: float = LONGEST_TTL_SECONDS) -> None:
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a duration; see :class:`click.ParamType`."""
        seconds = value
        if isinstance(value, str) and not (value == "inf" and self.high == inf):
            try:
                seconds = parse_duration(value)
            except ValueError:
                self.fail(
                    f"{shorten(value)} is not a valid duration. Use a value such as {DURATION_EXAMPLES}", param, ctx
                )
        seconds = float(seconds)
        if not self.low <= seconds <= self.high:
            bounds = f"at least {show_duration(self.low)}"
            if self.high != inf:
                bounds += f" and at most {show_duration(self.high)}"
            self.fail(f"{shorten(str(value))} is out of range. The value must be {bounds}", param, ctx)
        return seconds


class Number(click.ParamType[int]):
    """A whole number on the command line.

    Args:
        low: the smallest one.
        high: the largest one; None for no limit.
    """

    name = "number"

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number; see :class:`click.ParamType`."""
        bounds = f"of at least {self.low}" if self.high is None else f"from {self.low} to {self.high}"
        try:
            number = int(value)
        except ValueError:
            number = self.low - 1
        if number < self.low or (self.high is not None and number > self.high):
            self.fail(f"{shorten(str(value))} is not a whole number {bounds}", param, ctx)
        return number


class Size(click.ParamType[int]):
    """A size in bytes: a number, or with a unit, such as 64KiB or 10MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size; see :class:`click.ParamType`."""
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Plain(click.Command):
    """Its own name begins the line, however the program was called (``mq.pyz``, ``python -m mq``)."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, with one line for what goes wrong; with `standalone_mode` it ends the process."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            with checked_streams():
                self._run(args, prog_name, complete_var, **extra)
        except CannotWrite as error:
            if error.is_broken_pipe:
                sys.exit(BROKEN_PIPE)  # without a line, as programs end by SIGPIPE
            self._end(str(error), CANNOT_WRITE)

    def _run(
        self, args: Sequence[str] | None, prog_name: str | None, complete_var: str | None, **extra: Any
    ) -> NoReturn:
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort as abort:
            # Click turns Control-C into this, too, and keeps it as the cause or, at a prompt, as the context.
            interrupted = isinstance(abort.__cause__ or abort.__context__, KeyboardInterrupt)
            self._end("interrupted" if interrupted else "aborted", INTERRUPTED if interrupted else REFUSED)
        except NoArgsIsHelpError as error:  # a group without a verb: its help is the best answer
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            self._end(told(error), error.exit_code)
        sys.exit(status if type(status) is int else 0)  # what a verb returns is no status

    def _end(self, line: str, status: int) -> NoReturn:
        say(f"{self.name}: {line}", err=True)
        sys.exit(status)


class PlainCommand(_Plain):
    """A program without commands."""


class Commands(click.Group):
    """Commands under one name, such as ``mq queue``; an unknown one is answered with the one that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; see :class:`click.Group`."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            near = command_meant(self.name or "", name, known)
            few = f". Known commands: {', '.join(known)}" if len(known) <= _FEW else ""
            raise click.UsageError(f"unknown command {name!a:.60}{f': did you mean {near}?' if near else few}", ctx)
        return super().resolve_command(ctx, args)


class PlainGroup(_Plain, Commands):
    """A program with commands."""


def told(error: click.ClickException) -> str:
    """The line for a usage error: what is wrong, and the command that shows more."""
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Argument) and error.message:
        text = error.message  # an argument's place in the usage line says nothing that its value does not say
    else:
        text = _EXTRA.sub(r"unexpected argument: \1", error.format_message())
    text = " ".join(text.split()).rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return text
    if isinstance(error, click.NoSuchOption):
        text = f"no such option {error.option_name!a:.60}{_option_hint(error.option_name, context)}"
    return f"{text}{'' if text.endswith('?') else '.'} See {context.command_path} --help"


def _option_hint(name: str, context: click.Context) -> str:
    if context.parent is None and name in AFTER_COMMAND:
        return f": it belongs after the command, as in mq queues {name}"
    near = option_meant(name, (option for parameter in context.command.params for option in parameter.opts))
    return f": did you mean {near}?" if near else ""


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` a flag for each line of the settings' table, and ``--config``.

    It gets them as text by field name; None is "not given".
    """
    options = [option_of(line) for line in LINES]
    options.append(
        click.option(CONFIG_FLAG, metavar="FILE", help=f"Settings file in TOML format.  [{CONFIG_VARIABLE}]")
    )
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command`, which works on a root, the flags for the users to trust with it.

    It gets them as `trust`: the fields of :class:`mq.storage.options.StorageOptions` that they set. A wrong value,
    wherever it comes from, ends the program with a line.
    """

    @wraps(command)
    def decorated(*args: Any, **given: Any) -> Any:
        try:
            settings = load_settings({name: given.pop(name) for name in _OF_TRUST}, os.environ)
        except InvalidSetting as error:
            say(f"mq: {error}", err=True)
            sys.exit(CANNOT_START)
        return command(*args, **given, trust={name: getattr(settings, name) for name in _OF_TRUST})

    flags = [option_of(line) for line in LINES if line.name in _OF_TRUST]
    return reduce(lambda wrapped, option: option(wrapped), reversed(flags), decorated)


def option_of(line: SettingLine) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flag of one line."""
    shown = f"; default: {line.shown}" if line.shown else ""
    text = f"{line.help[0].upper()}{line.help[1:]}.  [{line.variable}{shown}]"
    if line.is_switch:
        return click.option(line.flag, line.name, flag_value="true", default=None, help=text)
    return click.option(line.flag, line.name, metavar=line.kind.metavar, help=text)
