"""spark.read of the changes between two positions under real Spark, held against the iterator."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import penstock
from penstock.model.errors import SettingsError
from penstock.spark import PenstockDataSource
from tests.microbatch.sources import is_read
from tests.servers import Database
from tests.slots import drop_slots
from tests.waiting import until


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    """A table and its slot, beside another table of the same publication."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int)")
    database.execute("CREATE PUBLICATION p FOR TABLE t, other")
    database.execute("SELECT pg_create_logical_replication_slot('lake', 'pgoutput')")
    yield database
    drop_slots(database)


def given(database: Database, **options: str) -> dict[str, str]:
    return {
        "backend": "postgres", "connection": database.url, "slot": "lake", "publication": "p",
        "page_rows": "30", "max_events": "100", **options,
    }  # fmt: skip


def planned(database: Database, **options: str) -> object:
    """What Spark's planner asks, without Spark, which makes an AnalysisException of an error."""
    source = PenstockDataSource(given(database, table="public.t", **options))
    return source.reader(source.schema()).partitions()


def read(spark: SparkSession, database: Database, changes: str, **options: str) -> Any:
    options = given(database, table="public.t", **options, changes=changes)
    return spark.read.format("penstock").options(**options).load()


WRITTEN = 419


def write(database: Database) -> None:
    """So many changes of the table."""
    database.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 200) g")
    for number in range(1, 6):
        database.execute("UPDATE t SET v = 'new' WHERE id %% 5 = %s", (number,))
        database.execute("INSERT INTO other VALUES (%s)", (number,))
    database.execute("DELETE FROM t WHERE id > 150")
    database.execute("UPDATE t SET id = id + 1000 WHERE id < 10")


def iterated(database: Database) -> list[tuple[Any, ...]]:
    """The changes that `write` makes, as the iterator gives them: the reference."""
    settings = {"connection": database.url, "slot": "lake", "publication": "p"}
    with penstock.stream("postgres", **settings, table="public.t") as stream:
        rows = stream.table(rows=WRITTEN, seconds=60, of="public.t").to_pylist()
    until(lambda: not is_read(database))
    return [tuple(row[name] for name in _COLUMNS) for row in rows]


_COLUMNS = ("_sequence", "_operation", "id", "v")


def found(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select(*_COLUMNS).collect()]


def confirmed(database: Database) -> str:
    ((lsn,),) = database.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'lake'"
    )
    return str(lsn)


def advance(database: Database, lsn: str) -> None:
    """As another reader of the slot that has acknowledged."""
    until(lambda: not is_read(database))
    database.execute("SELECT pg_replication_slot_advance('lake', %s)", (lsn,))


def test_all_changes_are_those_of_the_iterator_and_the_slot_stays(
    spark: SparkSession, shop: Database
) -> None:
    write(shop)
    before = confirmed(shop)
    wanted = iterated(shop)
    assert len(wanted) > 400
    frame = read(spark, shop, "earliest..now")
    assert found(frame) == wanted
    shop.execute("INSERT INTO t VALUES (5000, 'later')")
    assert found(frame) == wanted, "its end is that of its first use"
    assert len(found(read(spark, shop, ".."))) == len(wanted) + 1
    assert confirmed(shop) == before


def test_spans_side_by_side_have_each_change_once(spark: SparkSession, shop: Database) -> None:
    """From and up to changes in the middle of a transaction, at its end, and between two."""
    write(shop)
    wanted = iterated(shop)
    cursor = wanted[250][0].partition(":")[0]
    cuts = [wanted[17][0], wanted[199][0], cursor, wanted[-1][0]]
    spans = [f"{one}..{two}" for one, two in zip(["", *cuts], [*cuts, ""], strict=True)]
    got = [found(read(spark, shop, each)) for each in spans]
    assert [row for rows in got for row in rows] == wanted
    assert [len(rows) > 0 for rows in got] == [True] * 4 + [False]
    assert got[0][-1][0] == cuts[0]
    assert got[2][-1][0] < cursor < got[3][0][0]


def test_without_a_table_rows_are_changes(spark: SparkSession, shop: Database) -> None:
    write(shop)
    options = given(shop, changes="earliest..now")
    rows = spark.read.format("penstock").options(**options).load().collect()
    assert {each["collection"] for each in rows} == {"t", "other"}
    assert [f"{each['cursor']}:{each['ordinal']:010}" for each in rows
            if each["collection"] == "t"] == [row[0] for row in iterated(shop)]  # fmt: skip
    narrow = spark.read.format("penstock").options(**options, tables="public.other").load()
    assert [each["collection"] for each in narrow.collect()] == ["other"] * 5


def test_the_publication_of_a_pipeline_is_not_altered(spark: SparkSession, shop: Database) -> None:
    """One that penstock made and keeps to the tables of its settings."""
    shop.execute("CREATE PUBLICATION penstock_shop FOR TABLE t, other")
    write(shop)
    options = given(shop, name="shop", table="public.t", changes="..")
    del options["publication"]
    frame = spark.read.format("penstock").options(**options).load()
    assert len(found(frame)) == len(iterated(shop))
    assert len(shop.execute("SELECT 1 FROM pg_publication_tables WHERE pubname <> 'p'")) == 2


def test_changes_after_the_point_of_rows_make_them_those_of_now(
    spark: SparkSession, shop: Database
) -> None:
    write(shop)
    options = given(shop, table="public.t")
    rows = spark.read.format("penstock").options(**options).load().collect()
    shop.execute("UPDATE t SET v = 'after' WHERE id % 3 = 0; DELETE FROM t WHERE id = 20")
    (point,) = {each["_sequence"] for each in rows}
    table = {each["id"]: each["v"] for each in rows}
    changes = read(spark, shop, f"{point}..now").collect()
    assert {each["v"] for each in changes} == {"after", None}
    for each in changes:
        table.pop(each["id"], None)
        if each["_operation"] != "DELETE":
            table[each["id"]] = each["v"]
    assert table == dict(shop.execute("SELECT id, v FROM t"))
    assert found(read(spark, shop, f"earliest..{point}")) == iterated(shop)


def test_changes_that_the_slot_has_given_up_are_an_error(
    spark: SparkSession, shop: Database
) -> None:
    write(shop)
    wanted = iterated(shop)
    frame = read(spark, shop, "earliest..now")
    assert frame.count() == len(wanted)
    lost, last = wanted[100][0], wanted[250][0]
    advance(shop, last.partition(":")[0])
    for changes in (f"{lost}..now", f"..{lost}"):
        with pytest.raises(AnalysisException, match="begin at earliest") as caught:
            read(spark, shop, changes).collect()
        assert "postgres.changes-gone" in str(caught.value)
    with pytest.raises(PythonException, match=r"spark\.changes-gone"):
        frame.count()
    assert found(read(spark, shop, f"{last}..now")) == wanted[251:]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ("now", "spark.changes"),
        ("0/1", "spark.changes"),
        ("a..b..c", "spark.changes"),
        ("now..", "spark.changes"),
        ("..earliest", "spark.changes"),
        ("2026-11-29T10:00:00..now", "spark.changes"),
        ("00000001/00000000:x..", "spark.changes"),
        ("FFFFFF/0..FFFF/0", "postgres.span-position"),
        ("yesterday..now", "postgres.span-position"),
        ("00000000000000000012/abc==:0000000000..now", "postgres.span-position"),
        ("e0001-00000000/00000000..00000000/00000000", "postgres"),
        ("FFFFFFFF/00000000..now", "postgres.span-position"),
        ("..FFFFFFFF/00000000", "postgres.span-position"),
        ("2026-11-29T10:00:00Z..now", "postgres.span-time"),
        ("..2026-11-29T10:00:00Z", "postgres.span-time"),
        ("2026-11-29T10:00:00Z..2026-11-29T09:00:00Z", "spark.changes"),
    ],
)
def test_what_is_no_span_is_an_error(shop: Database, changes: str, code: str) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(shop, changes=changes)
    assert caught.value.code.startswith(code)


def test_a_span_that_ends_before_it_begins_is_an_error_and_an_empty_one_is_none(
    spark: SparkSession, shop: Database
) -> None:
    write(shop)
    one, two = (iterated(shop)[number][0] for number in (10, 300))
    with pytest.raises(AnalysisException, match="ends before it begins"):
        read(spark, shop, f"{two}..{one}").collect()
    for each in (f"{one}..{one}", f"{iterated(shop)[-1][0]}..now"):
        frame = read(spark, shop, each)
        assert frame.collect() == []
        assert frame.columns[:2] == ["id", "v"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"slot": "gone"}, "pg_create_logical_replication_slot"),
        ({"publication": "gone"}, "CREATE PUBLICATION"),
        ({"where": "id < 5"}, "filter the DataFrame"),
    ],
)
def test_what_is_missing_is_not_made(shop: Database, options: dict[str, str], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        planned(shop, changes="..", **options)
    assert len(shop.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'gone'")) == 0


def test_a_slot_that_is_read_is_an_error_after_some_seconds(
    spark: SparkSession, shop: Database
) -> None:
    write(shop)
    settings = {"connection": shop.url, "slot": "lake", "publication": "p"}
    with penstock.stream("postgres", **settings) as stream:
        while next(stream) is None:
            pass
        with pytest.raises(PythonException, match=r"postgres\.slot-taken"):
            read(spark, shop, "..").count()


def test_a_use_that_ends_early_gives_the_slot_back(spark: SparkSession, shop: Database) -> None:
    write(shop)
    assert len(read(spark, shop, "..").take(1)) == 1
    assert read(spark, shop, "..", max_events="10").limit(5).count() == 5
    assert read(spark, shop, "..").count() > 400


def test_a_stream_takes_no_span(shop: Database) -> None:
    with pytest.raises(SettingsError, match=r"changes is for spark\.read"):
        PenstockDataSource(given(shop, changes="..")).streamReader(StructType())
