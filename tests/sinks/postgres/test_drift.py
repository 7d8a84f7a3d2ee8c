"""Sources whose columns change while their rows do, read from a real slot; without Spark. Which
change comes to which statement is a table in tables/test_drift.py."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson
import pytest

from penstock.feeds import SnapshotWait
from penstock.model.errors import SettingsError
from penstock.model.position import PartitionId
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.snapshots.loading import SnapshotPoint
from tests.chaos.shops import Entry, versions
from tests.conftest import FAST
from tests.feeds.postgres.reading import Reader
from tests.progress import Noted
from tests.servers import Database, Postgres

SID = "CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))"


class Flow:
    """The table `items` of a source, and what a destination has of it."""

    def __init__(self, source: Database, target: Database, **options: Any) -> None:
        self.source, self.target = source, target
        self.reader = Reader(source, tables=("public.items",), streaming=False)
        self.reader.feed.number_columns()
        self._decoder = self.reader.feed.decoder("text")
        self.sink = self.sink_of(**options)
        self._marks = 0

    def sink_of(self, **options: Any) -> PostgresSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        return PostgresSink(PostgresSinkSettings(connection=self.target.url, map=entries))

    def begin(self, table: str = "CREATE TABLE items (id int PRIMARY KEY, name text)") -> "Flow":
        """Makes table and slot; changes that are there are loaded."""
        self.source.execute(table)
        self.reader.prepare()
        self.sink.enter("default", PartitionId(self.reader.slot), initial=True)
        self.load()
        return self

    def load(self) -> None:
        """As the service does it."""
        (load,) = self.sink.unfinished()
        wait = SnapshotWait(patience=30, is_stopped=lambda: False)
        with self.reader.feed.snapshot("public", "items", {}, wait) as taken:
            point = SnapshotPoint(taken, "")
            parts = load.begin(point)
            parts = load.plan(point, taken.plan(1000, 2**20)) if parts is None else parts
            columns, source = load.writer(point), taken.source
            with (
                columns as writer,
                source.lines(writer.columns, writer.prefix, lambda: False) as lines,
            ):
                for part in parts:
                    writer.write(part, [piece for one in part[1] for piece, _ in lines(one)])
        assert load.finish([("public", "items")])
        load.settle("stop")

    def flow(self, *statements: str) -> None:
        """Executes statements at the source, and applies all changes until then."""
        for statement in statements:
            self.source.execute(statement)
        self._marks += 1
        pages, mark = list[Any](), f"mark {self._marks}"
        self.source.execute("SELECT pg_logical_emit_message(true, %s, '')", [mark])
        while not any(mark.encode() in page.payload for page in pages):
            found = list(self.reader.following.read(1.0))
            self.reader.pages += found
            pages += found
        batches = [batch for page in pages for batch in self._decoder.decode(page)]
        self.sink.write(iter(batches), Noted())

    @property
    def state(self) -> tuple[str, str]:
        (found,) = self.target.execute("SELECT state, detail FROM penstock.ledger")
        return found[0], found[1]

    def settle(self) -> None:
        """What the service tries now and then."""
        (load,) = self.sink.unfinished()
        load.settle("stop")

    def rows(self, where: str = "") -> tuple[list[Any], list[Any]]:
        """The source's columns there, and at the destination, as text."""
        names = self.source.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'items'::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum"
        )
        columns = ", ".join(f"{name}::text" for (name,) in names)
        query = f"SELECT {columns} FROM items {{}} ORDER BY items.id"
        return self.source.execute(query.format("")), self.target.execute(query.format(where))

    def assert_equal(self, where: str = "") -> None:
        assert self.state == ("live", "")
        source, target = self.rows(where)
        assert target == source


FlowOf = Callable[..., Flow]


@pytest.fixture
def flow_of(database: Database, postgres: Postgres) -> Iterator[FlowOf]:
    """`flow_of(**options of the table items)`."""
    with postgres.database() as target:
        made: list[Flow] = []

        def make(**options: Any) -> Flow:
            made.append(Flow(database, target, **options))
            return made[-1]

        yield make
        for each in made:
            each.reader.close()


def columns_of(database: Database) -> dict[str, str]:
    return dict(
        database.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'items'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    )


@pytest.mark.parametrize("kind", ["clone", "append", "history"])
def test_a_target_that_penstock_made_follows_its_source(flow_of: FlowOf, kind: str) -> None:
    flow = flow_of(create=True, type=kind).begin(
        "CREATE TABLE items (id int PRIMARY KEY, name varchar(3), n smallint);"
        "INSERT INTO items VALUES (1, 'one', 1), (2, 'two', 2)"
    )
    current = "WHERE kvsz_end = '9999-01-01Z'" if kind == "history" else ""
    flow.flow("ALTER TABLE items ADD COLUMN x int", "UPDATE items SET x = 7 WHERE id = 1")
    flow.assert_equal(current)
    flow.flow(
        "ALTER TABLE items RENAME name TO title", "UPDATE items SET title = 'uno' WHERE id = 1"
    )
    flow.assert_equal(current)
    flow.flow(
        "ALTER TABLE items ALTER title TYPE text, ALTER n TYPE int, ALTER x TYPE bigint",
        f"UPDATE items SET title = 'a longer one', n = 99999, x = {2**40} WHERE id = 1",
    )
    flow.assert_equal(current)
    assert columns_of(flow.target).items() >= {
        "title": "text", "n": "integer", "x": "bigint"
    }.items()  # fmt: skip
    flow.flow("ALTER TABLE items ADD y text DEFAULT 'all have it'", "INSERT INTO items VALUES (3)")
    flow.assert_equal(current)
    flow.flow("ALTER TABLE items DROP title", "INSERT INTO items VALUES (4)")
    flow.assert_equal(current)
    old = f"SELECT title FROM items {current} ORDER BY id"
    if not current:
        assert flow.target.execute(old) == [("a longer one",), ("two",), (None,), (None,)]


def test_a_target_that_was_made_before_follows_its_source(flow_of: FlowOf) -> None:
    flow = flow_of()
    flow.target.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    flow.target.execute("COMMENT ON TABLE items IS 'made by penstock'")
    flow.begin()
    flow.target.execute("COMMENT ON TABLE items IS 'All items.'")
    flow.flow("ALTER TABLE items ADD x int", "INSERT INTO items VALUES (1, 'one', 1)")
    flow.assert_equal()


def test_old_rows_of_other_sources_get_no_value(flow_of: FlowOf) -> None:
    flow = flow_of(schema_changes="add")
    flow.target.execute(SID)
    flow.target.execute("INSERT INTO items VALUES ('other', 1, 'theirs')")
    flow.begin("CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1)")
    flow.flow("ALTER TABLE items ADD x int DEFAULT 5", "INSERT INTO items VALUES (2)")
    flow.assert_equal("WHERE sid <> 'other'")
    assert flow.target.execute("SELECT x FROM items WHERE sid = 'other'") == [(None,)]


def test_a_name_that_one_source_gives_a_column_is_that_of_all(flow_of: FlowOf) -> None:
    flow = flow_of(schema_changes="add")
    flow.target.execute(SID)
    flow.begin()
    columns = flow.target.execute("SELECT columns FROM penstock.ledger")[0][0]
    flow.target.execute(
        "INSERT INTO penstock.ledger (backend, sid, \"schema\", \"table\", target, state, columns)"
        " VALUES ('default', 'other', 'public', 'items', 'public.items', 'live', %s)", [columns]
    )  # fmt: skip
    flow.flow("ALTER TABLE items RENAME name TO title", "INSERT INTO items VALUES (1, 'one')")
    flow.target.execute("DELETE FROM penstock.ledger WHERE sid <> 'other'")
    flow.target.execute("UPDATE penstock.ledger SET sid = %s", [flow.reader.slot])
    # The other source has not given it that name yet.
    flow.flow("ALTER TABLE items RENAME title TO name", "INSERT INTO items VALUES (2, 'two')")
    assert flow.state == ("live", "")
    assert flow.target.execute("SELECT id, title FROM items") == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("policy", ["ignore", None])
def test_what_the_target_lacks_is_left_out_and_listed(flow_of: FlowOf, policy: str | None) -> None:
    flow = flow_of(schema_changes=policy)
    flow.target.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    flow.begin()
    flow.flow("ALTER TABLE items ADD x int", "INSERT INTO items VALUES (1, 'one', 1)")
    assert flow.state == ("live", "")
    assert flow.target.execute("SELECT * FROM items") == [(1, "one")]
    ((ignored,),) = flow.target.execute("SELECT columns::jsonb -> 'ignored' FROM penstock.ledger")
    assert ignored == ["x"]
    # Rows of before would lack its values.
    flow.target.execute("ALTER TABLE items ADD x int")
    flow.flow("ALTER TABLE items ADD y int", "INSERT INTO items VALUES (2, 'two', 2)")
    assert flow.state[0] == "waiting"
    assert "x was left out so far" in flow.state[1]
    flow.sink.reload("items", None)
    flow.load()
    assert flow.target.execute("SELECT * FROM items") == [(1, "one", 1), (2, "two", 2)]


@pytest.mark.parametrize("policy", ["ignore", "ask"])
def test_another_name_makes_the_table_wait_for_the_same_at_the_target(
    flow_of: FlowOf, policy: str
) -> None:
    flow = flow_of(schema_changes=policy)
    flow.target.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    flow.begin()
    flow.flow("INSERT INTO items VALUES (1, 'one')")
    flow.flow("ALTER TABLE items RENAME name TO title", "UPDATE items SET title = 'uno'")
    state, detail = flow.state
    statement = 'ALTER TABLE "public"."items" RENAME COLUMN "name" TO "title";'
    assert (state, statement in detail) == ("waiting", True)
    flow.flow("INSERT INTO items VALUES (2, 'two')")
    flow.target.execute(statement)
    flow.settle()
    flow.assert_equal()


def test_who_is_asked_is_told_the_statements_and_nothing_is_lost(flow_of: FlowOf) -> None:
    flow = flow_of(schema_changes="ask")
    flow.target.execute("CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL)")
    flow.begin()
    flow.flow("INSERT INTO items VALUES (1, 'one'), (2, 'two')")
    flow.flow(
        "ALTER TABLE items ADD x bigint DEFAULT 5", "UPDATE items SET x = 6 WHERE id = 1",
        "ALTER TABLE items DROP name", "INSERT INTO items VALUES (3)",
    )  # fmt: skip
    for reason in ("x is new", "name was dropped"):
        state, detail = flow.state
        assert (state, reason in detail) == ("waiting", True)
        flow.sink.resume_table(None, "public.items")
        with pytest.raises(SettingsError, match=reason):
            flow.settle()
        for statement in detail.partition("(")[2].removesuffix(")").split(";")[:-1]:
            flow.target.execute(statement)
        if reason == "x is new":
            with pytest.raises(SettingsError) as raised:
                flow.settle()
            flow.sink.unfinished()[0].wait(raised.value)
    flow.settle()
    flow.assert_equal()


@pytest.mark.parametrize("vanished", ["DROP TABLE items", "ALTER TABLE items DROP name"])
def test_what_vanishes_at_the_target_stops_its_table(flow_of: FlowOf, vanished: str) -> None:
    flow = flow_of(create=True).begin()
    flow.flow("INSERT INTO items VALUES (1, 'one')")
    flow.target.execute(vanished)
    flow.flow("INSERT INTO items VALUES (2, 'two')")
    assert flow.state[0] == "waiting"
    assert "penstock reload" in flow.state[1]
    flow.sink.reload("items", None)
    flow.load()
    flow.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE items ADD x float DEFAULT random()",
        "ALTER TABLE items ADD x float DEFAULT random(); ALTER TABLE items ALTER x DROP DEFAULT",
        "ALTER TABLE items DROP name; ALTER TABLE items ADD name text",
        "ALTER TABLE items ALTER name TYPE int USING length(name)",
    ],
)
def test_what_no_change_tells_makes_the_table_wait(flow_of: FlowOf, statements: str) -> None:
    flow = flow_of(create=True).begin()
    flow.flow("INSERT INTO items VALUES (1, 'one')")
    flow.flow(statements, "INSERT INTO items (id) VALUES (2)")
    assert flow.state[0] == "waiting"
    assert "penstock tables resume FILE public.items" in flow.state[1]
    with pytest.raises(SettingsError):
        flow.settle()
    flow.sink.resume_table(None, "public.items")
    flow.settle()
    assert flow.state == ("live", "")


TYPES = {
    "int": ("bigint",), "varchar(3)": ("varchar(9)", "text"), "numeric(6,2)": ("numeric(9,4)",),
    "text": (), "bigint": (), "varchar(9)": ("text",), "numeric(9,4)": ("numeric",), "numeric": (),
}  # fmt: skip


class RandomSource:
    """Alters the table `items`, and its rows."""

    def __init__(self, seed: int, *, reuses: bool = True) -> None:
        self._random, self._reuses = random.Random(seed), reuses
        self.columns: dict[str, str] = {"name": "text"}
        self._free, self._made = list[str](), 0

    def statements(self, count: int) -> list[str]:
        return [self._rows() if self._random.random() < 0.6 else self._alter()
                for _ in range(count)]  # fmt: skip

    def _name(self) -> str:
        if self._reuses and self._free and self._random.random() < 0.3:
            return self._free.pop(self._random.randrange(len(self._free)))
        self._made += 1
        return f"c{self._made}"

    def _value(self, kind: str) -> str:
        choices = {"int": "7", "bigint": str(2**40), "text": "'a text'", "varchar(3)": "'abc'",
                   "varchar(9)": "'abcdefghi'", "numeric(6,2)": "12.5", "numeric(9,4)": "1.2345",
                   "numeric": "1.234567"}  # fmt: skip
        return self._random.choice([choices[kind], choices[kind], "NULL"])

    def _rows(self) -> str:
        id, choose = self._random.randint(1, 30), self._random.choice
        sets = ", ".join(f"{name} = {self._value(kind)}" for name, kind in self.columns.items()
                         if self._random.random() < 0.7)  # fmt: skip
        match choose(("insert", "insert", "update", "update", "move", "delete")):
            case "insert":
                return f"INSERT INTO items (id) VALUES ({id}) ON CONFLICT DO NOTHING"
            case "update":
                return f"UPDATE items SET {sets or 'id = id'} WHERE id <= {id}"
            case "move":
                return f"UPDATE items SET id = id + 100 * id WHERE id = {id} AND NOT EXISTS (" \
                       f"SELECT FROM items WHERE id = {101 * id})"  # fmt: skip
            case _:
                return f"DELETE FROM items WHERE id = {id}"

    def _alter(self) -> str:
        choose, names = self._random.choice, [*self.columns]
        action = choose(("add", "add", "rename", "drop", "widen"))
        if action == "add" or not names:
            name, kind = self._name(), choose(("int", "varchar(3)", "numeric(6,2)", "text"))
            self.columns[name] = kind
            default = choose(("", "", f"DEFAULT {self._value(kind)}"))
            return f"ALTER TABLE items ADD {name} {kind} {default}"
        name = choose(names)
        kind = self.columns[name]
        if action == "widen" and TYPES[kind]:
            self.columns[name] = choose(TYPES[kind])
            return f"ALTER TABLE items ALTER {name} TYPE {self.columns[name]}"
        del self.columns[name]
        self._free.append(name)
        if action == "drop":
            return f"ALTER TABLE items DROP {name}"
        new = self._name()
        self.columns[new] = kind
        return f"ALTER TABLE items RENAME {name} TO {new}" if new != name else "SELECT"


@pytest.mark.parametrize("kind", ["clone", "history", "sid"])
@pytest.mark.parametrize("lag", [1, pytest.param(4, marks=pytest.mark.thorough), 12])
def test_any_changes_of_columns_beside_changes_of_rows_come_out_as_at_the_source(
    flow_of: FlowOf, kind: str, lag: int
) -> None:
    """However far the catalogue is ahead; where nothing can be told, the table waits."""
    options: dict[str, Any] = {"schema_changes": "add"}
    flow = flow_of(**options) if kind == "sid" else flow_of(create=True, type=kind)
    if kind == "sid":
        flow.target.execute(SID)
    flow.begin()
    current = "WHERE kvsz_end = '9999-01-01Z'" if kind == "history" else ""
    made, waits = RandomSource(lag), 0
    for round in range(60 // lag):
        # The last one has the columns of now.
        flow.flow(*made.statements(lag), f"INSERT INTO items (id) VALUES ({10_000 + round})")
        state, detail = flow.state
        if state == "waiting":
            assert "penstock reload" in detail, detail
            waits += 1
            flow.sink.reload("items", None)
            if kind != "clone":  # columns that have rows of others keep their types
                flow.target.execute("DROP TABLE items")
                flow.target.execute(SID if kind == "sid" else "")
            flow.load()
        flow.assert_equal(current)
    assert waits < 6


# What a trigger saw of each change, by the numbers of columns.
LOG = """
CREATE TABLE log (number bigserial PRIMARY KEY, transaction xid8 DEFAULT pg_current_xact_id(),
                  old int, new int, line jsonb);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO log (old, new, line) VALUES (
    CASE WHEN TG_OP <> 'INSERT' THEN OLD.id END, CASE WHEN TG_OP <> 'DELETE' THEN NEW.id END,
    CASE WHEN TG_OP <> 'DELETE' THEN (
      SELECT jsonb_object_agg(attnum, to_jsonb(NEW) ->> attname) FROM pg_attribute
      WHERE attrelid = TG_RELID AND attnum > 1 AND NOT attisdropped) END);
  RETURN NULL; END $$;
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE TRIGGER keep AFTER INSERT OR UPDATE OR DELETE ON items
FOR EACH ROW EXECUTE FUNCTION keep();
"""
# What rows of before have in new columns; neither `old` nor `new`.
ADDED = """
INSERT INTO log (line) SELECT jsonb_object_agg(attnum, (attmissingval::text::text[])[1])
FROM pg_attribute WHERE attrelid = 'items'::regclass AND atthasmissing HAVING count(*) > 0
"""
LOGGED = """
SELECT transaction::text, pg_xact_commit_timestamp(transaction::xid), old, new, line, number
FROM log ORDER BY number
"""
NAMES = """
SELECT attnum::int, attname::text FROM pg_attribute
WHERE attrelid = 'items'::regclass AND attnum > 1 AND NOT attisdropped
"""


def plain(value: str | None) -> str | None:
    """The same for values that differ in their digits only."""
    is_number = value is not None and value.replace(".", "").isdigit()
    return str(Decimal(value or 0).normalize()) if is_number else value


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(each, marks=pytest.mark.thorough) for each in (2, 3))]
)
def test_a_history_is_its_source_s_log_whatever_becomes_of_the_columns(seed: int) -> None:
    with (
        Postgres(settings=FAST | {"track_commit_timestamp": True}) as server,
        server.database() as source, server.database() as target,
    ):  # fmt: skip
        flow = Flow(source, target, create=True, type="history").begin(LOG)
        made, names = RandomSource(seed, reuses=False), dict[int, str]()
        for number, statement in enumerate(made.statements(120)):
            if "ALTER" in statement:
                flow.flow()
            source.execute(statement)
            source.execute(ADDED)
            names |= dict(source.execute(NAMES))
            if "ALTER" in statement:  # each is seen alone: nothing has to wait
                flow.flow(f"INSERT INTO items (id) VALUES ({10_000 + number})")
        flow.flow()
        assert flow.state == ("live", "")
        flow.reader.close()
        added, logged = list[Any](), list[Any]()
        for transaction, at, old, new, line, number in source.execute(LOGGED):
            if (old, new) == (None, None):
                added.append((at, number, line))
            else:
                entry = Entry(old, new, orjson.dumps({**(line or {}), "number": number}).decode())
                logged.append((transaction, at, entry))
        transactions = [
            (at, [one[2] for one in same])
            for (_, at), same in groupby(logged, key=itemgetter(0, 1))
        ]
        there = {number: name for number, name in names.items() if name in columns_of(target)}
        assert len(there) > 3
        wanted = Counter[Any]()
        for version in versions({}, transactions):
            line = orjson.loads(version.line)
            for at, number, values in added:
                if line["number"] < number and version.end > at:
                    line = values | line
            cells = [plain(line.get(str(number))) for number in there]
            wanted[(version.id, *cells, *version[2:])] += 1
        columns = ", ".join(f"{name}::text" for name in there.values())
        query = f"SELECT id, {columns}, kvsz_start, kvsz_end, kvsz_deleted FROM items"
        found = Counter(
            (id, *map(plain, row[:-3]), *row[-3:]) for id, *row in target.execute(query)
        )
        assert (found - wanted, wanted - found) == (Counter(), Counter())
