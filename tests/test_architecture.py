"""Who may import what, and the habits that no linter knows. The tables are the house's plan."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TREE = Path(__file__).resolve().parent.parent

IN_VAIN: Final = re.compile(r"usefixtures\([^)]*_clock\b")

DOMAIN: Final = ("mq.errors", "mq.message", "mq.lifecycle", "mq.quantities")
TURNS: Final = "mq.turns"
THREADS: Final = "mq.threads"
"""Both of the domain's level, but with an event loop."""

MAY_IMPORT: Final[dict[str, tuple[str, ...]]] = {
    "mq": ("mq.errors", "mq.message"),
    "mq.errors": (),
    "mq.message": ("mq.errors",),
    "mq.lifecycle": ("mq.message",),
    "mq.log_lines": (),
    "mq.quantities": (),
    "mq.threads": (),
    "mq.turns": (),
    "mq.access": (*DOMAIN, "mq.access"),
    "mq.vsqs": (*DOMAIN, "mq.vsqs", "mq.storage.files.calls", "mq.storage.files.mount"),
    "mq.spark": (
        *DOMAIN,
        "mq.spark",
        *(f"mq.client.{pure}" for pure in ("calls", "codec", "errors", "requests", "retries", "values")),
    ),
    "mq.spark.pipelines": (*DOMAIN, "mq.spark", "mq.observers.journal_rows", "mq.observers.journal_segments"),
    "mq.storage": (
        *DOMAIN,
        TURNS,
        *(
            f"mq.storage.{waist}"
            for waist in (
                "checks",
                "confirmed",
                "groups",
                "interface",
                "memory",
                "options",
                "outcomes",
                "records",
                "registry",
            )
        ),
    ),
    "mq.storage.interface": DOMAIN,
    "mq.storage.files": (
        *DOMAIN,
        TURNS,
        THREADS,
        "mq.storage.files",
        *(f"mq.storage.{waist}" for waist in ("interface", "options", "outcomes")),
    ),
    "mq.broker": (
        *DOMAIN,
        TURNS,
        THREADS,
        "mq.broker",
        *(f"mq.storage.{waist}" for waist in ("interface", "outcomes", "groups", "records")),
    ),
    "mq.broker.lifetime": (*DOMAIN, TURNS, "mq.broker", "mq.storage.interface", "mq.storage.registry"),
    "mq.schedules": (*DOMAIN, TURNS, "mq.schedules", "mq.broker"),
    "mq.observers": (*DOMAIN, TURNS, THREADS, "mq.observers"),
    "mq.testing": (),
    "mq.doors": (*DOMAIN, TURNS, "mq.doors", "mq.access", "mq.log_lines"),
    "mq.web": (
        *DOMAIN,
        TURNS,
        "mq.web",
        "mq.doors",
        "mq.observers",
        "mq.access",
        "mq.broker",
        "mq.log_lines",
        "mq.schedules",
    ),
    "mq.sqs": (
        *DOMAIN,
        TURNS,
        "mq.sqs",
        "mq.doors",
        "mq.access",
        "mq.broker",
        *(f"mq.web.{part}" for part in ("exchange", "http_connection", "refusals", "replies", "request_body")),
    ),
    "mq.amqp": (),
    "mq.amqp.wire": (*DOMAIN, "mq.amqp.wire"),
    "mq.amqp.model": (*DOMAIN, "mq.amqp.wire", "mq.amqp.model"),
    "mq.amqp.protocol": (
        *DOMAIN,
        *(f"mq.amqp.{room}" for room in ("wire", "model", "protocol")),
        "mq.doors.budget",
        "mq.access",
    ),
    "mq.amqp.server": (*DOMAIN, TURNS, "mq.amqp", "mq.doors", "mq.access", "mq.broker"),
    "mq.cluster": (
        *DOMAIN,
        TURNS,
        "mq.cluster",
        "mq.broker",
        "mq.storage.interface",
        "mq.storage.records",
        "mq.client",
        "mq.amqp.wire",
        "mq.amqp.model",
    ),
    "mq.client": (*DOMAIN, "mq.client"),
    "mq.client.amqp": (
        *DOMAIN,
        "mq.client",
        "mq.amqp.wire",
    ),
    "mq.settings": (*DOMAIN, "mq.log_lines"),
    "mq.cli": ("mq",),
    "mq.__main__": ("mq.cli",),
}
"""Module or package -> what of mq it may import. The longest entry that fits a module counts."""

TRIO_FREE: Final = (
    *DOMAIN,
    "mq",
    "mq.access",
    "mq.access.aws_keys",
    "mq.access.user_directory",
    "mq.access.certificates",
    "mq.access.users_editor",
    "mq.access.guesses",
    "mq.access.hashes",
    "mq.access.rights",
    "mq.access.users_file",
    "mq.amqp",
    "mq.amqp.wire",
    *(f"mq.amqp.wire.{part}" for part in ("errors", "frames", "properties", "tables")),
    "mq.amqp.model",
    *(f"mq.amqp.model.{part}" for part in ("arguments", "declared", "names", "routing", "topology", "vhost")),
    "mq.amqp.protocol",
    *(f"mq.amqp.protocol.{part}" for part in ("channel", "commands", "connection", "declare_methods", "deliveries")),
    *(f"mq.amqp.protocol.{part}" for part in ("login", "publishes", "session")),
    "mq.client",
    *(f"mq.client.{part}" for part in ("async_client", "calls", "codec", "errors", "leases", "requests")),
    *(f"mq.client.{part}" for part in ("retries", "spans", "sync_client", "values")),
    *(f"mq.client.{part}" for part in ("transport", "webhook")),
    "mq.client.amqp",
    *(
        f"mq.client.amqp.{part}"
        for part in ("channels", "client", "connection", "errors", "link", "protocol", "values")
    ),
    "mq.vsqs",
    *(f"mq.vsqs.{part}" for part in ("file_names", "publisher", "receiver", "system", "view")),
    "mq.spark",
    *(
        f"mq.spark.{part}"
        for part in ("calls", "connection", "errors", "filters", "options", "progress", "rows", "source")
    ),
    *(f"mq.spark.{part}" for part in ("stream", "versions", "writers")),
    *(f"mq.spark.pipelines.{part}" for part in ("archive", "audit", "depth", "insight", "plots")),
    *(f"mq.spark.pipelines.{part}" for part in ("journal", "replay", "report", "session")),
    "mq.storage.files.calls",
    "mq.storage.files.folders",
    "mq.storage.interface",
    "mq.storage.files.layout",
)
"""Modules that somebody without an event loop imports."""

ONLY_IN: Final[dict[str, tuple[str, ...]]] = {
    "anyio": ("mq.client",),
    "click": ("mq.cli",),
    "cronsim": ("mq.schedules.schedule",),
    "httpx": ("mq.client",),
    "hypercorn": ("mq.web",),
    "inotify_simple": ("mq.storage",),
    "opentelemetry": ("mq.client.spans",),
    "pamqp": ("mq.amqp", "mq.client.amqp", "mq.cluster.peer_link"),
    "pyarrow": ("mq.observers", "mq.spark"),
    "pyspark": ("mq.spark",),
    "pyfakefs": ("mq.storage.files.fake",),
    "python_multipart": ("mq.web",),
    "quart": ("mq.web",),
    "quart_trio": ("mq.web",),
    "tomlkit": ("mq.access.users_editor",),
    "tqdm": ("mq.cli",),
    "werkzeug": ("mq.web",),
}
"""Package from outside -> the rooms that may know of it."""

SURVIVES_EVERYTHING: Final[dict[str, str]] = {
    "mq.client.amqp.connection": "the error of the block around a connection is raised again once its tasks have ended",
    "mq.amqp.server.publishes": "as in mq.amqp.server.client_connection",
    "mq.amqp.server.client_connection": "a completion that raises ends its own connection, and not the save worker",
    "mq.amqp.server.served_connection": "as in mq.amqp.server.client_connection",
    "mq.broker.lifetime": "the error of the block around a broker is raised again once the broker's tasks have ended",
    "mq.web.fast_http1": "an endpoint's bug is answered with 500, as Quart does; the broker fails in its own nursery",
    "mq.web.serve": "a client that finds a new bug in Hypercorn's protocol code ends its own connection and no other",
    "mq.storage.files.hop": "what is raised in the thread is raised again in the task that asked for it",
    "mq.threads": "what ends a thread ends the process: it is raised in the tasks that watch",
}
"""Module -> why it may catch every exception and go on. Elsewhere such a handler must raise again."""


ENGINES: Final = ("mq.storage.files.logged", "mq.storage.files.stepwise")
"""The two file engines. Neither knows the other."""

KNOW_ENGINES: Final[dict[str, str]] = {
    "mq.storage.files.backup": "it reads the log of a root, to save what is only there",
    "mq.storage.files.doctor": "it reads the log of a root, and knows a peer's file by its name",
    "mq.storage.files.opening": "it makes the engine of a root",
    "mq.storage.files.posix": "it notes this process's changes for the engine that watches others'",
    "mq.storage.files.start": "it does again what the log of a root says, whichever engine goes on",
}
"""Module of ``mq/storage/files`` outside the engines -> why it may import one. All others are shared by both."""


NAMED_TWICE: Final[dict[str, str]] = {
    "Conflict": "an error of the daemon, and what a client raises when it is told of it",
    "Declared": "the answer to a declaration over AMQP, in the client; all that is declared, among the doors",
    "Message": "the domain's, and that of VSQS, which stands by itself",
    "Outcome": "of one entry of a batch, in the client; of one operation, in a store",
    "Published": "the broker's answer, and the client's",
    "Queue": "of AMQP's model, of the client, and of VSQS",
    "QueueFull": "an error of the daemon, of the client, and of VSQS",
    "QueueSettings": "the broker's, which checks them, and the client's, which shows them",
    "Redriven": "the broker's answer, and the client's",
    "Refused": "the root of what a client is refused; a record of the log",
}
"""Name of a class that two modules define -> why. They are never met in one file."""

MANY_ARGUMENTS: Final[dict[str, str]] = {
    "Endpoints": "what a door has and what it may show, each of which a test may leave out",
    "FolderStorage": "a plugin's author replaces clock, calls, mount and randomness one by one",
    "Log": "the medium, its measures, and what is done when it fails",
    "QueueIndex": "what the queue's record has, each at its default in tests",
    "SqsDoor": "what a door has, each of which a test may leave out",
}
"""Class whose constructor takes more than seven -> why."""


def fits(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def rule(module: str) -> str:
    """The longest entry of MAY_IMPORT that fits. The entry `mq` stands for the package's own file alone."""
    if module == "mq":
        return module
    found = [prefix for prefix in MAY_IMPORT if prefix != "mq" and belongs(module, prefix)]
    return max(found, key=len, default="nothing")


def belongs(module: str, prefix: str) -> bool:
    return fits(module, prefix)


@functools.cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((TREE / "mq").rglob("*.py")):
        parts = path.relative_to(TREE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


@functools.cache
def imported(module: str) -> tuple[str, ...]:
    """Every module that `module` imports; `from mq.a import b` is mq.a.b where that is a module."""
    return tuple(imports_in(tree(module), module))


def imports_in(parsed: ast.Module, module: str) -> Iterator[str]:
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else str(node.module)


def test_every_module_has_a_line_in_the_table_of_imports() -> None:
    assert [module for module in modules() if rule(module) not in MAY_IMPORT] == []


def test_imports_run_one_way() -> None:
    pairs = [(module, name) for module in modules() for name in imported(module) if fits(name, "mq") and name != module]
    allowed = {module: MAY_IMPORT.get(rule(module), ()) for module in modules()}
    assert [
        f"{module} imports {name}"
        for module, name in pairs
        if not any(belongs(name, prefix) for prefix in allowed[module])
    ] == []


def engine_of(module: str) -> str:
    """The file engine that a module is a part of; empty for any other module."""
    return next((engine for engine in ENGINES if belongs(module, engine)), "")


def test_the_file_engines_do_not_know_each_other() -> None:
    assert {engine_of(module) for module in modules()} == {"", *ENGINES}
    assert [
        f"{module} imports {name}"
        for module in modules()
        for name in imported(module)
        if engine_of(module) and engine_of(name) not in ("", engine_of(module))
    ] == []


def test_what_the_file_engines_share_knows_neither() -> None:
    assert set(KNOW_ENGINES) <= set(modules()), "no such module"
    assert {
        module
        for module in modules()
        if belongs(module, "mq.storage.files") and not engine_of(module)
        for name in imported(module)
        if engine_of(name)
    } == set(KNOW_ENGINES)


def test_no_modules_import_each_other() -> None:
    """There is an order in which each module comes after all that it imports. CycleError names a circle."""
    graph = {module: set(imported(module)) & modules().keys() - {module} for module in modules()}
    graphlib.TopologicalSorter(graph).prepare()


def test_third_party_packages_stay_in_their_packages() -> None:
    offenders = []
    for module in modules():
        for name in imported(module):
            packages = ONLY_IN.get(name.partition(".")[0], ("mq",))
            if not any(belongs(module, package) for package in packages):
                offenders.append(f"{module} imports {name}")
    assert offenders == []


def test_modules_without_an_event_loop_do_not_import_trio() -> None:
    assert sorted(set(TRIO_FREE) - set(modules())) == [], "no such module"
    loops = ("trio", "trio_util")
    assert [module for module in TRIO_FREE if any(name.partition(".")[0] in loops for name in imported(module))] == []


def loaded_by(statement: str) -> list[str]:
    """Every module that an interpreter loads for it."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_mq_and_vsqs_load_nothing_but_the_standard_library() -> None:
    foreign = {name.partition(".")[0] for name in loaded_by("import mq, mq.vsqs")} - set(sys.stdlib_module_names)
    assert foreign == {"mq"}


def test_import_mq_loads_three_modules_of_mq() -> None:
    loaded = loaded_by("import mq")
    assert {name for name in loaded if fits(name, "mq")} == {"mq", "mq.errors", "mq.message"}


def test_the_spark_source_loads_no_event_loop() -> None:
    pytest.importorskip("pyspark")
    loaded = loaded_by("import pyspark_mq, mq.spark")
    assert "mq.spark.stream" in loaded
    assert not [name for name in loaded if name.partition(".")[0] in ("trio", "httpx", "quart")]


def test_clients_load_no_server() -> None:
    loaded = loaded_by("import mq.client, mq.client.sync_client, mq.client.async_client, mq.client.amqp")
    rooms = (
        "mq.broker",
        "mq.storage",
        "mq.web",
        "mq.access",
        "mq.settings",
        "mq.amqp.model",
        "mq.amqp.protocol",
        "mq.amqp.server",
        "quart",
        "hypercorn",
    )
    assert not [name for name in loaded if any(fits(name, room) for room in rooms)]


def test_no_import_inside_a_function() -> None:
    offenders = []
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = [each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)]
                offenders += [f"{module}, line {each.lineno}" for each in inside]
    assert offenders == []


def test_handlers_that_catch_every_exception_raise_again() -> None:
    assert set(SURVIVES_EVERYTHING) <= set(modules()), "no such module"
    offenders = []
    for module in modules().keys() - SURVIVES_EVERYTHING.keys():
        for node in ast.walk(tree(module)):
            catches = isinstance(node, ast.ExceptHandler) and catches_everything(node)
            if catches and not isinstance(node.body[-1], ast.Raise):
                offenders.append(f"{module}, line {node.lineno}")
    assert offenders == []


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in caught
    )


def test_every_module_has_a_docstring() -> None:
    assert [module for module in modules() if not ast.get_docstring(tree(module))] == []


def test_the_docstring_of_a_package_names_every_file() -> None:
    offenders = []
    for module in modules():
        package, _, name = module.rpartition(".")
        if package and f"``{name}``" not in (ast.get_docstring(tree(package)) or ""):
            offenders.append(module)
    assert offenders == []


def test_the_docstring_of_the_benchmarks_names_every_file() -> None:
    folder = TREE / "benchmarks"
    listed = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
    assert files
    assert [name for name in files if f":mod:`.{name}`" not in listed] == []


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class, with its module."""
    for module in modules():
        yield from ((module, node) for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef))


def test_a_name_is_one_class_or_has_a_reason() -> None:
    """What begins with an underscore is met in its own file alone."""
    rooms: dict[str, list[str]] = {}
    for module, node in classes():
        if not node.name.startswith("_"):
            rooms.setdefault(node.name, []).append(module)
    assert {name for name, found in rooms.items() if len(found) > 1} == set(NAMED_TWICE)


def test_a_constructor_has_few_arguments_or_a_reason() -> None:
    many = set()
    for _, node in classes():
        for made in node.body:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                arguments = (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs)
                many |= {node.name} if len(arguments) - 1 > 7 else set()
    assert many == set(MANY_ARGUMENTS)


def test_no_test_asks_for_a_clock_that_it_does_not_get() -> None:
    """pytest-trio takes a clock from a test's own arguments alone: by ``usefixtures`` it would go by real time."""
    files = [path for folder in ("tests", "plugins") for path in (TREE / folder).rglob("test_*.py")]
    in_vain = [str(path.relative_to(TREE)) for path in files if IN_VAIN.search(path.read_text())]
    assert files
    assert in_vain == []
