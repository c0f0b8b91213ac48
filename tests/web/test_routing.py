"""Which route a path finds."""

from __future__ import annotations

import itertools

import pytest

from mq.web.endpoints import ROUTES, Route, Router


def first_that_fits(segments: tuple[str, ...]) -> tuple[Route, tuple[str, ...]] | None:
    """The same in plain words: of the routes that fit, the one with fixed segments first."""
    fitting = [
        route
        for route in sorted(ROUTES, key=lambda route: [segment is None for segment in route.path])
        if len(route.path) == len(segments)
        and all(wanted == is_ or (wanted is None and is_) for wanted, is_ in zip(route.path, segments, strict=True))
    ]
    if not fitting:
        return None
    names = zip(fitting[0].path, segments, strict=True)
    return fitting[0], tuple(segment for wanted, segment in names if wanted is None)


@pytest.mark.slow
def test_every_path_of_known_words() -> None:
    words = sorted({segment or "any" for route in ROUTES for segment in route.path} | {""})
    router = Router(ROUTES)
    for length in range(4):
        for segments in itertools.product(words, repeat=length):
            assert router.find(segments) == first_that_fits(segments)


def test_fixed_segments_go_first_and_a_dead_end_is_left_again() -> None:
    both, free, deep = Route(("a", "b"), {}), Route((None, "b"), {}), Route((None, "c"), {})
    router = Router([free, deep, both])
    assert router.find(["a", "b"]) == (both, ())
    assert router.find(["a", "c"]) == (deep, ("a",))
    assert router.find(["x", "b"]) == (free, ("x",))


@pytest.mark.parametrize("segments", [[], [""], ["a"], ["", "b"], ["a", "b", "c"], ["a", ""]])
def test_nothing_is_there(segments: list[str]) -> None:
    assert Router([Route(("a", "b"), {}), Route((None, "c"), {})]).find(segments) is None
