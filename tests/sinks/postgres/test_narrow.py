"""A column of a target that would change what its source has makes its table wait."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.config.load import build_pipeline
from penstock.model.errors import SettingsError
from penstock.sinks.tables.fitness import outgrown
from penstock.tables.drift import rounds
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


@pytest.mark.parametrize(
    ("kind", "own", "loses"),
    [
        ("numeric(12,4)", "numeric(12,2)", True), ("numeric", "numeric(12,2)", True),
        ("numeric(12,2)", "numeric(14,4)", False), ("numeric(12,2)", "numeric", False),
        ("numeric(12,4)[]", "numeric(12,2)[]", True), ("numeric(5,0)", "numeric(5,-2)", True),
        ("numeric(12,2)", "double precision", True), ("numeric(12,4)", "money", True),
        ("double precision", "real", True), ("real", "double precision", False),
        ("double precision", "numeric(9,2)", True), ("double precision", "numeric", False),
        ("bigint", "double precision", True), ("smallint", "real", False),
        ("timestamp with time zone", "timestamp(0) with time zone", True),
        ("timestamp(3) without time zone", "timestamp without time zone", False),
        ("timestamp without time zone", "date", True), ("time(3) with time zone", "text", False),
        ("timestamp with time zone", "time without time zone", True),
        ("time without time zone", "time(0) without time zone", True),
        ("interval", "interval(0)", True), ("text", "character varying(3)", False),
    ],
)  # fmt: skip
def test_a_type_rounds_what_another_one_has(kind: str, own: str, loses: bool) -> None:
    assert rounds(kind, own) == loses


PRICES = "CREATE TABLE prices (id int PRIMARY KEY, amount numeric(12, 4), seen timestamptz)"
NARROW = "CREATE TABLE prices (id int PRIMARY KEY, amount numeric(12, 2), seen timestamptz(0))"
MOODS = "CREATE TYPE mood AS ENUM ({}); CREATE TABLE moods (id int PRIMARY KEY, m mood)"


def test_a_table_waits_until_its_target_holds_what_it_has(
    database: Database, target: Database
) -> None:
    database.execute(PRICES)
    database.execute(MOODS.format("'sad', 'ok', 'glad'"))
    database.execute("INSERT INTO prices VALUES (1, 1.2345, '2026-11-21 10:02:03.678901Z')")
    database.execute("INSERT INTO moods VALUES (1, 'sad'), (2, 'glad')")
    target.execute(NARROW)
    target.execute(MOODS.format("'ok'"))
    data = {
        "name": "flow", "backends": [{"name": "shop", "type": "postgres",
                                      "connection": database.url, "slot": "unused"}],
        "sink": {"type": "postgres", "connection": target.url,
                 "map": [{"backend": "shop", "tables": {"prices": {}, "moods": {}}}]},
    }  # fmt: skip
    pipeline = build_pipeline(data, name="flow", secrets=())
    sink: Any = pipeline.sink.sink()
    with Flow(database, target, {"prices": {}, "moods": {}}) as flow:

        def waiting() -> dict[str, str]:
            flow.check()
            found = [each for each in flow._sink.tables() if each["state"] == "waiting"]
            return {each["table"]: each["error"] for each in found}

        reasons = until(lambda: len(found := waiting()) == 2 and found, 60, problem=waiting)
        assert reasons
        assert (
            "would round amount: it is numeric(12,2) there, and numeric(12,4) at the source"
            in (reasons["public.prices"])
        )
        assert "does not know glad, sad of m" in reasons["public.moods"]
        assert target.execute("SELECT count(*) FROM prices, moods") == [(0,)]
        schemas = pipeline.backends[0].feed().schemas()
        found = {each.code: each for each in sink.check_tables("shop", schemas)}
        assert found["tables.target-rounds"].level == "error"
        assert "ALTER TYPE mood ADD VALUE 'sad';" in found["tables.label-missing"].remedy
        target.execute("ALTER TABLE prices ALTER amount TYPE numeric(12, 4)")
        target.execute("ALTER TABLE prices ALTER seen TYPE timestamptz")
        target.execute("ALTER TYPE mood ADD VALUE 'sad'")
        target.execute("ALTER TYPE mood ADD VALUE 'glad'")
        for table in ("public.prices", "public.moods"):
            with suppress(SettingsError):  # it may go on with the other one
                flow._sink.resume_table("shop", table)
        flow.loaded()
    rows = "SELECT amount::text, seen::text FROM prices"
    assert target.execute(rows) == database.execute(rows)
    assert target.execute("SELECT m::text FROM moods ORDER BY id") == [("sad",), ("glad",)]


GROWS = {
    "an enum": (
        "CREATE TYPE mood AS ENUM ('sad', 'o\\k')",
        "CREATE TABLE t (id int PRIMARY KEY, v mood); INSERT INTO t VALUES (1, 'o\\k')",
        ("ALTER TYPE mood ADD VALUE 'gl\\ad' BEFORE 'sad'", "ALTER TYPE mood ADD VALUE 'it''s'"),
        ("INSERT INTO t VALUES (2, 'gl\\ad'), (3, 'it''s'), (4, 'sad')",
         "UPDATE t SET v = 'gl\\ad' WHERE id = 1"),
    ),
    "an array of an enum": (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE t (id int PRIMARY KEY, v mood[]);"
        "INSERT INTO t VALUES (1, '{ok,NULL}')",
        ("ALTER TYPE mood ADD VALUE 'so, so'",),
        ("INSERT INTO t VALUES (2, '{sad,\"so, so\",NULL}'), (3, NULL)",),
    ),
    "an enum in the key": (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (v mood, id int, PRIMARY KEY (id, v)); INSERT INTO t VALUES ('ok', 1)",
        ("ALTER TYPE mood ADD VALUE 'glad'",),
        ("UPDATE t SET v = 'glad' WHERE id = 1", "INSERT INTO t VALUES ('glad', 2)"),
    ),
    "a longer text": (
        "", "CREATE TABLE t (id int PRIMARY KEY, v varchar(3)); INSERT INTO t VALUES (1, 'abc')",
        ("ALTER TABLE t ALTER v TYPE varchar(9)",),
        ("UPDATE t SET v = 'abcdef' WHERE id = 1", "INSERT INTO t VALUES (2, 'ab')"),
    ),
    "a larger number": (
        "", "CREATE TABLE t (id int PRIMARY KEY, v smallint); INSERT INTO t VALUES (1, 7)",
        ("ALTER TABLE t ALTER v TYPE int", "ALTER TABLE t ALTER v TYPE bigint"),
        ("UPDATE t SET v = 5000000000 WHERE id = 1", "INSERT INTO t VALUES (2, 3)"),
    ),
}  # fmt: skip
VALUES = "SELECT id, v::text FROM t ORDER BY id, v"


@pytest.mark.parametrize(
    ("policy", "on_error"),
    [
        ("add", "dead-letter"),
        ("ignore", "suspend"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("ignore", "dead-letter"), ("add", "stop"))
        ),
    ],
)
@pytest.mark.parametrize("grows", GROWS)
def test_what_a_column_of_the_source_may_have_later_is_no_letter(
    grows: str, policy: str, on_error: str, database: Database, target: Database
) -> None:
    types, create, later, changes = GROWS[grows]
    for statement in filter(None, (types, create)):
        database.execute(statement)
    target.execute(types or "SELECT 1")
    tables = {"t": {"create": True, "schema_changes": policy}}
    with Flow(database, target, tables, on_error=on_error) as flow:
        flow.loaded()
        for statement in (*later, *changes):
            database.execute(statement)
        if policy == "ignore":
            until(lambda: flow.check() or flow.states()[0][0] == "waiting", 60)
            ((_, why),) = flow.states()
            assert "[tables.label-missing]" in why or "[tables.target-narrow]" in why
            target.execute(why[why.index("ALTER T") : why.rindex(";")])
        until(lambda: flow.check() or target.execute(VALUES) == database.execute(VALUES), 60,
              problem=lambda: (flow.states(), target.execute(VALUES)))  # fmt: skip
        flow.loaded()
    assert target.execute("SELECT count(*) FROM penstock.dead_letter") == [(0,)]


def test_a_made_target_gets_the_labels_that_it_lacks_before_its_load(
    database: Database, target: Database
) -> None:
    database.execute(MOODS.format("'sad', 'ok'") + "; INSERT INTO moods VALUES (1, 'sad')")
    target.execute("CREATE TYPE mood AS ENUM ('ok')")
    with Flow(database, target, {"moods": {"create": True}}) as flow:
        flow.loaded()
    assert target.execute("SELECT id, m::text FROM moods") == [(1, "sad")]


def test_what_was_too_large_at_first_is_a_letter_still(
    database: Database, target: Database
) -> None:
    """The target is as somebody wanted it."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(3))")
    with Flow(database, target, {"t": {}}, on_error="dead-letter") as flow:
        flow.loaded()
        database.execute("INSERT INTO t VALUES (1, 'abc'), (2, 'abcdef')")
        until(lambda: flow.check() or target.execute(VALUES) == [(1, "abc")], 60)
        assert flow.states() == [("live", "")]
    assert target.execute("SELECT count(*) FROM penstock.dead_letter") == [(1,)]


def test_a_target_that_is_altered_while_it_refuses_values_gets_them(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the refusal and what is looked up to judge it."""
    altered: list[object] = []

    def altering(*args: Any, **kwargs: Any) -> Iterator[SettingsError]:
        if not altered:
            altered.extend(target.execute("ALTER TYPE mood ADD VALUE 'glad'") or ["done"])
        return outgrown(*args, **kwargs)

    monkeypatch.setattr("penstock.sinks.tables.apply.outgrown", altering)
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v mood)")
    target.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    tables = {"t": {"create": True, "schema_changes": "ignore"}}
    with Flow(database, target, tables, on_error="dead-letter") as flow:
        flow.loaded()
        database.execute("ALTER TYPE mood ADD VALUE 'glad'")
        database.execute("INSERT INTO t VALUES (1, 'glad'), (2, 'sad'), (3, 'glad')")
        until(lambda: flow.check() or target.execute(VALUES) == database.execute(VALUES), 60,
              problem=lambda: (flow.states(), target.execute(VALUES)))  # fmt: skip
    assert altered
    assert target.execute("SELECT count(*) FROM penstock.dead_letter") == [(0,)]
