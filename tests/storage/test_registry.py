"""From an address to an open store, and the one line that says why not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

import mq.storage.files
from mq.errors import StorageUnusable
from mq.storage import registry
from mq.storage.interface import Description, Sharing, Storage
from mq.storage.memory import MemoryStorage
from mq.storage.options import StorageOptions
from mq.storage.registry import open_storage

Register = Callable[..., None]


class Noted(MemoryStorage):
    """A memory store that notes what was done to it."""

    def __init__(self, rest: str = "", options: StorageOptions | None = None) -> None:
        super().__init__()
        self.asked = (rest, options)
        self.done: list[str] = []
        latest.append(self)

    async def open(self) -> None:
        self.done.append("open")

    async def aclose(self) -> None:
        self.done.append("aclose")


class NeverOpens(Noted):
    async def open(self) -> None:
        self.done.append("open")
        raise StorageUnusable("no such place. Make one")


class DescribedOnceOpen(Noted):
    """Allowed: the description is complete once the store is open, and not a moment before."""

    @property
    def description(self) -> Description:
        if not self.done:
            raise AttributeError("not open")
        return super().description


latest: list[Noted] = []
not_a_function = 5


def make_text(rest: str, options: StorageOptions) -> str:
    return rest


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    latest.clear()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Makes (name, object in this file, package) the only entry points there are."""

    def replace(*backends: tuple[str, str, str]) -> None:
        found = []
        for name, target, package in backends:
            value = target if ":" in target else f"{__name__}:{target}"
            found.append(EntryPoint(name, value, "mq.storage"))
            vars(found[-1])["dist"] = SimpleNamespace(name=package)
        monkeypatch.setattr(registry, "registered", lambda: EntryPoints(found).select(group=registry.GROUP))

    return replace


async def refusal(address: str) -> str:
    with pytest.raises(StorageUnusable) as raised:
        async with open_storage(address):
            pytest.fail("it opened")
    text = str(raised.value)
    assert "\n" not in text
    return text


async def test_finds_what_mq_registers() -> None:
    async with open_storage("memory:") as storage:
        assert isinstance(storage, MemoryStorage)


async def test_hands_over_the_rest_and_the_options(register: Register) -> None:
    register(("noted", "Noted", "noted"))
    async with open_storage("noted:a:b/c", sharing=Sharing.PEERS, native=False):
        pass
    assert latest[0].asked == ("a:b/c", StorageOptions(sharing=Sharing.PEERS, native=False))


async def test_opens_and_closes(register: Register) -> None:
    register(("noted", "Noted", "noted"))
    async with open_storage("noted:") as storage:
        assert storage is latest[0]
        assert latest[0].done == ["open"]
    assert latest[0].done == ["open", "aclose"]


async def test_closes_after_an_error_in_the_block(register: Register) -> None:
    register(("noted", "Noted", "noted"))
    with pytest.raises(ZeroDivisionError):
        async with open_storage("noted:"):
            raise ZeroDivisionError
    assert latest[0].done == ["open", "aclose"]


async def test_closes_what_did_not_open(register: Register) -> None:
    register(("noted", "NeverOpens", "noted"))
    assert await refusal("noted:") == "no such place. Make one"
    assert latest[0].done == ["open", "aclose"]


async def test_looks_at_no_description_before_open(register: Register) -> None:
    register(("noted", "DescribedOnceOpen", "noted"))
    async with open_storage("noted:") as storage:
        assert storage.description.name == "memory:"


async def test_wants_a_colon() -> None:
    assert await refusal("posix") == ('invalid storage address: "posix". Use NAME:ADDRESS, such as posix:/var/lib/mq')


@pytest.mark.parametrize("address", ["", ":", ":/var/lib/mq", "POSIX:/x", "nosuch:x", "a\nb:x", "x" * 500 + ":"])
async def test_refuses_unknown_backends(address: str) -> None:
    text = await refusal(address)
    assert len(text) < 200
    if ":" in address:
        known = text.rpartition("Known: ")[2].split(", ")
        assert {"fake", "layered", "memory", "posix"} <= set(known)


async def test_says_that_mq_is_not_installed(register: Register) -> None:
    register()
    assert "install mq" in await refusal("posix:/x")


@pytest.mark.parametrize("target", ["no_such_module_at_all:make", "mq.storage.memory:no_such_function"])
async def test_names_the_package_that_cannot_be_loaded(register: Register, target: str) -> None:
    register(("broken", target, "mq-broken"))
    text = await refusal("broken:x")
    assert text.startswith('storage backend "broken" of package mq-broken cannot be loaded: ')
    assert "no_such" in text


async def test_names_the_package_without_a_function(register: Register) -> None:
    register(("broken", "not_a_function", "mq-broken"))
    assert 'storage backend "broken" of package mq-broken is not a function' in await refusal("broken:x")


async def test_names_the_package_that_makes_no_store(register: Register) -> None:
    register(("broken", "make_text", "mq-broken"))
    text = await refusal("broken:x")
    assert text.startswith(
        'storage backend "broken" of package mq-broken did not return a store: it returned an object of '
        "type str, which does not have "
    )
    assert "commit" in text


async def test_refuses_two_packages_with_one_name(register: Register) -> None:
    register(("posix", "Noted", "mq"), ("posix", "Noted", "mq-other"))
    text = await refusal("posix:/x")
    assert text == (
        'several packages provide the storage backend "posix" (package mq and package mq-other): uninstall all but one'
    )


async def test_a_backend_that_is_broken_does_not_disturb_the_others(register: Register) -> None:
    register(("broken", "no_such_module_at_all:make", "mq-broken"), ("noted", "Noted", "noted"))
    async with open_storage("noted:") as storage:
        assert isinstance(storage, Noted)


async def test_an_unknown_option_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        async with open_storage("memory:", no_such_option=1):
            pass


def test_memory_is_a_store() -> None:
    storage: Storage = MemoryStorage()
    assert all(hasattr(storage, verb) for verb in registry._VERBS)
    assert "commit" in registry._VERBS


def test_file_stores_say_that_they_require_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the line of a store that cannot be loaded ends with."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ImportError, match=r"but this system is darwin\. Run mq on Linux"):
        importlib.reload(mq.storage.files)


def test_who_writes_a_store_has_little_to_write() -> None:
    """Whoever adds a method or a field adds it to every store there is: of mq, of the plugins, and of others."""
    methods = [name for name in vars(Storage) if not name.startswith("_")]
    assert "commit" in methods
    assert len(methods) <= 12
    assert len(Description._fields) <= 9
