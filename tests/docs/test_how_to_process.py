"""The steps of the page about the Processor, run as they are written."""

import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.config import load_file
from penstock.processor.settings import ProcessorFile
from tests.docs.pages import DOCS, blocks
from tests.waiting import until


@pytest.mark.slow
def test_the_observer_and_the_processor_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    observer, program = blocks((DOCS / "how-to" / "process.md").read_text(), "python")[:2]
    made: list[Any] = []

    class Stopped(penstock.Processor):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            made.append(self)

    names: dict[str, Any] = {}
    exec(observer, names)
    names["Processor"] = Stopped
    thread = threading.Thread(target=exec, args=(program, names))
    thread.start()
    printed = ""  # by several threads, whose lines may be mixed

    def all_came() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return printed.count("insert ") >= 4 * 35

    until(all_came)
    made[0].stop()
    thread.join(30.0)
    printed += capsys.readouterr().out
    assert printed.count("ended ") == printed.count("SHUTDOWN") == 4


def test_the_file_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks((DOCS / "how-to" / "process.md").read_text(), "yaml")
    (tmp_path / "orders.yaml").write_text(text)
    monkeypatch.setenv("PG_URL", "postgresql://h/db")
    monkeypatch.setenv("POSITIONS_URL", "postgresql://h/penstock")
    found = load_file(tmp_path / "orders.yaml", ProcessorFile)
    assert (found.processor.threads, found.processor.exhausted) == (16, "dead-letter")
