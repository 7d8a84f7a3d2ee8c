"""Lines become versions of rows in PostgreSQL, on a real server."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations, count, pairwise
from random import Random
from typing import Any

import psycopg
import pytest

from penstock.model.errors import Rejected
from penstock.tables.history import HistoryColumns, StagedHistory, open_index
from penstock.tables.lines import NULL, UNSENT, LineChange, RelationColumn, SourceRelation
from penstock.tables.staged import RowMapping
from penstock.tables.staging import SESSION, find_destination, set_session
from tests.servers import Database, Postgres

ITEM = SourceRelation(
    schema="public", table="item",
    columns=(
        RelationColumn("name", "text"), RelationColumn("id", "integer", is_key=True),
        RelationColumn("large", "text"),
    ),
)  # fmt: skip
PERIODS = HistoryColumns(end="kvsz_%end")
CREATE = """
CREATE TABLE "Target" (id int, name text, large text, sid text, kvsz_start timestamptz,
                       "kvsz_%end" timestamptz, kvsz_deleted boolean,
                       PRIMARY KEY (sid, id, kvsz_start));
CREATE UNIQUE INDEX ON "Target" (sid, id) WHERE "kvsz_%end" = '9999-01-01Z';
"""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)

Changes = list[LineChange]


def opened(url: str) -> Any:
    connection = psycopg.connect(url, autocommit=True)
    set_session(connection, SESSION | {"TimeZone": "UTC"})
    return connection


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    with opened(database.url) as found:
        yield found


def staged(connection: Any, sid: str | None = "a'\\", number: int = 0, **mapping: Any) -> Any:
    found = find_destination(connection, "public", "Target")
    assert found is not None
    table = StagedHistory(ITEM, found, RowMapping(sid=sid, **mapping), number, PERIODS)
    table.make(connection.cursor())
    return table


def apply(connection: Any, table: StagedHistory, *batches: Sequence[Changes]) -> None:
    """Each batch, of several transactions, is a transaction of the target."""
    for batch in batches:
        with connection.transaction():
            steps = table.plan([one for changes in batch for one in changes])
            table.apply(connection.cursor(), steps)


def transaction(number: int, at: float, *texts: str) -> Changes:
    """`INSERT 1 name`, `UPDATE 1>2 name -` (the value of `large` not sent), `DELETE 1`."""
    found = []
    for text in texts:
        operation, keys, name, large = _parts(text)
        old, _, key = keys.rpartition(">")
        row = None
        if operation in ("INSERT", "UPDATE", "READ"):
            row = f"{name}\t{key}\t{UNSENT if large == '-' else large}"
        found.append(LineChange(
            operation, key or None, f"{UNSENT}\t{old}\t{UNSENT}" if old else None, row,
            large == "-", round((EPOCH.timestamp() + at) * 1e6), f"{number:08X}",
        ))  # fmt: skip
    return found


def _parts(text: str) -> list[str]:
    parts = text.split(" ")
    return [*parts, *["", "", "", "x"][len(parts) :]]


def shown(at: datetime) -> str:
    """Seconds since the epoch, and microseconds: `10`, `10+1`."""
    if at in (FIRST, LAST):
        return "first" if at == FIRST else "last"
    since = at - EPOCH
    more = f"+{since.microseconds}" if since.microseconds else ""
    return f"{since.days * 86400 + since.seconds}{more}"


def versions(connection: Any, columns: str = "id, name, large") -> list[str]:
    rows = connection.execute(
        f'SELECT kvsz_start, "kvsz_%end", kvsz_deleted, {columns} FROM "Target"'
        " ORDER BY id, sid, kvsz_start".encode()
    )
    return [
        f"{' '.join(map(str, row))} {shown(start)}..{shown(end)}{' deleted' * deleted}"
        for start, end, deleted, *row in rows
    ]


CASES: dict[str, tuple[list[tuple[float, str]], list[str]]] = {
    "insert": ([(1, "INSERT 1 a")], ["1 a x first..last"]),
    "update": (
        [(1, "INSERT 1 a"), (2, "UPDATE 1 b y")],
        ["1 a x first..2", "1 b y 2..last"],
    ),
    "other keys stay": (
        [(1, "INSERT 1 a,INSERT 2 b"), (2, "UPDATE 1 c"), (3, "DELETE 1")],
        ["1 a x first..2", "1 c x 2..3 deleted", "2 b x first..last"],
    ),
    "two states in a transaction are one": (
        [(1, "INSERT 1 a,UPDATE 1 b"), (2, "UPDATE 1 c,UPDATE 1 d")],
        ["1 b x first..2", "1 d x 2..last"],
    ),
    "delete": ([(1, "INSERT 1 a"), (2, "DELETE 1")], ["1 a x first..2 deleted"]),
    "insert after a deletion": (
        [(1, "INSERT 1 a"), (2, "DELETE 1"), (3, "INSERT 1 b"), (4, "DELETE 1")],
        ["1 a x first..2 deleted", "1 b x 3..4 deleted"],
    ),
    "one moment three times": (
        [(1, "INSERT 1 a"), (2, "UPDATE 1 b"), (2, "UPDATE 1 c"), (2, "UPDATE 1 d")],
        ["1 a x first..2", "1 b x 2..2+1", "1 c x 2+1..2+2", "1 d x 2+2..last"],
    ),
    "the clock goes back": (
        [(5, "INSERT 1 a"), (4, "UPDATE 1 b"), (3, "UPDATE 1 c"), (6, "UPDATE 1 d")],
        ["1 a x first..4", "1 b x 4..4+1", "1 c x 4+1..6", "1 d x 6..last"],
    ),
    "insert and delete in a transaction": (
        [(1, "INSERT 1 a,DELETE 1"), (1, "INSERT 1 b"), (2, "DELETE 1,INSERT 1 c,DELETE 1")],
        ["1 b x first..2 deleted"],
    ),
    "key change": (
        [(1, "INSERT 1 a y"), (2, "UPDATE 1>2 b -"), (3, "UPDATE 2 c -")],
        ["1 a y first..2 deleted", "2 b y first..3", "2 c y 3..last"],
    ),
    "keys swap": (
        [(1, "INSERT 1 a y,INSERT 2 b z"), (2, "UPDATE 1>3 a -,UPDATE 2>1 b -,UPDATE 3>2 a -")],
        ["1 a y first..2", "1 b z 2..last", "2 b z first..2", "2 a y 2..last"],
    ),
    "a row that is not there": (
        [(1, "UPDATE 1 a"), (2, "DELETE 2"), (3, "INSERT 2 b")],
        ["1 a x first..last", "2 b x first..last"],
    ),
    "delete and insert in one moment": (
        [(1, "INSERT 1 a"), (2, "DELETE 1"), (2, "INSERT 1 b")],
        ["1 a x first..2 deleted", "1 b x 2+1..last"],
    ),
    "delete and insert in one transaction": (
        [(1, "INSERT 1 a"), (2, "DELETE 1,INSERT 1 b")],
        ["1 a x first..2", "1 b x 2..last"],
    ),
    "truncate": (
        [(1, "INSERT 1 a,INSERT 2 b,INSERT 3 c"), (2, "DELETE 3"),
         (3, "UPDATE 1 z,TRUNCATE,INSERT 2 d,INSERT 4 e"), (4, "INSERT 1 f")],
        ["1 a x first..3 deleted", "1 f x 4..last", "2 b x first..3", "2 d x 3..last",
         "3 c x first..2 deleted", "4 e x first..last"],
    ),
    "loaded rows": (
        [(8, "READ 1 a y"), (5, "UPDATE 1 b -")], ["1 a y first..5", "1 b y 5..last"],
    ),
    "a value that was not sent": (
        [(1, "INSERT 1 a y"), (2, "UPDATE 1 b -,UPDATE 1 c -"), (3, "UPDATE 1 d -")],
        ["1 a y first..2", "1 c y 2..3", "1 d y 3..last"],
    ),
}  # fmt: skip


def divided(found: Sequence[Changes]) -> Iterator[list[Sequence[Changes]]]:
    """Every way to divide transactions into batches."""
    inner = range(1, len(found))
    for size in range(len(found)):
        for cuts in combinations(inner, size):
            yield [found[start:stop] for start, stop in pairwise([0, *cuts, len(found)])]


@pytest.mark.parametrize("name", CASES)
def test_a_transaction_makes_a_version_of_each_key_however_batches_are_divided(
    connection: Any, name: str
) -> None:
    connection.execute(CREATE)
    transactions, expected = CASES[name]
    found = [
        transaction(number, at, *texts.split(","))
        for number, (at, texts) in enumerate(transactions)
    ]  # fmt: skip
    table = staged(connection)
    for batches in divided(found):
        connection.execute('TRUNCATE "Target"')
        connection.execute(
            """INSERT INTO "Target" VALUES (1, 'other', '', 'zz', '1900-01-01Z', '9999-01-01Z')"""
        )
        apply(connection, table, *batches)
        rows = connection.execute("""DELETE FROM "Target" WHERE sid = 'zz' RETURNING name, *""")
        assert [row[6] for row in rows] == [LAST], "a row of another source was changed"
        assert versions(connection) == expected, batches


def test_rows_leave_and_enter_a_filter_and_columns_are_computed(connection: Any) -> None:
    connection.execute(CREATE)
    computed = {"id": "id * 10", "name": "upper(name)", "large": "large || _operation"}
    for number, mapping in enumerate(({}, {"computed": computed})):
        connection.execute('TRUNCATE "Target"')
        table = staged(connection, number=number, filter="name <> 'no'", **mapping)
        changes = [
            with_meta(transaction(n, n, text))
            for n, text in enumerate((
                "INSERT 1 no", "UPDATE 1 yes y", "UPDATE 1 no", "UPDATE 1 yes y", "UPDATE 1 no",
                "DELETE 1", "INSERT 1 yes z",
            ))
        ]  # fmt: skip
        for batches in ([changes], [[one] for one in changes]):
            connection.execute('TRUNCATE "Target"')
            apply(connection, table, *batches)
            if mapping:
                assert versions(connection) == [
                    "10 YES yUPDATE first..2 deleted", "10 YES yUPDATE 3..4 deleted",
                    "10 YES zINSERT 6..last",
                ]  # fmt: skip
            else:
                assert versions(connection) == [
                    "1 yes y first..2 deleted", "1 yes y 3..4 deleted", "1 yes z 6..last",
                ]  # fmt: skip


def with_meta(changes: Changes) -> Changes:
    return [
        one._replace(
            before=one.before and f"{UNSENT}\t{UNSENT}\t{one.before}",
            after=one.after and f"{one.operation}\t{NULL}\t{one.after}",
        )
        for one in changes
    ]


def test_a_value_that_was_not_sent_comes_from_the_column_that_has_it(connection: Any) -> None:
    connection.execute(CREATE)
    table = staged(connection, computed={"id": "id", "name": "upper(name)", "large": '"large"'})
    found = [transaction(1, 1, "INSERT 1 a y"), transaction(2, 2, "UPDATE 1>2 b -")]
    apply(connection, table, *([with_meta(one)] for one in found))
    assert versions(connection) == ["1 A y first..2 deleted", "2 B y first..last"]


def test_keys_that_become_one_key_have_one_version_a_transaction(connection: Any) -> None:
    connection.execute(CREATE)
    computed = {"id": "id % 10", "name": "name"}
    table = staged(connection, computed=computed)
    found = [
        transaction(1, 1, "INSERT 1 a"), transaction(2, 2, "UPDATE 1>11 b"),
        transaction(3, 3, "UPDATE 11>2 c"),
    ]  # fmt: skip
    apply(connection, table, [with_meta(one) for one in found])
    assert versions(connection, "id, name") == [
        "1 a first..2", "1 b 2..3 deleted", "2 c first..last",
    ]  # fmt: skip


def test_a_value_that_was_not_sent_and_is_not_known_is_refused(connection: Any) -> None:
    connection.execute(CREATE)
    with pytest.raises(Rejected, match="was not sent"):
        apply(connection, staged(connection), [transaction(1, 1, "UPDATE 1 a -")])
    filtered = staged(connection, number=1, filter="name <> 'no'")
    apply(connection, filtered, [with_meta(transaction(1, 1, "UPDATE 1 no -"))])
    assert versions(connection) == []
    with pytest.raises(Rejected, match="was not sent"):
        apply(connection, filtered, [with_meta(transaction(2, 1, "UPDATE 1 yes -"))])


def test_a_target_of_one_source_needs_no_sid(connection: Any) -> None:
    connection.execute(CREATE)
    connection.execute('ALTER TABLE "Target" DROP sid, ADD PRIMARY KEY (id, kvsz_start)')
    table = staged(connection, sid=None)
    apply(connection, table, [transaction(1, 1, "INSERT 1 a", "INSERT 2 b")],
          [transaction(2, 2, "TRUNCATE", "INSERT 2 c")])  # fmt: skip
    rows = connection.execute('SELECT id, name, kvsz_deleted FROM "Target" ORDER BY id, kvsz_start')
    assert list(rows) == [(1, "a", True), (2, "b", False), (2, "c", False)]


def test_a_batch_costs_neither_the_table_nor_the_old_versions_of_its_keys(connection: Any) -> None:
    connection.execute(CREATE)
    connection.execute("""
        INSERT INTO "Target" SELECT n, 'a', 'b', 'a''\\', '1900-01-01Z', '9999-01-01Z', false
        FROM generate_series(2, 20000) n;
        INSERT INTO "Target" SELECT 1, 'a', 'b', 'a''\\', timestamptz '2001-01-01Z' + n * '1 s'::interval,
            CASE WHEN n = 20000 THEN timestamptz '9999-01-01Z' ELSE '2001-01-01Z' END, false
        FROM generate_series(1, 20000) n;
        ANALYZE "Target";
    """)  # noqa: E501
    table = staged(connection)
    before = _read(connection)
    texts = ("UPDATE 1 b -", "UPDATE 2>30000 c -", "DELETE 3", "INSERT 30001 e")
    apply(connection, table, [transaction(1, 1, *texts)])
    scans, tuples = (now - then for now, then in zip(_read(connection), before, strict=True))
    assert scans == 0, "the whole target was read"
    assert tuples < 30


def test_statistics_of_a_target_that_was_small_do_not_make_batches_slow(connection: Any) -> None:
    connection.execute(CREATE)
    connection.execute('ALTER TABLE "Target" SET (autovacuum_enabled = off)')
    table = staged(connection)
    apply(connection, table, [transaction(0, 0, "INSERT 1 a")])
    connection.execute('ANALYZE "Target"')
    for number in range(20):  # also as a prepared statement
        keys = range(2 + number * 200, 202 + number * 200)
        apply(
            connection, table, [transaction(number, number, *(f"INSERT {key} a" for key in keys))]
        )
    before = _read(connection)
    texts = [f"UPDATE {key} b" for key in range(1, 201)]
    apply(connection, table, [transaction(30, 30, *texts)])
    scans, tuples = (now - then for now, then in zip(_read(connection), before, strict=True))
    assert scans == 0, "the whole target was read"
    assert tuples < 1000


def _read(connection: Any) -> tuple[int, int]:
    """Sequential scans of the target, and its rows that were fetched by an index."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    scans, tuples = connection.execute(
        "SELECT pg_stat_get_numscans(t), (SELECT sum(pg_stat_get_tuples_returned(indexrelid))"
        " FROM pg_index WHERE indrelid = t) FROM (SELECT '\"Target\"'::regclass AS t) AS _"
    ).fetchone()
    return scans, int(tuples)


def test_the_index_of_open_versions_is_found(connection: Any) -> None:
    connection.execute(CREATE)
    assert staged(connection).has_open_index(connection)
    connection.execute('DROP INDEX "Target_sid_id_idx"')
    assert not staged(connection).has_open_index(connection)
    connection.execute(open_index("public", "Target", ["sid", "id"], PERIODS))
    assert staged(connection).has_open_index(connection)


class Log:
    """What triggers at a source would keep: the row of each key (None: there is none) after each
    transaction that changed it; and the changes, as lines."""

    def __init__(self, random: Random, sid: str, *, has_filter: bool) -> None:
        self.sid, self._random, self._has_filter = sid, random, has_filter
        self.rows: dict[int, tuple[str, str]] = {}
        self.history: dict[int, list[list[Any]]] = {}
        self._last: dict[int, datetime] = {}
        self._clock = 100
        self._numbers = count(1)

    def transaction(self) -> Changes:
        """A transaction of a few statements; its changes."""
        random, before = self._random, dict(self.rows)
        self._clock += random.choice([0, 0, 1, 5, -3])
        touched: set[int] = set()
        texts = []
        for _ in range(random.randint(1, 6)):
            texts.append(self._statement(before, touched))
        for key in touched | (before.keys() - self.rows.keys()):
            self._note(key, self._kept(self.rows.get(key)))
        return transaction(next(self._numbers), self._clock, *texts)

    def _statement(self, before: dict[int, tuple[str, str]], touched: set[int]) -> str:
        random, rows = self._random, self.rows
        name, large = random.choice(["a", "b", "no"]), random.choice(["x", "y", "z"])
        key, new = random.randint(1, 12), random.randint(1, 12)
        if random.random() < 0.02:
            rows.clear()
            return "TRUNCATE"
        touched.add(key)
        if key not in rows:
            rows[key] = name, large
            return f"INSERT {key} {name} {large}"
        if random.random() < 0.25:
            del rows[key]
            return f"DELETE {key}"
        was = rows.pop(key)
        # A row that was outside of the filter has no values in the target.
        is_known = not self._has_filter or (was[0] != "no" and before.get(key, ("no",))[0] != "no")
        sent = large
        if random.random() < 0.6 and is_known:
            large, sent = was[1], "-"
        moves = new not in rows and new != key and random.random() < 0.3
        now = new if moves else key
        touched.add(now)
        rows[now] = name, large
        return f"UPDATE {f'{key}>{new}' if moves else key} {name} {sent}"

    def _kept(self, row: tuple[str, str] | None) -> tuple[str, str] | None:
        return None if self._has_filter and row is not None and row[0] == "no" else row

    def _note(self, key: int, row: tuple[str, str] | None) -> None:
        history = self.history.setdefault(key, [])
        is_open = bool(history) and history[-1][2] == LAST
        if row is None and not is_open:
            return
        at = EPOCH + timedelta(seconds=self._clock)
        at = max(at, self._last[key] + TICK) if history else FIRST
        self._last[key] = at
        if is_open:
            history[-1][2:] = [at, row is None]
        if row is not None:
            history.append([row, at, LAST, False])

    def versions(self) -> list[tuple[Any, ...]]:
        return [
            (self.sid, key, *row, start, end, deleted)
            for key, history in self.history.items() for row, start, end, deleted in history
        ]  # fmt: skip


@pytest.mark.parametrize("has_filter", [False, True], ids=["all", "filter"])
@pytest.mark.parametrize(("version", "seed"), [(16, 1), (16, 2), (16, 3), (18, 4)])
def test_random_transactions_in_random_batches_make_the_versions_of_a_log(
    postgres_of: Callable[[int], Postgres], version: int, seed: int, has_filter: bool
) -> None:
    random = Random(seed)
    logs = [Log(random, sid, has_filter=has_filter) for sid in ("one", "two")]
    with postgres_of(version).database() as database, opened(database.url) as connection:
        connection.execute(CREATE)
        mapping = {"filter": "name <> 'no'"} if has_filter else {}
        tables = [staged(connection, log.sid, number, **mapping) for number, log in enumerate(logs)]
        for _ in range(80):
            source = random.randrange(2)
            batch = [logs[source].transaction() for _ in range(random.choice([1, 1, 3, 20]))]
            if has_filter:
                batch = [with_meta(changes) for changes in batch]
            apply(connection, tables[source], batch)
        found = list(connection.execute(
            'SELECT sid, id, name, large, kvsz_start, "kvsz_%end", kvsz_deleted FROM "Target"'
        ))  # fmt: skip
        assert sorted(found) == sorted([*logs[0].versions(), *logs[1].versions()])
        overlapping = connection.execute(
            'SELECT count(*) FROM "Target" a JOIN "Target" b USING (sid, id) WHERE a.ctid <> b.ctid'
            ' AND tstzrange(a.kvsz_start, a."kvsz_%end") && tstzrange(b.kvsz_start, b."kvsz_%end")'
        )
        assert overlapping.fetchone() == (0,)
        assert len(found) > 500
