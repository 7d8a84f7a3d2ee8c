"""Targets that foreign keys tie, immediate ones: what the source did comes out, and no row that is
right there is a dead letter. On real servers, without Spark."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from penstock.model.errors import SettingsError
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

# The children's names come first by name and by hash, or not.
PARENTS = "CREATE TABLE z_parent (id int PRIMARY KEY, v text)"
CHILDREN = "CREATE TABLE a_child (id int PRIMARY KEY, p int REFERENCES z_parent {0}, big text)"
DDL = f"{PARENTS}; {CHILDREN}"
BOTH: dict[str, Any] = {"z_parent": None, "a_child": None}
ROWS = "SELECT * FROM {} ORDER BY 1"


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


def letters(target: Database) -> list[tuple[Any, ...]]:
    return target.execute("SELECT letter::json->>'error' FROM penstock.dead_letter")


def come_out(flow: Flow, source: Database, target: Database, *tables: str) -> None:
    """Waits until the targets have the rows of the source, and all tables are live."""
    for table in tables:
        wanted = source.execute(ROWS.format(table))
        until(
            lambda t=table, w=wanted: flow.check() or target.execute(ROWS.format(t)) == w, 60,
            problem=lambda t=table: (
                flow.states(), letters(target), target.execute(ROWS.format(t))[:9],
            ),
        )  # fmt: skip
    flow.loaded()
    assert letters(target) == []


@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
def test_changes_of_tied_tables_come_out_in_their_order(
    database: Database, target: Database, action: str
) -> None:
    for each in (database, target):
        each.execute(DDL.format(action))
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        flow.loaded()
        with psycopg.connect(database.url, autocommit=True) as source:
            for n in range(1, 60):
                source.execute(f"INSERT INTO z_parent VALUES ({n}, 'v')".encode())
                source.execute(f"INSERT INTO a_child VALUES ({n}, {n}), ({n + 1000}, {n})".encode())
            for n in range(1, 20):  # to another parent, which is new, and theirs goes
                source.execute(f"INSERT INTO z_parent VALUES ({n + 100}, 'new')".encode())
                source.execute(f"UPDATE a_child SET p = {n + 100} WHERE p = {n}".encode())
                source.execute(f"DELETE FROM z_parent WHERE id = {n}".encode())
        if action:
            database.execute("DELETE FROM z_parent WHERE id BETWEEN 30 AND 40")
        database.execute(
            "BEGIN; DELETE FROM a_child WHERE p = 50; DELETE FROM z_parent WHERE id = 50;"
            " INSERT INTO z_parent VALUES (50, 'again'); INSERT INTO a_child VALUES (50, 50);"
            " COMMIT"
        )
        come_out(flow, database, target, "z_parent", "a_child")


def test_a_row_that_a_cascade_would_take_keeps_the_value_that_was_not_sent(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format("ON DELETE CASCADE"))
        each.execute("ALTER TABLE a_child ALTER big SET STORAGE EXTERNAL")
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (1), (2)")
        database.execute("INSERT INTO a_child VALUES (1, 1, repeat('x', 9000))")
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute(
            "BEGIN; UPDATE a_child SET p = 2; DELETE FROM z_parent WHERE id = 1; COMMIT"
        )
        come_out(flow, database, target, "z_parent", "a_child")


def test_a_key_that_others_refer_to_changes_with_them(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute(DDL.format("ON UPDATE CASCADE ON DELETE CASCADE"))
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (1), (2)")
        database.execute("INSERT INTO a_child VALUES (1, 1), (2, 2)")
        database.execute("UPDATE z_parent SET id = id + 10")
        come_out(flow, database, target, "z_parent", "a_child")


def test_a_row_that_is_refused_takes_no_other_with_it(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    target.execute("ALTER TABLE z_parent ADD CHECK (v <> 'bad')")
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        flow.loaded()
        # The child of a row that is refused is an orphan; all else is right, in any order.
        database.execute(
            "BEGIN; INSERT INTO z_parent VALUES (1, 'good'), (2, 'bad');"
            " INSERT INTO a_child VALUES (1, 1), (2, 2); DELETE FROM a_child WHERE id = 1;"
            " INSERT INTO z_parent VALUES (3, 'good'); INSERT INTO a_child VALUES (3, 3), (1, 3);"
            " COMMIT"
        )
        until(
            lambda: flow.check() or len(letters(target)) == 2, 60, problem=lambda: letters(target)
        )
        assert target.execute(ROWS.format("z_parent")) == [(1, "good"), (3, "good")]
        assert target.execute("SELECT id, p FROM a_child ORDER BY 1") == [(1, 3), (3, 3)]


@pytest.mark.parametrize(
    "statement", ["TRUNCATE z_parent, a_child", "TRUNCATE a_child, z_parent",
                  "TRUNCATE z_parent CASCADE"],
)  # fmt: skip
def test_a_truncate_of_tied_tables_empties_all_of_them(
    database: Database, target: Database, statement: str
) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    with Flow(database, target, BOTH) as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (1); INSERT INTO a_child VALUES (1, 1)")
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute(statement)
        database.execute("INSERT INTO z_parent VALUES (5); INSERT INTO a_child VALUES (6, 5)")
        come_out(flow, database, target, "z_parent", "a_child")


def test_with_a_replica_role_a_truncate_empties_them_too(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    with Flow(database, target, BOTH, sink={"replica_role": True}) as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (1); INSERT INTO a_child VALUES (1, 1)")
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute("TRUNCATE z_parent CASCADE; INSERT INTO z_parent VALUES (5)")
        come_out(flow, database, target, "z_parent", "a_child")


def test_tables_are_loaded_after_those_that_they_refer_to(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    database.execute(
        "INSERT INTO z_parent SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 5000) n;"
        "INSERT INTO a_child SELECT n, 1 + n % 5000 FROM generate_series(1, 1000) n"
    )
    with Flow(database, target, BOTH) as flow:
        come_out(flow, database, target, "z_parent", "a_child")


@pytest.mark.parametrize("on_error", ["suspend", "dead-letter"])
def test_rows_of_a_table_that_refers_to_itself_are_loaded(
    database: Database, target: Database, on_error: str
) -> None:
    for each in (database, target):
        each.execute("CREATE TABLE nodes (id int PRIMARY KEY, up int)")
    database.execute("INSERT INTO nodes SELECT n, 601 - n FROM generate_series(1, 600) n")
    for each in (database, target):
        each.execute("ALTER TABLE nodes ADD FOREIGN KEY (up) REFERENCES nodes")
    parts = {"chunk_rows": 1}
    with Flow(database, target, {"nodes": None}, on_error=on_error, snapshot=parts) as flow:
        come_out(flow, database, target, "nodes")


@pytest.mark.parametrize("deferrable", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_tables_that_refer_to_each_other_follow(
    database: Database, target: Database, deferrable: str
) -> None:
    for each in (database, target):
        each.execute(
            "CREATE TABLE teams (id int PRIMARY KEY, head int);"
            "CREATE TABLE staff (id int PRIMARY KEY, team int NOT NULL REFERENCES teams);"
            f"ALTER TABLE teams ADD FOREIGN KEY (head) REFERENCES staff {deferrable}"
        )
    tables = {"teams": None, "staff": None}
    with Flow(database, target, tables, on_error="dead-letter") as flow:
        flow.loaded()
        for n in range(20):
            if deferrable:
                database.execute(
                    f"BEGIN; INSERT INTO teams VALUES ({n}, {n});"
                    f" INSERT INTO staff VALUES ({n}, {n}); COMMIT"
                )
            else:
                database.execute(
                    f"BEGIN; INSERT INTO teams VALUES ({n}); INSERT INTO staff VALUES ({n}, {n});"
                    f" UPDATE teams SET head = {n} WHERE id = {n}; COMMIT"
                )
        come_out(flow, database, target, "teams", "staff")


def test_a_table_that_others_refer_to_is_loaded_anew_with_them(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    database.execute("INSERT INTO z_parent VALUES (1), (2); INSERT INTO a_child VALUES (1, 1)")
    with Flow(database, target, BOTH) as flow:
        come_out(flow, database, target, "z_parent", "a_child")
        target.execute("INSERT INTO z_parent VALUES (9)")
        flow.reload("z_parent")
        come_out(flow, database, target, "z_parent", "a_child")


def test_rows_of_others_do_not_go_with_a_table_that_is_loaded_anew(
    database: Database, target: Database
) -> None:
    database.execute(PARENTS)
    target.execute(f"{PARENTS}; CREATE TABLE mine (p int REFERENCES z_parent ON DELETE CASCADE)")
    database.execute("INSERT INTO z_parent VALUES (1)")
    with Flow(database, target, {"z_parent": None}) as flow:
        flow.loaded()
        target.execute("INSERT INTO mine VALUES (1)")
        flow.reload("z_parent")
        until(lambda: flow.states()[0][0] == "waiting", 60, problem=flow.states)
        assert "rows of public.mine would go" in flow.states()[0][1]
        assert target.execute("SELECT * FROM mine") == [(1,)]


def test_what_refers_to_a_table_that_waits_waits_for_it(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format(""))
    target.execute("ALTER TABLE z_parent ADD CONSTRAINT small CHECK (id < 5)")
    with Flow(database, target, BOTH, on_error="suspend") as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (5); INSERT INTO a_child VALUES (1, 5)")
        both = {"suspended", "loading"}
        until(lambda: {state for state, _ in flow.states()} == both, 60, problem=flow.states)
        target.execute("ALTER TABLE z_parent DROP CONSTRAINT small")
        with suppress(SettingsError):  # the loader may have tried it again by now
            flow.resume("z_parent")
        come_out(flow, database, target, "z_parent", "a_child")


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    PERFORM pg_sleep(0.3); RETURN NEW; END$$;
CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON {} FOR EACH STATEMENT EXECUTE FUNCTION slow()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_foreign_key_that_is_added_is_noticed_where_it_refuses(
    database: Database, target: Database, workers: int
) -> None:
    """Its tables are of two workers, of which that of the parents is slow; or a commit has both."""
    for each in (database, target):
        each.execute(f"{PARENTS}; CREATE TABLE a_child (id int PRIMARY KEY, p int)")
    with Flow(database, target, BOTH, on_error="dead-letter", sink={"workers": workers}) as flow:
        flow.loaded()
        database.execute("INSERT INTO z_parent VALUES (1); INSERT INTO a_child VALUES (1, 1)")
        come_out(flow, database, target, "z_parent", "a_child")
        target.execute("ALTER TABLE a_child ADD FOREIGN KEY (p) REFERENCES z_parent")
        target.execute(SLOW.format("z_parent"))
        for n in range(2, 6):
            database.execute(
                f"INSERT INTO z_parent VALUES ({n}); INSERT INTO a_child VALUES ({n}, {n})"
            )
        come_out(flow, database, target, "z_parent", "a_child")


def test_a_foreign_key_that_cascades_is_noticed_before_it_refuses(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.tables.write._TIES", 0.0)
    for each in (database, target):
        each.execute(f"{PARENTS}; CREATE TABLE a_child (id int PRIMARY KEY, p int, big text)")
        each.execute("ALTER TABLE a_child ALTER big SET STORAGE EXTERNAL")
    database.execute("INSERT INTO z_parent VALUES (1), (2), (3)")
    database.execute("INSERT INTO a_child VALUES (1, 1, repeat('x', 9000))")
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        come_out(flow, database, target, "z_parent", "a_child")
        target.execute(
            "ALTER TABLE a_child ADD FOREIGN KEY (p) REFERENCES z_parent ON DELETE CASCADE"
        )
        target.execute(SLOW.format("a_child"))
        database.execute("UPDATE a_child SET p = 2; DELETE FROM z_parent WHERE id = 1")
        come_out(flow, database, target, "z_parent", "a_child")


def test_a_transaction_that_is_larger_than_a_commit_comes_out_where_rows_go_with_others(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format("ON DELETE CASCADE"))
    with Flow(database, target, BOTH, on_error="dead-letter", rows=100) as flow:
        flow.loaded()
        database.execute(
            "BEGIN; INSERT INTO z_parent SELECT n FROM generate_series(1, 5000) n;"
            " INSERT INTO a_child SELECT n, n FROM generate_series(1, 5000) n; COMMIT"
        )
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute(
            "BEGIN; UPDATE a_child SET p = p + 1 WHERE p < 5000; DELETE FROM z_parent WHERE id = 1;"
            " DELETE FROM a_child WHERE p > 4000; DELETE FROM z_parent WHERE id > 4000; COMMIT"
        )
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute("DELETE FROM z_parent WHERE id BETWEEN 20 AND 3900")
        come_out(flow, database, target, "z_parent", "a_child")
        database.execute(
            "BEGIN; TRUNCATE z_parent CASCADE; INSERT INTO z_parent VALUES (1);"
            " INSERT INTO a_child SELECT n, 1 FROM generate_series(1, 5000) n; COMMIT"
        )
        come_out(flow, database, target, "z_parent", "a_child")


DEFERRED = "DEFERRABLE INITIALLY DEFERRED"


def test_a_transaction_that_is_larger_than_a_commit_comes_out_in_any_order_of_its_own(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(DDL.format(DEFERRED))
        each.execute(
            f"CREATE TABLE staff (id int PRIMARY KEY, boss int REFERENCES staff {DEFERRED})"
        )
    tables = ("z_parent", "a_child", "staff")
    with Flow(database, target, {**BOTH, "staff": None}, on_error="dead-letter", rows=100) as flow:
        flow.loaded()
        database.execute(
            "BEGIN; INSERT INTO a_child SELECT n, n FROM generate_series(1, 900) n;"
            " INSERT INTO staff SELECT n, n % 900 + 1 FROM generate_series(1, 900) n;"
            " INSERT INTO z_parent SELECT n FROM generate_series(1, 900) n; COMMIT"
        )
        come_out(flow, database, target, *tables)
        database.execute(
            "BEGIN; DELETE FROM z_parent WHERE id > 300; DELETE FROM staff WHERE id < 900;"
            " DELETE FROM a_child WHERE p > 300; DELETE FROM staff; COMMIT"
        )
        come_out(flow, database, target, *tables)


def test_rows_without_what_they_refer_to_are_set_aside_though_the_source_is_idle(
    database: Database, target: Database
) -> None:
    database.execute(f"{PARENTS}; CREATE TABLE a_child (id int PRIMARY KEY, p int, big text)")
    target.execute(DDL.format(""))
    database.execute("INSERT INTO z_parent VALUES (1); INSERT INTO a_child VALUES (1, 1), (2, 7)")
    with Flow(database, target, BOTH, on_error="dead-letter") as flow:
        flow.loaded()
        assert target.execute("SELECT id FROM a_child") == [(1,)]
        assert len(letters(target)) == 1


def test_rows_that_refer_to_each_other_across_tables_are_loaded_together(
    database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute(
            "CREATE TABLE teams (id int PRIMARY KEY, lead int); CREATE TABLE staff"
            " (id int PRIMARY KEY, team int REFERENCES teams, big text); ALTER TABLE teams"
            f" ADD FOREIGN KEY (lead) REFERENCES staff {DEFERRED}"
        )
    database.execute(
        "BEGIN; INSERT INTO teams SELECT n, n FROM generate_series(1, 500) n;"
        " INSERT INTO staff SELECT n, n FROM generate_series(1, 500) n; COMMIT"
    )
    tables: dict[str, Any] = {"teams": None, "staff": None}
    with Flow(database, target, tables, on_error="dead-letter", rows=100) as flow:
        come_out(flow, database, target, *tables)
        database.execute(
            "BEGIN; INSERT INTO teams SELECT n, n FROM generate_series(501, 900) n;"
            " INSERT INTO staff SELECT n, n FROM generate_series(501, 900) n; COMMIT"
        )
        come_out(flow, database, target, *tables)


CIRCLE = (
    "CREATE TABLE teams (id int PRIMARY KEY, lead int); CREATE TABLE staff"
    " (id int PRIMARY KEY, team int REFERENCES teams, big text); ALTER TABLE teams"
    f" ADD FOREIGN KEY (lead) REFERENCES staff {DEFERRED}"
)


def test_rows_of_a_circle_that_were_read_at_several_points_are_loaded_anew(
    database: Database, target: Database
) -> None:
    """As where a load was interrupted. Staff whose team is not there wait for it."""
    database.execute("CREATE TABLE teams (id int PRIMARY KEY, lead int)")
    database.execute("CREATE TABLE staff (id int PRIMARY KEY, team int, big text)")
    target.execute(CIRCLE)
    database.execute("INSERT INTO staff VALUES (1, 1), (2, 7); INSERT INTO teams VALUES (1, 1)")
    tables: dict[str, Any] = {"teams": None, "staff": None}
    with Flow(database, target, tables, on_error="dead-letter") as flow:
        held = "SELECT held > 0 FROM penstock.ledger WHERE \"table\" = 'staff' AND state = 'loaded'"
        until(lambda: flow.check() or target.execute(held) == [(True,)], 60, problem=flow.states)
        target.execute(
            "UPDATE penstock.ledger SET last_point = 'FFFFFFFF/FFFFFFFF' WHERE \"table\" = 'staff'"
        )
        database.execute("INSERT INTO teams VALUES (7, 2)")
        come_out(flow, database, target, *tables)
