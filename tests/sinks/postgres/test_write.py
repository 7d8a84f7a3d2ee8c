"""The PostgreSQL sink, given batches of lines, on a real server."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.change import ERROR, WHOLE
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.changes import COMMITTED, batch_of

ITEMS: dict[str, Any] = {
    "schema": "public", "table": "items", "relation_id": 16385, "version": "1",
    "columns": [
        {"name": "id", "type": 23, "modifier": -1, "key": True},
        {"name": "name", "type": 25, "modifier": -1, "key": False},
    ],
}  # fmt: skip
TARGET = "CREATE TABLE items (id int PRIMARY KEY, name varchar(5))"


def rows_of(
    *texts: str, commit: int = 1, relation: dict[str, Any] = ITEMS, **columns: Any
) -> pa.RecordBatch:
    """Changes of one transaction, as `INSERT 1 name`, of the table `items`."""
    found = [text.split(" ") for text in texts]
    document: list[Any] = [orjson.dumps(relation).decode(), *[None] * (len(found) - 1)]
    columns = {"delta": document, "key": [(*one, None)[1] for one in found], **columns}
    return batch_of(
        len(found), commit,
        operation=[one[0] for one in found],
        after=["\t".join(one[1:]) if len(one) > 2 else None for one in found],
        images="text", **columns,
    )  # fmt: skip


SinkOf = Callable[..., PostgresSink]


@pytest.fixture
def sink_of(database: Database) -> SinkOf:
    """`sink_of(**options of the table items)`: a sink with a map of that table."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> PostgresSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        found = {"connection": database.url, "map": entries, "commit": {"wait": "20ms"}}
        return PostgresSink(PostgresSinkSettings(**(found | (settings or {}))))

    return make


def applied_of(noted: Noted) -> dict[str, int]:
    """What was reported as applied, of all tables."""
    tables = [table for told in noted for table in told.get("tables", ())]
    return dict(sum((Counter(table["applied"]) for table in tables), Counter[str]()))


def items(database: Database) -> list[tuple[Any, ...]]:
    return database.execute("SELECT * FROM items ORDER BY id")


def test_a_table_is_reported_by_what_was_applied_of_it(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    bad = rows_of("INSERT 1 one", "INSERT 2 too-long", "UPDATE 1 uno", "DELETE 1", commit=2)
    noted, sink = Noted(), sink_of({"on_error": "dead-letter"})
    sink.write(iter([rows_of("TRUNCATE", key=[None]), bad]), noted)
    assert applied_of(noted) == {"INSERT": 1, "UPDATE": 1, "DELETE": 1, "TRUNCATE": 1}
    (table,) = noted[-1]["tables"]
    assert (table["backend"], table["sid"], table["table"]) == ("default", "shop", "public.items")
    assert (table["letters"], table["place"]) == (1, "00000000/00000002:3")
    assert table["lag_seconds"] > 0
    commits = [each for told in noted for each in told.get("commits", {}).values()]
    assert commits
    assert min(commits) >= 1


def test_a_transaction_is_committed_whole_however_late_its_end_comes(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    seen: list[Any] = []

    def changes() -> Iterator[pa.RecordBatch]:
        yield rows_of("INSERT 1 one", "INSERT 2 two")
        yield rows_of("INSERT 3 three", commit=2)  # so that the first is known to be over
        while not items(database):
            yield batch_of(0)
        seen.append(items(database))
        end = rows_of("INSERT 4 four", commit=2, start=1)
        yield end.replace_schema_metadata(WHOLE)
        while len(items(database)) < 4:
            yield batch_of(0)

    sink_of().write(changes(), Noted())
    assert seen == [[(1, "one"), (2, "two")]]


HISTORY = "SELECT sid, id, name, kvsz_start, upto, kvsz_deleted FROM items ORDER BY id, kvsz_start"


def test_a_history_that_is_made_has_every_version_once(database: Database, sink_of: SinkOf) -> None:
    batches = [
        rows_of("READ 1 one", "READ 2 two", committed_at=None),
        rows_of("UPDATE 1 uno", "DELETE 2", commit=2),
        rows_of("INSERT 2 due", commit=3),
    ]
    for _ in range(2):
        history = sink_of({"history": {"end": "upto"}}, type="history", create=True)
        history.write(iter(batches), Noted())
    rows = database.execute(HISTORY)
    (first,) = {row[3] for row in rows if row[3].year == 1900}
    (last,) = {row[4] for row in rows if row[4].year == 9999}
    tick = timedelta(microseconds=1)
    assert rows == [
        ("shop", 1, "one", first, COMMITTED, False), ("shop", 1, "uno", COMMITTED, last, False),
        ("shop", 2, "two", first, COMMITTED, True),
        ("shop", 2, "due", COMMITTED + tick, last, False),
    ]  # fmt: skip
    keys = database.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'items' ORDER BY 1")
    assert [each.partition("btree ")[2] for (each,) in keys] == [
        "(sid, id) WHERE (upto = '9999-01-01 00:00:00+00'::timestamp with time zone)",
        "(sid, id, kvsz_start)",
    ]


def test_a_version_that_is_refused_is_set_aside_and_other_transactions_are_whole(
    database: Database, sink_of: SinkOf
) -> None:
    history = sink_of({"on_error": "dead-letter"}, type="history", create=True)
    history.write(iter([rows_of("INSERT 1 one", "INSERT 3 a")]), Noted())
    database.execute("ALTER TABLE items ADD CHECK (name <> 'bad')")
    batches = [
        rows_of("UPDATE 1 two", "UPDATE 1 three", commit=2),
        rows_of("UPDATE 3 bad", "INSERT 4 d", commit=3),
        rows_of("UPDATE 1 four", "UPDATE 1 five", commit=4),
        rows_of("UPDATE 2 \\U", commit=5, unchanged=[["name"]]),
    ]
    history.write(iter(batches), Noted())
    rows = database.execute("SELECT id, name FROM items ORDER BY id, kvsz_start")
    assert rows == [(1, "one"), (1, "three"), (1, "five"), (3, "a"), (4, "d")]
    letters = database.execute("SELECT event_id FROM penstock.dead_letter ORDER BY 1")
    assert letters == [("default:00000000/00000003:0",), ("default:00000000/00000005:0",)]


def test_a_change_that_was_not_decoded_is_decoded_again(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    why = {"reason": "not-utf8", "error": "the name is not UTF-8", "raw": "", "context": ""}
    broken = batch_of(
        1, operation=[ERROR], key=[None], after=[orjson.dumps(why).decode()], images="text"
    )
    sink = sink_of({"on_error": "dead-letter"})
    sink.prepare()
    sink.write(iter([broken]), Noted())
    (letter,) = sink.dead_letters()
    assert letter["reason"] == "not-utf8"
    sink.replay(str(letter["id"]), lambda page: [rows_of("INSERT 1 one")])
    assert items(database) == [(1, "one")]


def never(page: Any) -> Any:
    """Decodes nothing: a letter of a decoded change is not decoded."""
    raise AssertionError(page)


def moved_row(*, alike: bool) -> pa.RecordBatch:
    """A row that moves from a partition of its table to another, whose columns are in the same
    order if they are `alike`."""
    columns = ITEMS["columns"]
    parts = [
        orjson.dumps(ITEMS | {"table": f"items_{n}", "columns": each}).decode()
        for n, each in ((1, columns), (2, columns if alike else columns[::-1]))
    ]
    line = "1 one" if alike else "one 1"
    first = rows_of(
        f"INSERT {line}", key="1", relation_id=2, collection="items_2", delta=[parts[1]]
    )
    moved = rows_of(
        "DELETE 1", "INSERT 1 one", commit=2, relation_id=[2, 1],
        collection=["items_2", "items_1"], delta=[None, parts[0]],
    )  # fmt: skip
    return pa.concat_batches([first, moved])


def test_a_row_of_a_history_that_moves_between_partitions_has_two_versions(
    database: Database, sink_of: SinkOf
) -> None:
    sink = sink_of(type="history", partitions="items_.", create=True)
    sink.write(iter([moved_row(alike=True)]), Noted())
    found = database.execute("SELECT name, kvsz_deleted FROM items")
    assert found == [("one", False), ("one", False)]


@pytest.mark.parametrize("kind", ["clone", "history"])
def test_a_row_whose_filter_needs_a_value_that_was_not_sent_is_a_letter_of_its_own(
    database: Database, sink_of: SinkOf, kind: str
) -> None:
    sink = sink_of({"on_error": "dead-letter"}, type=kind, create=True, filter="length(name) < id")
    noted = Noted()
    first = rows_of("INSERT 1 one", "INSERT 5 five")
    second = rows_of("UPDATE 1 \\U", "UPDATE 5 cinq", unchanged=[["name"], []], commit=2)
    sink.write(iter([first]), Noted())
    sink.write(iter([second]), noted)
    names = database.execute("SELECT id, name FROM items ORDER BY id, name")
    assert names[-1] == (5, "five") if kind == "history" else names == [(5, "cinq")]
    assert [each["reason"] for each in sink.dead_letters()] == ["unsent-value"]
    assert noted[-1]["dead_letters"] == {"unsent-value": 1}


def relation(*names: str) -> list[Any]:
    """A description of the table `items` with these columns besides its key."""
    id, name = ITEMS["columns"]
    columns = [id, *({**name, "name": each} for each in names)]
    return [orjson.dumps({**ITEMS, "columns": columns}).decode()]


def ledger(database: Database) -> list[tuple[str, str]]:
    return database.execute("SELECT state, detail FROM penstock.ledger")


def test_a_column_that_may_have_another_name_makes_its_table_wait(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    first = rows_of("INSERT 1 one")
    second = rows_of("UPDATE 1 uno", commit=2, delta=relation("title"))
    sink = sink_of({"on_error": "dead-letter"})
    sink.write(iter([first, second]), Noted())
    ((state, detail),) = ledger(database)
    assert state == "waiting"
    assert "name may be called title now" in detail
    assert "`penstock tables resume FILE public.items`" in detail
    assert items(database) == [(1, "one")]
    database.execute("ALTER TABLE items RENAME COLUMN name TO title")
    sink.resume_table(None, "public.items")
    (load,) = sink.unfinished()
    load.settle("dead-letter")
    assert items(database) == [(1, "uno")]
    assert ledger(database) == [("live", "")]
