"""The iterator on a real PostgreSQL: tokens, acknowledgements, kills."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

import penstock
from penstock.model.errors import InvalidPosition, Unavailable
from penstock.stream import Stream
from tests.servers import Database
from tests.stream.taking import PATIENCE, ids, saved, some

TABLE = "CREATE TABLE items (id int PRIMARY KEY, data bytea, note text)"


def settings(database: Database) -> dict[str, Any]:
    return {
        "connection": database.url,
        "slot": f"iterator_{database.url.rpartition('/')[2][-20:]}".replace("-", "_"),
        "publication": "p",
        "create_publication": True,
        "page_rows": 3,
    }


def opened(database: Database, at: Any = None, **more: Any) -> Stream:
    return penstock.stream("postgres", at=at, **settings(database), **more)


def insert(database: Database, *ids: int) -> None:
    for each in ids:
        database.execute("INSERT INTO items VALUES (%s, '\\x00ff', 'n')", (each,))


def confirmed(database: Database) -> int:
    rows = database.execute(
        "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    return int(rows[0][0])


def until(condition: Callable[[], bool], stream: Stream) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        stream.heartbeat()
        time.sleep(0.05)


def test_records_have_what_postgresql_has(database: Database) -> None:
    database.execute(TABLE)
    with opened(database, at="latest") as stream:
        insert(database, 1)
        database.execute("UPDATE items SET note = 'm' WHERE id = 1")
        database.execute("DELETE FROM items WHERE id = 1; TRUNCATE items")
        inserted, updated, deleted, truncated = some(stream, 4, through=Unavailable)
        assert next(stream) is None
    assert inserted["new"] == {"id": 1, "data": b"\x00\xff", "note": "n"}
    assert [each["meta"]["event"]["type"] for each in (inserted, updated, deleted, truncated)] == [
        "insert", "modify", "remove", "truncate",
    ]  # fmt: skip
    assert updated["new"]["note"] == "m"
    assert (updated["old"], deleted["old"], deleted["new"]) == (None, None, None)
    assert deleted["key"] == {"id": 1}
    assert inserted["meta"]["table"] == "items"
    assert inserted["meta"]["created_at"].utcoffset().total_seconds() == 0


def test_resume_from_every_token_gives_exactly_the_rest(database: Database) -> None:
    database.execute(TABLE)
    with opened(database) as stream:
        tokens = [saved(stream)]
        insert(database, 1, 2)
        database.execute("INSERT INTO items SELECT g, NULL, NULL FROM generate_series(3, 9) g")
        for number in range(1, 10):
            assert ids(some(stream, 1, through=Unavailable)) == [number]
            tokens.append(saved(stream))
        for done, token in enumerate(tokens):
            stream.move_to(token)
            insert(database, 100 + done)
            rest = [*range(done + 1, 10), *range(100, 101 + done)]
            assert ids(some(stream, len(rest), through=Unavailable)) == rest


def test_only_an_acknowledged_token_moves_the_slot(database: Database) -> None:
    database.execute(TABLE)
    with opened(database) as stream:
        insert(database, 1, 2)
        some(stream, 1, through=Unavailable)
        saved = stream.token
        some(stream, 1, through=Unavailable)
        start = confirmed(database)
        for _ in range(20):
            stream.heartbeat()
            assert next(stream) is None
            time.sleep(0.1)
        assert confirmed(database) == start
        stream.acknowledge(saved)
        until(lambda: confirmed(database) > start, stream)
    # Nothing after the acknowledged token is discarded.
    with opened(database) as stream:
        assert ids(some(stream, 1, through=Unavailable)) == [2]


def test_an_idle_iterator_lets_the_slot_advance(database: Database) -> None:
    database.execute(TABLE)
    with opened(database) as stream:
        insert(database, 1)
        some(stream, 1, through=Unavailable)
        stream.acknowledge()
        start = confirmed(database)
        database.execute("CREATE TABLE other (id int)")

        def advanced() -> bool:
            database.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), txid_current()")
            next(stream)
            stream.acknowledge(stream.token)
            return confirmed(database) > start

        until(advanced, stream)


def _read_and_die(database: Database, path: str, count: int) -> None:
    with opened(database) as stream:
        for number, record in enumerate(stream.follow(poll=0.05), 1):
            with open(path, "a") as seen:  # noqa: PTH123
                seen.write(f"{json.dumps([record['key']['id'], stream.token])}\n")
                seen.flush()
                os.fsync(seen.fileno())
            if number == count:
                os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_reader_resumes_from_its_saved_token(database: Database, tmp_path: Any) -> None:
    database.execute(TABLE)
    with opened(database):
        pass
    insert(database, *range(1, 11))
    path = tmp_path / "seen"
    child = multiprocessing.get_context("spawn").Process(
        target=_read_and_die, args=(database, str(path), 4)
    )
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [number for number, _ in lines] == [1, 2, 3, 4]
    with opened(database, at=lines[-1][1]) as stream:
        assert ids(some(stream, 6, through=Unavailable)) == [5, 6, 7, 8, 9, 10]


@dataclass
class Item:
    id: int
    note: str | None = None

    class Meta:
        table_name = "items"


@pytest.mark.parametrize("chosen", [{"table": "items"}, {"model": Item}])
def test_the_table_is_the_models_or_the_argument(database: Database, chosen: Any) -> None:
    database.execute(f"{TABLE}; CREATE TABLE other (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    with opened(database, **chosen) as stream:
        database.execute("INSERT INTO other VALUES (1); INSERT INTO items (id) VALUES (2)")
        (record,) = some(stream, 1, through=Unavailable)
    assert record["key"] == {"id": 2}
    assert record["new"] == (
        Item(2) if "model" in chosen else {"id": 2, "data": None, "note": None}
    )


@dataclass
class WithImages(Item):
    class Meta:
        table_name = "items"
        stream: ClassVar = {"include": ["new", "old"]}


def test_an_image_that_the_source_does_not_send_is_told_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(f"{TABLE}; CREATE PUBLICATION p FOR TABLE items")
    with opened(database, model=WithImages) as stream:
        database.execute("INSERT INTO items (id) VALUES (1), (2)")
        assert len(some(stream, 2, through=Unavailable)) == 2
        assert "includes the image" not in caplog.text, "a new row has no old one"
        database.execute("UPDATE items SET note = 'x'")
        database.execute("DELETE FROM items")
        assert len(some(stream, 4, through=Unavailable)) == 4
    told = [each for each in caplog.messages if "includes the image" in each]
    assert len(told) == 1 and "WithImages includes the image 'old'" in told[0]


@pytest.mark.parametrize("at", ["trim_horizon", "time"])
def test_a_slot_has_no_horizon_and_no_times(database: Database, at: str) -> None:
    with pytest.raises(InvalidPosition, match="replication slot"):
        opened(database, at=datetime(2026, 1, 1, tzinfo=UTC) if at == "time" else at)


def test_a_table_that_the_publication_lacks_is_a_warning(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(f"{TABLE}; CREATE PUBLICATION p FOR TABLE items")
    with opened(database, table="items"):
        assert "has no table" not in caplog.text
    with opened(database, table="itmes"):
        assert "has no table 'itmes' now" in caplog.text
