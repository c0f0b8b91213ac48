"""Print texts that users read, drawn at random, to check that they are natural English.

``python tools/sample_texts.py SEED`` prints 20 help texts, 20 error texts and log lines, 20 labels (console, metrics,
alerts, dashboard) and all paragraphs of the README, each with a number and its position in the code. The same seed
draws the same texts from the same tree. ``--all CLASS`` prints every text of one class instead.

A format field is shown by its expression: ``queue {name} does not exist``.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import click
import yaml

TREE: Final = Path(__file__).resolve().parent.parent
if str(TREE) not in sys.path:
    sys.path.insert(0, str(TREE))  # for `tools.pages`: the program runs from any folder

from tools.pages import metric_families  # noqa: E402 - needs the line above

DRAWN: Final = 20
"""Texts of each class in a sample."""


class Text(NamedTuple):
    """A text that users read.

    Attributes:
        place: file and line, or the command and its option.
        words: the text.
    """

    place: str
    words: str


# Help texts: the command line's own definitions


def help_texts() -> Iterator[Text]:
    """Help of every command, argument and option of every program of mq and its plugins."""
    for project in (TREE / "pyproject.toml", *sorted(TREE.glob("plugins/*/pyproject.toml"))):
        scripts = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("scripts", {})
        for program, target in sorted(scripts.items()):
            module, _, name = target.partition(":")
            command = getattr(import_module(module), name)
            yield from _help_of(click.Context(command, info_name=program))


def _help_of(context: click.Context) -> Iterator[Text]:
    command = context.command
    yield Text(context.command_path, _one_line(command.help or ""))
    if command.short_help:
        yield Text(f"{context.command_path} (short)", _one_line(command.short_help))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and "--help" not in parameter.opts:
            yield Text(context.command_path, f"{record[0]}: {_one_line(record[1])}")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _help_of(click.Context(child, info_name=name, parent=context))


_SHOWING: Final = {
    *("_cause", "_first_line", "_listed", "_lower", "_reason", "_shown", "ascii", "connection_reason", "explain"),
    *("format_filename", "in_one_line", "shorten", "shown_store", "sorted", "str", "time_text"),
}
"""Functions that show their first argument to users."""


# Error texts and log lines: string arguments of exceptions, of loggers and of functions that print


_LOG_METHODS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_PRINTING: Final = {"say", "_say", "warn", "_warn", "FewLines", "Refusals"}
"""`mq.cli.terminal.say` prints a line, `warnings.warn` warns the callers of a library; the classes write log lines."""
_FOREIGN_ERRORS: Final = {
    *("ClickException", "UsageError", "BadParameter", "BadArgumentUsage", "BadOptionUsage"),
    *("Exception", "OSError", "RuntimeError", "TypeError", "ValueError"),
}
"""Exceptions of click and of Python that mq raises itself; classes derived from them are found in the code."""
_NOT_FOR_USERS: Final = {"testing", "tests"}
"""Folders of packages whose texts only developers read."""


def message_texts(tree: Path = TREE) -> Iterator[Text]:
    """Error texts, log lines and printed lines of mq and its plugins in `tree`."""
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _modules(tree)}
    nodes = [node for module in modules.values() for node in ast.walk(module)]
    errors = _error_classes(nodes)
    callees = _PRINTING | errors | _error_functions(nodes, errors | {"NoReturn"})
    for path, module in modules.items():
        constants = _string_constants(module)
        for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
            if _name(call.func) in callees or _is_logging(call.func):
                for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                    for words in filter(_is_sentence, _strings(argument, constants)):
                        yield Text(f"{path.relative_to(tree)}:{call.lineno}", _one_line(words))


def _modules(tree: Path) -> Iterator[Path]:
    for package in (tree / "mq", tree / "pyspark_mq", *sorted(tree.glob("plugins/*/mq_*"))):
        for path in sorted(package.rglob("*.py")):
            if not _NOT_FOR_USERS.intersection(path.relative_to(package).parts):
                yield path


def _error_classes(nodes: Sequence[ast.AST]) -> set[str]:
    """Names of exception classes: foreign ones, and those of the tree that derive from another exception class."""
    bases: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases.setdefault(node.name, set()).update(map(_name, node.bases))  # two classes may have the same name
    errors = set(_FOREIGN_ERRORS)
    while more := {name for name, parents in bases.items() if parents & errors} - errors:
        errors |= more
    return errors


def _error_functions(nodes: Sequence[ast.AST], types: set[str]) -> set[str]:
    """Names of functions that are annotated to return one of `types`, such as ``_malformed() -> Refusal``."""
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions if node.returns is not None and _name(node.returns) in types}


def _name(node: ast.expr) -> str:
    """Name of a function or class, without its module or object."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_logging(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _LOG_METHODS
        and "log" in ast.unparse(function.value).lower()
    )


def _string_constants(module: ast.Module) -> dict[str, list[ast.expr]]:
    """Texts that are assigned to each name anywhere in the module."""
    constants: dict[str, list[ast.expr]] = {}
    for node in ast.walk(module):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant | ast.JoinedStr | ast.BinOp):
            for target in targets:
                if isinstance(target, ast.Name):
                    constants.setdefault(target.id, []).append(value)
    return constants


def _strings(node: ast.expr, constants: Mapping[str, Sequence[ast.expr]]) -> Iterator[str]:
    """Texts that an expression may yield, with fields as {expression}."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(_piece(value) for value in values)
        case ast.Name(id=name) if name in constants:
            for value in constants[name]:
                yield from _strings(value, {})
        case ast.IfExp(body=body, orelse=orelse):
            yield from _strings(body, constants)
            yield from _strings(orelse, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            lefts = list(_strings(left, constants)) or [_field(left)]
            rights = list(_strings(right, constants)) or [_field(right)]
            yield from (before + after for before in lefts for after in rights)
        case ast.BinOp(left=left, op=ast.Mod()):
            yield from _strings(left, constants)


def _piece(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else _field(node)


def _field(node: ast.expr) -> str:
    return "{" + _shown(node.value if isinstance(node, ast.FormattedValue) else node) + "}"


def _shown(node: ast.expr) -> str:
    """An expression without what does not matter to a reader: functions that escape or join, and the private mark."""
    match node:
        case ast.Call(func=ast.Attribute(attr="join"), args=[joined]):
            return _shown(joined)
        case ast.Call(func=ast.Name(id="map"), args=[_, mapped]):
            return _shown(mapped)
        case ast.Call(args=[shown, *_]) if _name(node.func) in _SHOWING:
            return _shown(shown)
        case ast.Attribute(value=ast.Attribute(attr=owner), attr=name):
            return f"{owner.lstrip('_')}.{name}"
        case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name):
            return name.lstrip("_")
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
    return ast.unparse(node)


_FIELD: Final = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def _is_sentence(words: str) -> bool:
    """True for text with several words of its own: one of fields alone, such as "{path}: {error}", says nothing."""
    words = _FIELD.sub("X", words)
    is_sql = re.match(r"[A-Z]{6} ", words) is not None
    return re.search(r"[a-z]{2}.* .*[a-z]{2}", words, re.DOTALL) is not None and not is_sql


# Labels: the web console, metrics, alerts, the dashboard


def label_texts() -> Iterator[Text]:
    """Labels of the web console, help of the metrics, texts of the alert rules and of the dashboard."""
    yield from _console_texts()
    for family in metric_families():
        yield Text(f"metric {family.name}", family.documentation)
    yield from _alert_texts()
    yield from _dashboard_texts()


_JS: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<context>[\w.]*[ :(=]*)(?P<quoted>"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)""", re.DOTALL
)
_NOT_SHOWN: Final = re.compile(r"(class|import|from|querySelector(All)?|sandbox|content|rel)[ :(=]*\Z")
"""What stands before a string that a browser reads, and not a user: classes, modules, selectors."""


def _console_texts() -> Iterator[Text]:
    for path in sorted((TREE / "mq/web/page").glob("*.js")):
        source = path.read_text(encoding="utf-8")
        for found in _JS.finditer(source):
            quoted = found["quoted"]
            if quoted is not None and not _NOT_SHOWN.search(found["context"]) and _is_label(quoted[1:-1]):
                line = source.count("\n", 0, found.start("quoted")) + 1
                words = quoted[1:-1].replace("${", "{").replace('\\"', '"')
                yield Text(f"{path.relative_to(TREE)}:{line}", _one_line(words))


def _is_label(words: str) -> bool:
    """True for a capitalized word or several words, and false for the names that code uses, such as Content-Type."""
    if re.search(r"https?:|[<>#]|=\"|^\.|/-/|^-/|^[A-Z][a-z]+-[A-Z]", words):
        return False
    plain = re.sub(r"\$\{[^}]*\}", "x", words)
    return (
        re.match(r"[A-Z][a-z]+", plain) is not None or re.search(r"[a-z]{2,} [a-z]|[a-z] [a-z]{2,}", plain) is not None
    )


def _alert_texts() -> Iterator[Text]:
    path = TREE / "deploy/prometheus/alerts.yml"
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            for words in rule["annotations"].values():
                yield Text(f"{path.relative_to(TREE)}: {rule['alert']}", _one_line(words))


def _dashboard_texts() -> Iterator[Text]:
    path = TREE / "deploy/grafana/mq.json"
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        for key in ("title", "description"):
            if panel.get(key):
                yield Text(f"{path.relative_to(TREE)}: panel {panel['id']}", _one_line(panel[key]))


# The README


def readme_texts() -> Iterator[Text]:
    """Paragraphs, list items and table rows of the README."""
    path = TREE / "README.md"
    source = re.sub(
        r"```.*?```", lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for found in re.finditer(
        r"(?:^(?:[^\n|*#]|\*\*)[^\n]*\n?)+|^\*[^\n]*\n(?:  [^\n]*\n)*|^\|[^\n]*\n", source, re.MULTILINE
    ):
        words = _one_line(found[0])
        if re.search(r"[a-z]", words):
            yield Text(f"README.md:{source.count(chr(10), 0, found.start()) + 1}", words)


def _one_line(words: str) -> str:
    return " ".join(words.replace("\b", " ").split())


CLASSES: Final[Mapping[str, Callable[[], Iterator[Text]]]] = {
    "help": help_texts,
    "messages": message_texts,
    "labels": label_texts,
    "readme": readme_texts,
}
"""Class of texts -> its texts. The README is not sampled: all of it is printed."""


@cache
def texts_of(kind: str) -> Sequence[Text]:
    """Every text of a class, each once, in the order of the code."""
    texts: dict[str, Text] = {}
    for text in CLASSES[kind]():
        texts.setdefault(text.words, text)
    return tuple(text for text in texts.values() if text.words)


def sample(seed: int) -> dict[str, Sequence[Text]]:
    """Texts by class: :data:`DRAWN` of each at random, and the whole README."""
    chance = random.Random(seed)
    drawn = {kind: texts_of(kind) for kind in CLASSES}
    return {kind: texts if kind == "readme" else chance.sample(texts, DRAWN) for kind, texts in drawn.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print texts that users read, drawn at random.")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="seed of the draw; default 0")
    parser.add_argument("--all", choices=tuple(CLASSES), help="print every text of this class, without a draw")
    options = parser.parse_args()
    drawn = {options.all: texts_of(options.all)} if options.all else sample(options.seed)
    number = 0
    for kind, texts in drawn.items():
        print(f"== {kind}")
        for text in texts:
            number += 1
            print(f"{number}. {text.words}\n     [{text.place}]")


if __name__ == "__main__":
    main()
