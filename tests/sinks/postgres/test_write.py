"""The PostgreSQL sink, given batches of lines, on a real server."""

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.change import WHOLE
from penstock.model.position import PartitionId, Place
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.postgres.sink import PostgresSink
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.changes import batch_of

ITEMS: dict[str, Any] = {
    "schema": "public", "table": "items", "relation_id": 16385, "version": "1",
    "columns": [
        {"name": "id", "type": 23, "modifier": -1, "key": True},
        {"name": "name", "type": 25, "modifier": -1, "key": False},
    ],
}  # fmt: skip
TARGET = "CREATE TABLE items (id int PRIMARY KEY, name varchar(5))"


def rows_of(*texts: str, commit: int = 1, **columns: Any) -> pa.RecordBatch:
    """Changes of one transaction, as `INSERT 1 name`, of the table `items`."""
    found = [text.split(" ") for text in texts]
    document: list[Any] = [orjson.dumps(ITEMS).decode(), *[None] * (len(found) - 1)]
    return batch_of(
        len(found), commit,
        operation=[one[0] for one in found], key=[one[1] for one in found],
        after=["\t".join(one[1:]) if len(one) > 2 else None for one in found],
        delta=document, images="text", **columns,
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


def items(database: Database) -> list[tuple[Any, ...]]:
    return database.execute("SELECT * FROM items ORDER BY id")


def test_changes_become_rows_once(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    first = rows_of("INSERT 1 one", "INSERT 2 two", "INSERT 3 three")
    second = rows_of("UPDATE 1 uno", "DELETE 2", "INSERT 2 due", "DELETE 3", commit=2)
    noted = Noted()
    receipt = sink_of().write(iter([first, second]), noted)
    assert items(database) == [(1, "uno"), (2, "due")]
    assert (receipt.published, receipt.duplicates) == (7, 0)
    last = Place("00000000/00000002", 3)
    assert dict(receipt.position) == noted.position == {PartitionId("shop"): last}
    database.execute("UPDATE items SET name = 'mine'")
    again = sink_of().write([first, second], Noted())
    assert items(database) == [(1, "mine"), (2, "mine")], "a stored change was applied again"
    assert (again.published, again.duplicates) == (0, 7)


def test_a_change_that_is_refused_is_set_aside_and_the_rest_lands(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    bad = rows_of("INSERT 1 one", "INSERT 2 too-long", "INSERT 3 three", "UPDATE 3 tree")
    noted = Noted()
    receipt = sink_of({"on_error": "dead-letter"}).write(iter([bad]), noted)
    assert items(database) == [(1, "one"), (3, "tree")]
    assert (receipt.published, receipt.duplicates) == (3, 0)
    assert {"dead_letters": {"refused": 1}} in noted
    ((event_id, letter),) = database.execute("SELECT event_id, letter FROM penstock.dead_letter")
    assert event_id == "default:00000000/00000001:1"
    assert orjson.loads(letter)["error"] == (
        "the destination refuses a row: string data right truncation (22001)"
    )


def test_tables_that_are_not_in_the_map_advance_the_position(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    other = rows_of("INSERT 1 one", collection="other", relation_id=5)
    noted = Noted()
    sink_of().write(iter([other]), noted)
    assert items(database) == []
    assert noted.position == {PartitionId("shop"): Place("00000000/00000001", 0)}


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
