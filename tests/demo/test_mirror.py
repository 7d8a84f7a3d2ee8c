"""What the demo's mirror is judged by, without servers."""

import sqlite3
from decimal import Decimal
from pathlib import Path

from penstock.demo.consumer import DemoMirror
from penstock.model.errors import Unavailable

ROWS = {(n,): {"id": n, "ok": True, "price": Decimal("1.50"), "sizes": [n]} for n in (1, 2)}


def made(tmp_path: Path, *rows: tuple[int, int, str, str]) -> DemoMirror:
    mirror = DemoMirror("nats://127.0.0.1:1", tmp_path / "mirror.db", {"t": ("id",)})
    with sqlite3.connect(mirror.file) as connection:
        connection.execute("CREATE TABLE t (id int, ok int, price text, sizes text)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    return mirror


def test_values_are_compared_as_messages_have_them(tmp_path: Path) -> None:
    mirror = made(tmp_path, (1, 1, "1.50", "[1]"), (2, 1, "1.50", "[2]"))
    assert list(mirror.problems({"t": ROWS})) == []
    assert mirror.rows == 2


def test_what_differs_is_named(tmp_path: Path) -> None:
    mirror = made(tmp_path, (1, 0, "1.5", "[1]"), (3, 1, "1.50", "[3]"))
    assert sorted(mirror.problems({"t": ROWS})) == [
        "the mirror: t (1,) in ok, price",
        "the mirror: t (2,) is missing",
        "the mirror: t (3,) is too many",
    ]


def test_a_mirror_that_failed_is_a_problem(tmp_path: Path) -> None:
    mirror = made(tmp_path)
    mirror.error = Unavailable("it is away")
    assert list(mirror.problems({"t": ROWS})) == [f"the mirror failed: {mirror.error}"]
    assert mirror.is_loaded
    mirror.finish(1)  # was never started
