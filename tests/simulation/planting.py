"""Plants a bug in a function of mq for the time of a test, wherever that function stands by now.

A bug names a function and a piece of its code. Both are found in the syntax tree, so comments, line breaks and the file
do not matter; only the piece itself does. What a bug is and which there are: :mod:`tests.simulation.planted`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

import mq

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Named: TypeAlias = _Function | ast.ClassDef

_IGNORED: Final = {"ctx", "type_comment", "kind", "type_params"}
"""Fields of a syntax tree that say nothing of what the code does here."""


class Bug(NamedTuple):
    """A piece of the real code, and what stands there instead.

    Attributes:
        where: ``function``, ``Class.function`` or ``package.module:Class.function``. A function in a function is
            ``outer.inner``. Several functions may have the name, if `what` stands in one of them only.
        what: an expression or statements, as they stand in the function's body, once. ``...`` stands for any
            expression; as the body of an ``if``, ``with``, ``for`` or ``while`` for any statements, and an ``else``
            then stays as it is.
        instead: what replaces it. Each ``...`` puts back what stood there, in order. It may use what the function's
            module and the function itself know.
    """

    where: str
    what: str
    instead: str


class CannotPlant(Exception):
    """The bug does not fit today's code. The text says what to change in it."""


@contextlib.contextmanager
def planted(bug: Bug, package: Any = mq) -> Iterator[None]:
    """The code with the bug in it, for the length of the block: every function that is made of that code, by whatever
    name, decorator or property it is reached. Calls that have begun before go on without it.

    Raises:
        CannotPlant: the function or the piece is not there, or not once.
    """
    swaps = _swaps(bug, package)
    for function, _, changed in swaps:
        function.__code__ = changed
    try:
        yield
    finally:
        for function, original, _ in swaps:
            function.__code__ = original


# Finding the function


class _Found(NamedTuple):
    """A function in a file, and how often the piece stands in it."""

    path: Path
    tree: ast.Module
    chain: tuple[_Named, ...]  # classes and functions from the outermost to itself
    matches: list[_Match]

    @property
    def name(self) -> str:
        return ".".join(node.name for node in self.chain)

    @property
    def functions(self) -> list[_Function]:
        """From the outermost: what is made anew with each call of another has to be changed with that."""
        return [node for node in self.chain if not isinstance(node, ast.ClassDef)]


def _the_one(bug: Bug, package: Any) -> _Found:
    module, _, name = bug.where.rpartition(":")
    there = list(_functions(bug, package, name, module))
    holding = [found for found in there if found.matches]
    if len(holding) == 1 and len(holding[0].matches) == 1:
        return holding[0]
    if holding:
        places = [
            f"{_module_of(found.path, package)}:{found.name} (line {match.line})"
            for found in holding
            for match in found.matches
        ]
        raise CannotPlant(f"{bug.what!r} stands in {' and '.join(places)}: make what or where say which one is meant")
    missing = f"{bug.what!r} does not stand in {bug.where}" if there else f"no function is called {bug.where}"
    raise CannotPlant(f"{missing}. {_advice(bug, package)}")


def _advice(bug: Bug, package: Any) -> str:
    """Where the piece has gone: the innermost functions with it in them."""
    holding = [found for found in _functions(bug, package, "") if found.matches]
    innermost = [found for found in holding if not any(_is_in(found, other) for other in holding)]
    if not innermost:
        return "It stands nowhere: write the bug for today's code, or remove it with its mechanism"
    names = sorted({f"{_module_of(found.path, package)}:{found.name}" for found in innermost})
    return f"It stands in {', '.join(names[:5])}: if that is meant, name it in where"


def _is_in(outer: _Found, inner: _Found) -> bool:
    return inner.path == outer.path and inner.name.startswith(f"{outer.name}.")


def _functions(bug: Bug, package: Any, name: str, module: str = "") -> Iterator[_Found]:
    """Every function whose dotted name ends so; all of them for no name. Only of that module, if one is given."""
    wanted = name.split(".") if name else []
    pattern = _parse(bug.what)
    said = [f"def {wanted[-1]}(", *wanted[:-1]] if wanted else ["def "]
    for path, text in _sources(package).items():
        if (module and module != _module_of(path, package)) or not all(word in text for word in said):
            continue
        tree = ast.parse(text)
        for chain, function in _chains(tree, ()):
            if not wanted or [node.name for node in chain][-len(wanted) :] == wanted:
                yield _Found(path, tree, chain, list(_matches(pattern, function)))


def _chains(node: ast.AST, above: tuple[_Named, ...]) -> Iterator[tuple[tuple[_Named, ...], _Function]]:
    """Every function, with the classes and functions in which it stands and itself."""
    for child in ast.iter_child_nodes(node):
        chain = (*above, child) if isinstance(child, _Named) else above
        if isinstance(child, _Function):
            yield chain, child
        if not isinstance(child, ast.expr):  # no function stands in an expression
            yield from _chains(child, chain)


@functools.cache
def _sources(package: Any) -> dict[Path, str]:
    return {path: path.read_text() for place in package.__path__ for path in sorted(Path(place).rglob("*.py"))}


def _module_of(path: Path, package: Any) -> str:
    place = next(Path(place) for place in package.__path__ if path.is_relative_to(place))
    parts = [package.__name__, *path.relative_to(place).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Finding the piece


class _Match(NamedTuple):
    """Where the piece stands: `count` statements of a list, or one field of a node."""

    holder: Any
    key: Any
    count: int
    line: int
    kept: list[Any]  # what the wildcards stand for
    is_statement: bool = False


def _parse(text: str) -> ast.expr | list[ast.stmt]:
    body = ast.parse(textwrap.dedent(text).strip()).body
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else body


def _matches(pattern: ast.expr | list[ast.stmt], function: _Function) -> Iterator[_Match]:
    waiting: list[tuple[Any, Any, Any]] = [(function, "body", function.body)]
    while waiting:
        holder, key, value = waiting.pop()
        if isinstance(value, list):
            if not isinstance(pattern, ast.expr):
                yield from _runs(pattern, value)
            waiting += [(value, at, each) for at, each in enumerate(value)]
        elif isinstance(value, ast.AST):
            is_statement = isinstance(value, ast.Expr)
            value = value.value if isinstance(value, ast.Expr) else value
            kept: list[Any] = []
            if isinstance(pattern, ast.expr) and isinstance(value, ast.expr) and _fits(pattern, value, kept):
                yield _Match(holder, key, 1, value.lineno, kept, is_statement)
            waiting += [(value, field, each) for field, each in ast.iter_fields(value)]


def _runs(pattern: list[ast.stmt], statements: list[Any]) -> Iterator[_Match]:
    for at in range(len(statements) - len(pattern) + 1):
        kept: list[Any] = []
        run = statements[at : at + len(pattern)]
        if all(isinstance(each, ast.stmt) for each in run) and _fits(pattern, run, kept):
            yield _Match(statements, at, len(pattern), run[0].lineno, kept, is_statement=True)


def _fits(pattern: Any, value: Any, kept: list[Any]) -> bool:
    """Whether the code is that of the pattern. What wildcards stand for is added to `kept`."""
    if _is_any(pattern) and isinstance(value, ast.expr):
        kept.append(value)
        return True
    if isinstance(pattern, list):
        return len(pattern) == len(value) and all(_fits(*pair, kept) for pair in zip(pattern, value, strict=True))
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(value) and bool(pattern == value)
    return type(pattern) is type(value) and all(
        _field_fits(pattern, field, value, kept) for field in pattern._fields if field not in _IGNORED
    )


def _field_fits(pattern: ast.AST, field: str, value: ast.AST, kept: list[Any]) -> bool:
    wanted, found = getattr(pattern, field, None), getattr(value, field, None)
    if (field == "body" and _is_any_body(wanted)) or (field == "orelse" and _has_any_body(pattern)):
        kept.append(found)
        return True
    return _fits(wanted, found, kept)


def _is_any(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_any_body(body: Any) -> bool:
    return isinstance(body, list) and len(body) == 1 and isinstance(body[0], ast.Expr) and _is_any(body[0].value)


def _has_any_body(node: ast.AST) -> bool:
    """Whether it is a statement of which only the head is given."""
    return _is_any_body(getattr(node, "body", None)) and getattr(node, "orelse", None) == []


# Changing it


class _Filled(ast.NodeTransformer):
    """Puts back what the wildcards stood for."""

    def __init__(self, bug: Bug, kept: Iterable[Any]) -> None:
        self._bug = bug
        self._kept = deque(kept)

    def _next(self) -> Any:
        if not self._kept:
            raise CannotPlant(f"{self._bug.instead!r} has more ... than {self._bug.what!r}")
        return self._kept.popleft()

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self._next() if _is_any(node) else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if not _is_any(node.value):
            return self.generic_visit(node)
        back = self._next()
        return back if isinstance(back, list) else ast.Expr(back)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_head = _has_any_body(node)
        filled = super().generic_visit(node)
        if is_head:
            filled.orelse = self._kept.popleft() if self._kept else []  # type: ignore[attr-defined]
        return filled


def _replace(bug: Bug, match: _Match) -> None:
    new = _Filled(bug, match.kept).visit(ast.parse(textwrap.dedent(bug.instead).strip())).body
    for each in (each for node in new for each in ast.walk(node)):
        each.lineno = each.end_lineno = match.line
        each.col_offset = each.end_col_offset = 0
    if match.is_statement:
        match.holder[match.key : match.key + match.count] = new or [ast.Pass()]
    elif len(new) == 1 and isinstance(new[0], ast.Expr):
        _put(match.holder, match.key, new[0].value)
    else:
        raise CannotPlant(f"{bug.what!r} is part of an expression: {bug.instead!r} has to be one, too")


def _put(holder: Any, key: Any, node: ast.AST) -> None:
    if isinstance(holder, list):
        holder[key] = node
    else:
        setattr(holder, key, node)


# Swapping the code


def _swaps(bug: Bug, package: Any) -> list[tuple[FunctionType, CodeType, CodeType]]:
    """Every function that is made of the code, with that code as it is and as it is to be."""
    found = _the_one(bug, package)
    module = importlib.import_module(_module_of(found.path, package))
    lines = [_first_line(function) for function in found.functions]
    before = _code(found.tree, module, lines)
    _replace(bug, found.matches[0])
    ast.fix_missing_locations(found.functions[-1])
    after = _code(found.tree, module, lines)
    lost = set(before[-1].co_freevars) - set(after[-1].co_freevars)
    if lost:  # what the code takes from around it must stay the same
        found.functions[-1].body.append(ast.fix_missing_locations(_never_run(sorted(lost))))
        after = _code(found.tree, module, lines)
    if before[-1].co_freevars != after[-1].co_freevars:
        raise CannotPlant(f"{bug.instead!r} uses names of around {bug.where} that this does not use today")
    changes = {_mark(old): (old, new) for old, new in zip(before, after, strict=True)}
    live = _live_functions(package, nested=len(found.functions) > 1)
    swaps = [(each, *changes[_mark(each.__code__)]) for each in live if _mark(each.__code__) in changes]
    if not swaps or any(function.__code__ != old for function, old, _ in swaps):
        raise CannotPlant(
            f"{found.name} does not run as it stands in {found.path}: it is compiled, "
            "was edited since it was imported, or has another bug in it"
        )
    return [(function, function.__code__, new) for function, _, new in swaps]


def _live_functions(package: Any, *, nested: bool) -> list[FunctionType]:
    """All of the package's, and perhaps others. Those that calls make, with each call anew, are looked for each time:
    that takes as long as there are objects."""
    loaded = [each for name, each in list(sys.modules.items()) if f"{name}.".startswith(f"{package.__name__}.")]
    return _all_functions() if nested else _defined(tuple(loaded))


@functools.lru_cache(maxsize=1)
def _defined(loaded: tuple[ModuleType, ...]) -> list[FunctionType]:
    """What was there when these modules had been imported."""
    folders = tuple({str(Path(str(module.__file__)).parent) for module in loaded if module.__file__})
    return [each for each in _all_functions() if each.__code__.co_filename.startswith(folders)]


def _all_functions() -> list[FunctionType]:
    gc.unfreeze()  # as pytest's conftest left them: frozen objects are not listed
    try:
        return [each for each in gc.get_objects() if type(each) is FunctionType]
    finally:
        gc.freeze()


def _mark(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _first_line(function: _Function) -> int:
    return min(node.lineno for node in (function, *function.decorator_list))


def _never_run(names: list[str]) -> ast.stmt:
    return ast.parse(f"if False: {', '.join(names)}").body[0]


def _code(tree: ast.Module, module: ModuleType, lines: list[int]) -> list[CodeType]:
    """The code of the functions that begin at these lines, each in the one before."""
    code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
    codes = []
    for line in lines:
        code = next(each for each in _codes_in(code) if each.co_firstlineno == line and "<" not in each.co_name)
        codes.append(code)
    return codes


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """What is made in it, and in the classes in it."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes_in(each)
