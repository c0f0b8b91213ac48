"""The client for threads is the one that its generator makes of the client for Trio."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TREE = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generator", TREE / "tools" / "sync_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_up_to_date(generator: ModuleType) -> None:
    assert generator.TARGET.read_text() == generator.generate(generator.SOURCE.read_text()), (
        "run python tools/sync_client.py"
    )


def test_nothing_asynchronous_is_left(generator: ModuleType) -> None:
    text = generator.TARGET.read_text().replace(generator.SOURCE.name, "")
    assert not [word for word in ("async", "await", "Async", "trio") if word in text]


def test_what_differs_and_is_not_found_is_told(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="0 times"):
        generator.generate("import contextlib\n")
