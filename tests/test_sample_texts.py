"""The tool that draws texts for readers finds them in the code, and draws the same ones for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tools import sample_texts
from tools.sample_texts import CLASSES, DRAWN, Text, message_texts, sample, texts_of

SOURCE: Final = """
LOST = "the connection of {}" " is lost"

class Missing(LookupError_):
    pass

class LookupError_(ValueError):
    pass

def _refused(name: str) -> Missing:
    return Missing(f"queue {name!r} does not exist, nor " + name)

def work(name, is_busy):
    logger.warning("cannot read %s now: %s", name, 1)
    events["key of a dictionary"] = len("an argument of another function")
    raise _refused("it is busy" if is_busy else LOST)
"""


def test_messages_of_exceptions_loggers_and_error_functions_are_found(tmp_path: Path) -> None:
    (tmp_path / "mq" / "testing").mkdir(parents=True)
    (tmp_path / "mq" / "work.py").write_text(SOURCE)
    (tmp_path / "mq" / "testing" / "work.py").write_text(SOURCE)  # not for users
    assert sorted(message_texts(tmp_path)) == [
        Text("mq/work.py:11", "queue {name} does not exist, nor {name}"),
        Text("mq/work.py:14", "cannot read %s now: %s"),
        Text("mq/work.py:16", "it is busy"),
        Text("mq/work.py:16", "the connection of {} is lost"),
    ]


@pytest.mark.in_turn(2)
@pytest.mark.slow  # it reads all modules
def test_same_seed_draws_the_same_texts_and_no_class_is_empty() -> None:
    first, again, other = sample(7), sample(7), sample(8)
    assert first == again != other
    assert first.keys() == CLASSES.keys()
    assert [len(set(first[kind])) for kind in ("help", "messages", "labels")] == [DRAWN] * 3
    assert len(first["readme"]) >= 10
    assert all(text.place and text.words for texts in first.values() for text in texts)


@pytest.mark.in_turn(2)
@pytest.mark.slow  # it reads all modules
def test_each_class_covers_all_of_its_sources() -> None:
    places = {kind: [text.place for text in texts_of(kind)] for kind in CLASSES}
    assert {"mq", "mq send", "mq vsqs receive", "mq-mover", "mq-reaper", "mq-pipeline archive"} <= set(places["help"])
    for prefix in ("mq/amqp/", "mq/cli/", "mq/settings.py", "mq/storage/", "mq/web/", "plugins/mq-postgres/"):
        assert any(place.startswith(prefix) for place in places["messages"]), prefix
    for prefix in ("mq/web/page/", "metric mq_queues", "deploy/prometheus/alerts.yml", "deploy/grafana/mq.json"):
        assert any(place.startswith(prefix) for place in places["labels"]), prefix


def test_readme_is_printed_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sample_texts.py", "--all", "readme"])
    sample_texts.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "== readme"
    assert lines[1].startswith("1. ")
    assert lines[2].strip().startswith("[README.md:")
