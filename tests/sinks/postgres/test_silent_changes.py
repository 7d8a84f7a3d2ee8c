"""Rows that change without the log are right at the target within a look, or after a start; without
Spark. All cases of a kind of publication are in one pipeline, each with a table of its own."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from penstock.feeds import Feed
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.load import LedgerLoad
from penstock.snapshots.catalogues import Catalogues
from tests.consumer.mirror.recipes import KINDS as KINDS_OF_A_MIRROR
from tests.consumer.mirror.recipes import PRELUDE
from tests.consumer.mirror.world import sqlite_rows
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

# The statement that makes the publication of the user's, and PostgreSQL's version.
KINDS = {
    "own": ("", 16),
    "every": ("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)", 18),
    "schema": ("CREATE PUBLICATION p FOR TABLES IN SCHEMA public", 16),
    "listed": ("CREATE PUBLICATION p FOR TABLE {}", 18),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """`@` is the case's table. `statements`: each a transaction; `ADD` puts the table into a
    publication that lists tables. `query`: the rows that the target has to have. `tables`: what the
    publication lists. Not `is_loaded`: no row is loaded a second time."""

    create: str = (
        "CREATE TABLE @ (id int PRIMARY KEY, v text);"
        "INSERT INTO @ SELECT n, 'a' FROM generate_series(1, 6) n"
    )
    statements: tuple[str, ...]
    last: str = "INSERT INTO @ VALUES (90, 'last')"
    query: str = "SELECT id, v::text FROM @"
    kinds: str = "own every schema listed"
    since: int = 16
    tables: str = "@"
    options: Mapping[str, Any] = field(default_factory=dict)
    is_loaded: bool = True


ROOT = (
    "CREATE TABLE @ (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE @_p1 PARTITION OF @ FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE @_p2 PARTITION OF @ FOR VALUES FROM (10) TO (100);"
    "INSERT INTO @ SELECT n, 'a' FROM generate_series(1, 20) n"
)
DETACHED = (
    "ALTER TABLE @ DETACH PARTITION @_p1",
    "UPDATE @_p1 SET v = 'alone'; DELETE FROM @_p1 WHERE id = 2",
    "ALTER TABLE @ ATTACH PARTITION @_p1 FOR VALUES FROM (0) TO (10)",
)  # fmt: skip
COMES = "CREATE TABLE @_p3 PARTITION OF @ FOR VALUES FROM (100) TO (200)"


def as_root(*statements: str, **options: Any) -> Case:
    """A partitioned table that is sent as one."""
    return Case(create=ROOT, statements=statements, kinds="own every", **options)


def as_leaves(*statements: str, **options: Any) -> Case:
    """A partitioned table whose leaves go into one target."""
    return Case(
        create=ROOT, statements=statements, tables="@_p1, @_p2",
        options={"partitions": "@_p.*"}, **{"kinds": "own schema", **options},
    )  # fmt: skip


WRITTEN = "UPDATE {} SET v = 'unseen' WHERE id < 3; DELETE FROM {} WHERE id = 4"
CASES = {
    "dropped and made again": Case(
        statements=("DROP TABLE @", "CREATE TABLE @ (id int PRIMARY KEY, v text)",
                    "INSERT INTO @ VALUES (1, 'new'), (70, 'new')", "ADD"),
    ),
    "swapped by rename": Case(
        statements=("CREATE TABLE @_new (LIKE @ INCLUDING ALL); INSERT INTO @_new VALUES (3, 'n')",
                    "ALTER TABLE @ RENAME TO @_old; ALTER TABLE @_new RENAME TO @", "ADD"),
    ),
    "renamed away and back": Case(
        statements=("ALTER TABLE @ RENAME TO @_off", WRITTEN.format("@_off", "@_off"),
                    "ALTER TABLE @_off RENAME TO @"),
    ),
    "another schema and back": Case(
        statements=("ALTER TABLE @ SET SCHEMA off", WRITTEN.format("off.@", "off.@"),
                    "ALTER TABLE off.@ SET SCHEMA public"),
    ),
    "unlogged and back": Case(
        statements=("ALTER TABLE @ SET UNLOGGED", WRITTEN.format("@", "@"),
                    "ALTER TABLE @ SET LOGGED"),
        kinds="every schema",
    ),
    "unlogged and back, without large values": Case(
        create="CREATE TABLE @ (id int PRIMARY KEY, v int); INSERT INTO @ VALUES (1, 1), (4, 4)",
        statements=("ALTER TABLE @ SET UNLOGGED", "UPDATE @ SET v = 7", "ALTER TABLE @ SET LOGGED"),
        last="INSERT INTO @ VALUES (90, 90)", kinds="every schema",
    ),
    "out of the publication and in again": Case(
        statements=("ALTER PUBLICATION p DROP TABLE @", WRITTEN.format("@", "@"), "ADD"),
        kinds="own listed",
    ),
    "another row filter": Case(
        statements=("ALTER PUBLICATION p DROP TABLE @",
                    "ALTER PUBLICATION p ADD TABLE @ WHERE (id > 2)"),
        query="SELECT id, v FROM @ WHERE id > 2", kinds="listed",
    ),
    "another column list": Case(
        create="CREATE TABLE @ (id int PRIMARY KEY, w text, v text);"
               "INSERT INTO @ SELECT n, 'w', 'a' FROM generate_series(1, 6) n",
        statements=("ALTER PUBLICATION p DROP TABLE @; ALTER PUBLICATION p ADD TABLE @ (id, w)",
                    WRITTEN.format("@", "@"), "ALTER PUBLICATION p DROP TABLE @", "ADD"),
        last="INSERT INTO @ VALUES (90, 'w', 'last')", kinds="listed",
    ),
    "an expression of the same type": Case(
        statements=("ALTER TABLE @ ALTER v TYPE text USING upper(v)",),
    ),
    "an attribute of a composite type": Case(
        create="CREATE TYPE @_c AS (a int, b text); CREATE TABLE @ (id int PRIMARY KEY, v @_c);"
               "INSERT INTO @ SELECT n, ROW(n, 'x')::@_c FROM generate_series(1, 5) n",
        statements=("ALTER TYPE @_c ADD ATTRIBUTE z int",),
        last="INSERT INTO @ VALUES (90, ROW(9, 'y', 1)::@_c)",
    ),
    "a label of an enum": Case(
        create="CREATE TYPE @_e AS ENUM ('a', 'b'); CREATE TABLE @ (id int PRIMARY KEY, v @_e);"
               "INSERT INTO @ VALUES (1, 'a'), (2, 'b')",
        statements=("ALTER TYPE @_e RENAME VALUE 'a' TO 'c'",),
        last="INSERT INTO @ VALUES (90, 'c')",
    ),
    "another expression of a generated column": Case(
        create="CREATE TABLE @ (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 2) STORED);"
               "INSERT INTO @ SELECT n FROM generate_series(1, 5) n",
        statements=("ALTER TABLE @ ALTER v SET EXPRESSION AS (id * 3)",),
        last="INSERT INTO @ VALUES (90)", kinds="every", since=18,
    ),
    "partition truncated": as_root("TRUNCATE @_p1"),
    "partition dropped": as_root("DROP TABLE @_p1"),
    "partition detached": as_root("ALTER TABLE @ DETACH PARTITION @_p1"),
    "partition away and back": as_root(*DETACHED),
    "partition with rows": as_root(
        "CREATE TABLE @_p3 (LIKE @ INCLUDING ALL)", "INSERT INTO @_p3 VALUES (150, 'came')",
        "ALTER TABLE @ ATTACH PARTITION @_p3 FOR VALUES FROM (100) TO (200)",
    ),
    "partition that is new": as_root(COMES, "INSERT INTO @ VALUES (101, 'b')"),
    "leaf with rows": as_leaves(
        COMES, "INSERT INTO @ SELECT n, 'b' FROM generate_series(100, 150) n", is_loaded=False
    ),
    "leaf truncated": as_leaves("TRUNCATE @_p1"),
    "leaf dropped": as_leaves("DROP TABLE @_p1"),
    "leaf away and back": as_leaves(*DETACHED),
    "a new column, index, label and right": Case(
        create="CREATE TYPE @_e AS ENUM ('a', 'b'); CREATE TABLE @ (id int PRIMARY KEY, v @_e);"
               "INSERT INTO @ VALUES (1, 'a'), (2, 'b')",
        statements=("ALTER TYPE @_e ADD VALUE 'c'", "ALTER TABLE @ ADD w text",
                    "CREATE INDEX ON @ (v)", "GRANT SELECT ON @ TO public", "VACUUM ANALYZE @",
                    "ALTER TABLE @ ADD CHECK (id < 1000)", "UPDATE @ SET v = 'c' WHERE id = 2"),
        last="INSERT INTO @ VALUES (90, 'c')", is_loaded=False,
    ),
    "emptied": Case(statements=("TRUNCATE @",), is_loaded=False),
}  # fmt: skip


def wait_for_slot(database: Database, slot: str) -> None:
    """Until nobody reads it."""
    free = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
    until(lambda: database.execute(free, (slot,)) == [(True,)], 60)


def cases_of(kind: str) -> Mapping[str, Case]:
    """By the names of their tables."""
    version = KINDS[kind][1]
    found = [(name, one) for name, one in CASES.items() if kind in one.kinds.split()]
    return {
        f"{'_'.join(name.replace(',', '').split())}": one for name, one in found
        if one.since <= version
    }  # fmt: skip


class Silent:
    """The tables of all cases of a kind of publication, at a source and at a target."""

    def __init__(self, kind: str, source: Database, target: Database | Path) -> None:
        self.kind, self.source, self.target = kind, source, target
        self.cases = cases_of(kind)
        source.execute("CREATE SCHEMA off")
        for name in self.cases:
            self.execute(name, self.cases[name].create)
        statement, version = KINDS[kind]
        listed = [one for name, case in self.cases.items()
                  for one in case.tables.replace("@", name).split(", ")]  # fmt: skip
        if statement:
            source.execute(statement.format(", ".join(listed)))
        if kind == "every" and version >= 18:
            source.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")

    def execute(self, name: str, statement: str) -> None:
        if statement == "ADD":
            if self.kind == "listed":
                self.source.execute(f"ALTER PUBLICATION p ADD TABLE {name}")
            return
        publication = "p" if KINDS[self.kind][0] else "penstock_shop"
        statement = statement.replace("PUBLICATION p ", f"PUBLICATION {publication} ")
        with psycopg.connect(self.source.url, autocommit=True) as connection:
            connection.execute(statement.replace("@", name).encode())

    def flow(self) -> Flow:
        tables = {
            name: {"create": True} | {
                key: value.replace("@", name) for key, value in case.options.items()
            }
            for name, case in self.cases.items()
        }  # fmt: skip
        backend = {"publication": "p"} if KINDS[self.kind][0] else {}
        return Flow(self.source, self.target, tables, **backend)

    def change(self) -> None:
        for name, case in self.cases.items():
            for statement in case.statements:
                self.execute(name, statement)

    def change_again(self) -> None:
        for name, case in self.cases.items():
            self.execute(name, case.last)

    def states(self) -> list[Any]:
        """Of each table, as the ledger has it: its name, state, whether it was loaded again, why it
        waits."""
        query = 'SELECT "table", state, is_again, detail FROM {}'
        if isinstance(self.target, Database):
            return self.target.execute(query.format("penstock.ledger"))
        return [
            (row["table"], row["state"], row["is_again"], row["detail"])
            for row in sqlite_rows(f"sqlite:///{self.target}", "penstock_ledger")
        ]

    def wrong(self) -> dict[str, Any]:
        """The tables that differ: the rows of both."""
        return {name: rows for name in self.cases if (rows := self.differs(name))}

    def differs(self, name: str) -> Any:
        case = self.cases[name]
        query = case.query.replace("@", name)
        source = sorted((str(a), str(b)) for a, b in self.source.execute(query))
        if isinstance(self.target, Database):
            found = self.target.execute(f"SELECT id, v::text FROM {name}")
        else:
            rows = sqlite_rows(f"sqlite:///{self.target}", name)
            found = [(row["id"], row["v"]) for row in rows]
        target = sorted((str(a), str(b)) for a, b in found)
        return None if source == target else {"source": source, "target": target}


SilentOf = Callable[[str], Silent]


def thorough(*cases: tuple[object, ...]) -> list[Any]:
    """Cases whose parts others have."""
    return [pytest.param(*each, marks=pytest.mark.thorough) for each in cases]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is read often; a rewrite is not waited for."""
    monkeypatch.setattr("penstock.feeds.postgres.snapshot._READER", 1.0)
    monkeypatch.setattr("penstock.snapshots.catalogues._EVERY", 0.3)
    monkeypatch.setattr("penstock.snapshots.loading._AGAIN", 0.3)
    monkeypatch.setattr("penstock.snapshots.loading._PATIENCE", 0.0)


@pytest.fixture
def silent_of(
    postgres_of: Callable[[int], Postgres], request: pytest.FixtureRequest, tmp_path: Path
) -> SilentOf:
    """`silent_of(kind)`."""

    def make(kind: str) -> Silent:
        server = postgres_of(KINDS[kind][1])
        made = [server.database(), server.database()]
        source, target = (each.__enter__() for each in made)
        for each in made:
            request.addfinalizer(lambda each=each: each.__exit__(None, None, None))
        return Silent(kind, source, target if kind == "own" else tmp_path / "target.db")

    return make


@pytest.mark.parametrize(
    ("kind", "way"),
    [("own", "running"), ("own", "stopped"), ("every", "running"), ("every", "stopped"),
     ("listed", "running"), ("listed", "stopped"), ("schema", "stopped"),
     *thorough(("schema", "running"))],
)  # fmt: skip
def test_rows_that_change_without_the_log_are_right_again(
    kind: str, way: str, silent_of: SilentOf
) -> None:
    stopped = way == "stopped"
    silent = silent_of(kind)
    flow = silent.flow()
    with flow:
        flow.loaded()
        assert silent.wrong().keys() <= {"another_row_filter"}
        if not stopped:
            changed(silent, flow)
    if stopped:
        wait_for_slot(silent.source, flow.slot)
        silent.source.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (flow.slot,)
        )
        silent.change()
        with silent.flow() as flow:
            changed(silent, flow, is_done=True)


def changed(silent: Silent, flow: Flow, *, is_done: bool = False) -> None:
    """Waits until all is as at the source."""
    if not is_done:
        silent.change()
    silent.change_again()
    until(lambda: flow.check() or not any(map(silent.differs, silent.cases)), 180, problem=lambda: (
        silent.wrong(), [each for each in silent.states() if each[1] != "live"]
    ))  # fmt: skip
    flow.loaded()
    again = {name for name, _, is_again, _ in silent.states() if is_again}
    assert {name for name, case in silent.cases.items() if not case.is_loaded} & again == set()


TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
ROWS = "SELECT id, v FROM t ORDER BY id"
EVERY = "CREATE PUBLICATION p FOR ALL TABLES"


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


def state_of(target: Database) -> tuple[str, str, str]:
    (found,) = target.execute("SELECT state, reason, detail FROM penstock.ledger")
    return found[0], found[1], found[2]


def equal(flow: Flow, source: Database, target: Database) -> None:
    """Waits for it."""

    def problem() -> Any:
        return source.execute(ROWS), target.execute(ROWS), state_of(target)

    def is_equal() -> bool:
        flow.check()
        return source.execute(ROWS) == target.execute(ROWS)

    until(is_equal, 60, problem=problem)


@pytest.mark.parametrize("setting", ["publish = 'insert'", "publish_via_partition_root = true"])
def test_a_publication_that_had_another_setting_for_a_while_has_its_tables_loaded_anew(
    setting: str, database: Database, target: Database
) -> None:
    before = "publish = 'insert, update, delete', publish_via_partition_root = false"
    database.execute(f"{TABLE}; {EVERY}")
    with Flow(database, target, {"t": {"create": True}}, publication="p") as flow:
        flow.loaded()
        database.execute(f"ALTER PUBLICATION p SET ({setting})")
        database.execute("UPDATE t SET v = 'unseen' WHERE id = 1")
        database.execute(f"ALTER PUBLICATION p SET ({before})")
        equal(flow, database, target)


def test_a_table_that_is_gone_waits_and_is_loaded_when_it_comes_back(
    database: Database, target: Database
) -> None:
    database.execute(TABLE)
    with Flow(database, target, {"t": {"create": True}}) as flow:
        flow.loaded()
        database.execute("DROP TABLE t")
        until(lambda: flow.check() or state_of(target)[0] == "waiting", 60)
        assert "the source does not send it" in state_of(target)[2]
        assert target.execute(ROWS) == [(1, "a"), (2, "b")]
        database.execute(TABLE.replace("(2, 'b')", "(3, 'c')"))
        equal(flow, database, target)
        flow.loaded()


@pytest.mark.parametrize("with_reload", [False, True], ids=["resumed", "reloaded"])
def test_rows_that_are_not_ours_wait_for_an_operator(
    with_reload: bool, database: Database, target: Database
) -> None:
    """Where the first rows were not loaded, what is there is somebody's."""
    database.execute(TABLE)
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (7, 'theirs')"
    )
    with Flow(database, target, {"t": {}}, initial=False) as flow:
        database.execute("INSERT INTO t VALUES (3, 'c')")
        until(lambda: flow.check() or (3, "c") in target.execute(ROWS), 60)
        until(lambda: target.execute("SELECT 1 FROM penstock.known"), 60)
        database.execute("ALTER TABLE t RENAME TO u; UPDATE u SET v = 'unseen' WHERE id = 3;"
                         "ALTER TABLE u RENAME TO t")  # fmt: skip
        until(lambda: flow.check() or state_of(target)[0] == "waiting", 60)
        _, reason, detail = state_of(target)
        assert reason == "changed"
        assert "had another name" in detail
        database.execute("INSERT INTO t VALUES (4, 'd')")
        until(lambda: target.execute("SELECT held FROM penstock.ledger") == [(1,)], 60)
        if with_reload:
            flow._sink.reload("t", None)
            equal(flow, database, target)
            return
        flow._sink.resume_table("shop", "public.t")
        until(lambda: flow.check() or (4, "d") in target.execute(ROWS), 60)
        assert (7, "theirs") in target.execute(ROWS)
        until(lambda: flow.check() or state_of(target) == ("live", "", ""), 60)


def test_a_ledger_of_before_takes_the_tables_as_they_are(
    database: Database, target: Database
) -> None:
    database.execute(TABLE)
    tables = {"t": {"create": True}}
    with Flow(database, target, tables) as flow:
        flow.loaded()
    target.execute("DROP TABLE penstock.known, penstock.refused")
    there = "SELECT to_regclass('penstock.known')"
    wait_for_slot(database, flow.slot)
    with Flow(database, target, tables) as flow:
        until(lambda: flow.check() or target.execute(there) != [(None,)], 60)
        until(lambda: flow.check() or target.execute("SELECT 1 FROM penstock.known"), 60)
        assert target.execute("SELECT state, is_again FROM penstock.ledger") == [("live", False)]
        database.execute("ALTER TABLE t ALTER v TYPE text USING upper(v)")
        equal(flow, database, target)


def test_changes_after_the_snapshot_of_a_load_that_is_begun_anew_are_not_lost(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is begun anew between the snapshot and its plan, and forgets what was held."""
    database.execute(TABLE)
    real, plans = LedgerLoad.plan, list[int]()

    def plan(load: LedgerLoad, point: Any, ranges: Any) -> Any:
        plans.append(len(plans))
        if len(plans) == 1:
            database.execute("UPDATE t SET v = 'after the snapshot'")
            until(lambda: target.execute("SELECT held FROM penstock.ledger") == [(2,)], 60)
            flow.reload("t")
            flow.reload("t")
        return real(load, point, ranges)

    monkeypatch.setattr(LedgerLoad, "plan", plan)
    with Flow(database, target, {"t": {"create": True}}) as flow:
        flow.loaded()
        database.execute("INSERT INTO t VALUES (3, 'c')")
        equal(flow, database, target)
    assert len(plans) == 2


class SlowFeed(Feed):
    """Answers once it may, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may, self._error = threading.Event(), error

    def current_schemas(self) -> Sequence[TableSchema]:
        self.may.wait(60)
        if self._error is not None:
            raise self._error
        return ()


def test_a_source_that_cannot_be_asked_holds_up_no_other() -> None:
    slow, failing, good = SlowFeed(), SlowFeed(Unavailable("away", "postgres")), SlowFeed()
    failing.may.set(), good.may.set()
    feeds, compared = {"slow": slow, "failing": failing, "good": good}, list[str]()
    sources = {(name, PartitionId("s")): Bookmark() for name in feeds}
    with closing(Catalogues()) as catalogues:
        failed = dict[str, str]()

        def take() -> None:
            for (name, _), error in catalogues.take(
                sources, feeds, lambda source, *_: compared.append(source[0])
            ):
                failed[name] = str(error)

        until(lambda: take() or (compared and failed), 60)
        assert (compared, [*failed]) == (["good"], ["failing"])
        assert [*catalogues.tables] == [("good", "s")]
        slow.may.set()
        until(lambda: take() or "slow" in compared, 60)


# By the server's version.
RECIPES = {
    16: ("rows", "publication", "keys", "partitions", "names", "domains", "enums", "silent"),
    18: ("columns", "calculated", "generated", "odd", "citext"),
}


def filled(random: Random, line: str) -> str:
    number, new = str(random.randint(0, 5000)), str(random.randint(5000, 9000))
    return re.sub(r"\bNEW\b", new, re.sub("(?<![A-Z])K(?![A-Z])", number, line))


def played(source: Database, flow: Flow, kinds: Sequence[str]) -> None:
    """All recipes of a mirror's differential test, with changes in between."""
    random = Random(7)
    with psycopg.connect(source.url, autocommit=True) as writer:
        for kind in kinds:
            for recipe in KINDS_OF_A_MIRROR[kind].recipes:
                state = random.getstate()
                for line in recipe:
                    random.setstate(state)  # one number in all lines of a recipe
                    if line.startswith("--snapshot"):
                        flow._sink.reload(line.split()[1], None)
                        continue
                    writer.execute(filled(random, line).encode())
                for line in KINDS_OF_A_MIRROR[kind].writes:
                    with suppress(psycopg.errors.UniqueViolation):
                        writer.execute(filled(random, line).encode())


def texts(database: Database, table: str, columns: Sequence[str]) -> list[Any]:
    texts = ", ".join(f"{name}::text" for name in columns)
    return sorted(database.execute(f"SELECT {texts} FROM {table}"), key=str)


@pytest.mark.parametrize(
    ("version", "publication", "way"),
    [(16, "own", "running"), (16, "theirs", "stopped"),
     (18, "own", "stopped"), (18, "theirs", "running"),
     *thorough((16, "own", "stopped"), (16, "theirs", "running"),
               (18, "own", "running"), (18, "theirs", "stopped"))],
)  # fmt: skip
def test_what_a_mirror_is_tried_with_is_right_in_tables_too(
    version: int, publication: str, way: str, postgres_of: Callable[[int], Postgres]
) -> None:
    """Or the table waits, and says why. No statement of the application's is refused."""
    stopped = way == "stopped"
    server = postgres_of(version)
    known = "SELECT 1 FROM pg_available_extensions WHERE name = %s"
    recipes = [
        name for name in RECIPES[version]
        if not (needed := KINDS_OF_A_MIRROR[name].extension) or server.execute(known, [needed])
    ]  # fmt: skip
    backend = {"publication": "p"} if publication == "theirs" else {}
    with server.database() as database, server.database() as target:
        database.execute(PRELUDE)
        for kind in recipes:
            database.execute(KINDS_OF_A_MIRROR[kind].create)
        listed = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'p' ORDER BY 1"
        names = [name for (name,) in database.execute(listed)]
        tables = {name: {"create": True} for name in names}
        with Flow(database, target, tables, **backend) as flow:
            flow.loaded()
            if not stopped:
                played(database, flow, recipes)
                equal_or_waiting(flow, database, target, names)
        if stopped:
            wait_for_slot(database, flow.slot)
            played(database, flow, recipes)
            with Flow(database, target, tables, **backend) as flow:
                equal_or_waiting(flow, database, target, names)


COLUMNS = (
    "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
)


def equal_or_waiting(flow: Flow, source: Database, target: Database, names: Sequence[str]) -> None:
    """Waits until each table is live, and as its source; or it waits until somebody loads it anew,
    where columns had names or values that no change tells."""

    def wrong() -> Iterator[Any]:
        flow.check()
        query = "SELECT \"table\", state, detail FROM penstock.ledger WHERE state <> 'live'"
        states = target.execute(query)
        yield from (each for each in states if "`penstock reload" not in each[2])
        for name in {*names} - {each[0] for each in states}:
            quoted = f'"{name}"'
            columns = [column for (column,) in source.execute(COLUMNS, [quoted])]
            try:
                there = texts(target, quoted, columns)
            except psycopg.errors.UndefinedColumn as error:
                there = [str(error)]
            if (here := texts(source, quoted, columns)) != there:
                lacks = [one for one in here if one not in there]
                yield name, lacks[:5], [one for one in there if one not in here][:5]

    until(lambda: next(wrong(), None) is None, 90, problem=lambda: [*wrong()])
