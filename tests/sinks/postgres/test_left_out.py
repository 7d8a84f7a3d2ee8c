"""A table of which the source sends only a part waits and says why, and the source's application
works on; without Spark."""

from collections.abc import Iterator

import pytest

from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.sinks.postgres.test_silent_changes import often, wait_for_slot
from tests.waiting import until

__all__ = ["often"]  # a fixture

ROOT = (
    "CREATE TABLE ev (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE ev_p1 PARTITION OF ev FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE ev_p2 PARTITION OF ev FOR VALUES FROM (10) TO (100);"
    "INSERT INTO ev SELECT n, 'a' FROM generate_series(1, 20) n"
)
WHERE = "FOR VALUES FROM (100) TO (200)"
COMES = {
    "made": f"CREATE TABLE ev_p3 PARTITION OF ev {WHERE}",
    "attached": "CREATE TABLE ev_p3 (LIKE ev INCLUDING ALL); INSERT INTO ev_p3 VALUES (101, 'b');"
    f"ALTER TABLE ev ATTACH PARTITION ev_p3 {WHERE}",
    "made of parts": f"CREATE TABLE ev_p3 PARTITION OF ev {WHERE} PARTITION BY RANGE (id);"
    f"CREATE TABLE ev_p3_a PARTITION OF ev_p3 {WHERE}",
    "unlogged": f"CREATE UNLOGGED TABLE ev_p3 PARTITION OF ev {WHERE}",
}
LISTED = "CREATE PUBLICATION p FOR TABLE ev_p1, ev_p2 WITH (publish_via_partition_root = {})"
ROWS = "SELECT id, v FROM ev ORDER BY id"
LEAVES = {"ev": {"create": True, "partitions": "ev_p.*"}}


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


def waits(flow: Flow, *texts: str) -> str:
    """Waits until it does and says these; returns why."""

    def found() -> bool:
        flow.check()
        ((state, error),) = flow.states()
        return state == "waiting" and all(text in error for text in texts)

    until(found, 30, problem=flow.states)
    return flow.states()[0][1]


def equal(flow: Flow, source: Database, target: Database) -> None:
    def is_equal() -> bool:
        flow.check()
        live = [state for state, _ in flow.states()] == ["live"]
        return live and source.execute(ROWS) == target.execute(ROWS)

    until(is_equal, 30, problem=lambda: (flow.states(), source.execute(ROWS), target.execute(ROWS)))


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("as_root", ["false", "true"])
@pytest.mark.parametrize("comes", COMES)
def test_a_partition_that_a_users_publication_does_not_send_has_its_table_wait(
    comes: str, as_root: str, stopped: bool, database: Database, target: Database
) -> None:
    database.execute(f"{ROOT}; {LISTED.format(as_root)}")

    def come() -> None:
        database.execute(f"{COMES[comes]}; INSERT INTO ev VALUES (150, 'new')")

    flow = Flow(database, target, LEAVES, publication="p")
    with flow:
        flow.loaded()
        if not stopped:
            come()
            waits(flow, "does not send public.ev_p3")
    wait_for_slot(database, flow.slot)
    if stopped:
        come()
    with Flow(database, target, LEAVES, publication="p") as flow:
        why = waits(flow, "the publication p does not send public.ev_p3")
        database.execute("DELETE FROM ev WHERE id = 3")
        for statement in why[why.index("ALTER") : why.rindex(";")].split(";"):
            database.execute(statement)
        database.execute("UPDATE ev SET v = 'changed' WHERE id IN (4, 12, 150)")
        equal(flow, database, target)


KEYLESS = (
    "CREATE TABLE ev (id int, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE ev_p1 PARTITION OF ev (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (100);"
    "INSERT INTO ev SELECT n, 'a' FROM generate_series(1, 20) n"
)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("comes", ["made", "attached", "made of parts"])
def test_a_partition_without_a_replica_identity_has_its_table_wait_and_is_not_sent(
    comes: str, stopped: bool, database: Database, target: Database
) -> None:
    database.execute(KEYLESS)
    flow = Flow(database, target, LEAVES)

    def come() -> None:
        database.execute(COMES[comes])
        works()

    def works() -> None:
        database.execute("DELETE FROM ev WHERE id >= 150")
        database.execute("INSERT INTO ev VALUES (150, 'new'), (151, 'new')")
        database.execute("UPDATE ev SET v = 'changed' WHERE id = 150")

    with flow:
        flow.loaded()
        if not stopped:
            come()
            waits(flow, "ev_p3", "REPLICA IDENTITY FULL")
            works()
    wait_for_slot(database, flow.slot)
    if stopped:
        come()
    with Flow(database, target, LEAVES) as flow:
        waits(flow, "ev_p3", "REPLICA IDENTITY FULL")
        works()
        database.execute("ALTER TABLE ev_p3 ADD PRIMARY KEY (id)")
        works()
        equal(flow, database, target)
        works()
        equal(flow, database, target)


def test_a_partition_that_penstocks_publication_may_not_have_has_its_table_wait(
    database: Database, target: Database
) -> None:
    """It is another role's."""
    role = f"cdc_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        database.execute(
            f"GRANT CREATE ON DATABASE {database.name} TO {role}; GRANT pg_read_all_data TO {role};"
            f"{ROOT}; ALTER TABLE ev OWNER TO {role}; ALTER TABLE ev_p1 OWNER TO {role};"
            f"ALTER TABLE ev_p2 OWNER TO {role}"
        )
        source = database.url.replace("postgres@", f"{role}@")
        with Flow(database, target, LEAVES, connection=source) as flow:
            flow.loaded()
            database.execute(f"{COMES['made']}; INSERT INTO ev VALUES (150, 'new')")
            waits(flow, "does not send public.ev_p3")
            database.execute(f"ALTER TABLE ev_p3 OWNER TO {role}")
            equal(flow, database, target)
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("publication", ["", "CREATE PUBLICATION p FOR TABLES IN SCHEMA public"])
def test_a_partition_of_another_schema_comes_with_its_root(
    publication: str, database: Database, target: Database
) -> None:
    database.execute(f"{ROOT}; CREATE SCHEMA off")
    backend = {}
    if publication:
        database.execute(f"{publication} WITH (publish_via_partition_root = true)")
        backend = {"publication": "p"}
    with Flow(database, target, {"ev": {"create": True}}, **backend) as flow:
        flow.loaded()
        database.execute(f"CREATE TABLE off.ev_p3 PARTITION OF ev {WHERE}")
        database.execute("INSERT INTO ev VALUES (150, 'new')")
        equal(flow, database, target)
