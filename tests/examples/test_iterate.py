"""The example runs as its docstring says."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.servers import Database

EXAMPLE = Path(__file__).parents[2] / "examples" / "iterate.py"


def killed_after(enough: Callable[[list[str]], bool], folder: Path, **more: str) -> list[str]:
    """Runs the example until it has printed enough, and kills it."""
    env = {**os.environ, "TOKEN": str(folder / "token.json"), **more}
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE)], env=env, cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        while not enough(lines):
            line = process.stdout.readline()
            assert line, f"it ended after {lines}"
            lines.append(line.rstrip())
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
    return lines


def to_its_end(folder: Path, **more: str) -> list[str]:
    """What it prints until SECONDS_TO_RUN are over."""
    env = {**os.environ, "TOKEN": str(folder / "token.json"), "SECONDS_TO_RUN": "1", **more}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=env, cwd=folder, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_the_example_reads_the_memory_feed_once(tmp_path: Path) -> None:
    first = killed_after(lambda lines: len(lines) == 60, tmp_path)
    assert {line.split()[0] for line in first} == {"insert", "modify", "remove"}
    # The last one may come again: it was printed, and not yet saved, when the process was killed.
    assert to_its_end(tmp_path) in ([], first[-1:])


def test_the_example_resumes_on_postgresql_after_a_kill(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION shop FOR TABLE items")
    one, two, three = (f"insert {{'id': {n}}} {{'id': {n}}}" for n in (1, 2, 3))
    assert to_its_end(tmp_path, PG_URL=database.url) == []  # makes the slot
    database.execute("INSERT INTO items VALUES (1), (2)")
    first = killed_after(lambda lines: len(lines) == 2, tmp_path, PG_URL=database.url)
    assert first == [one, two]
    database.execute("INSERT INTO items VALUES (3)")
    again = killed_after(lambda lines: three in lines, tmp_path, PG_URL=database.url)
    assert again in ([three], [two, three])
