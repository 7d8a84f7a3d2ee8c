"""What `penstock check` finds at a destination, on a real server."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.errors import SettingsError
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from tests.servers import Database, Postgres

ITEMS = TableSchema(
    schema="public", table="items", name=("items",), version="1",
    columns=(
        {"name": "id", "data_type": "integer", "key": True},
        {"name": "name", "data_type": "text", "key": False},
    ),
)  # fmt: skip
NOT_SQL = "is not SQL over its columns: reading at the destination:"
DEFERRABLE = "the key (id) of public.items is DEFERRABLE, and ON CONFLICT cannot use it"
GOOD = "CREATE TABLE items (id int PRIMARY KEY, name text)"


def sink(database: Database, *tables: dict[str, Any], **settings: Any) -> PostgresSink:
    entries = [
        {"backend": f"b{number}", "tables": {"items": each}} for number, each in enumerate(tables)
    ]
    found = {"connection": database.url, "map": entries} | settings
    return PostgresSink(PostgresSinkSettings(**found))


def problems(database: Database, *tables: dict[str, Any], **settings: Any) -> list[str]:
    checked = sink(database, *(tables or ({},)), **settings)
    found = [*checked.check(), *checked.check_tables("b0", [ITEMS])]
    wrong = [each for each in found if each.level != "ok"]
    assert all(each.remedy or NOT_SQL in each.message for each in wrong)
    return [f"{each.level} {each.subject}: {each.message}" for each in wrong]


def test_a_target_that_fits_is_fine(database: Database) -> None:
    database.execute(GOOD)
    assert problems(database) == []


def test_a_target_that_is_missing_is_an_error_unless_it_is_made(database: Database) -> None:
    assert problems(database) == [
        "error target public.items: it does not exist, and public.items goes there"
    ]
    assert problems(database, {"create": True}) == []


@pytest.mark.parametrize(
    ("create", "options", "problem"),
    [
        ("CREATE TABLE items (id int, name text)", {},
         "no unique index of public.items has exactly (id)"),
        ("CREATE TABLE items (name text PRIMARY KEY)", {},
         "public.items has no column id, which is in the key"),
        ("CREATE TABLE items (sid text, id int PRIMARY KEY)", {},
         "no unique index of public.items has exactly (id, sid)"),
        ("CREATE TABLE items (id int PRIMARY KEY DEFERRABLE, name text)", {}, DEFERRABLE),
        ("CREATE TABLE items (id int PRIMARY KEY DEFERRABLE, name text)",
         {"set": {"id": "id", "name": "name"}}, DEFERRABLE),
        ("CREATE TABLE items (id int PRIMARY KEY, name text, UNIQUE (id) DEFERRABLE)", {},
         DEFERRABLE),
        ("CREATE TABLE items (other int)", {}, "public.items has none of its columns"),
        (GOOD, {"columns": ["id", "size"]}, "it has no column size"),
        (GOOD, {"set": {"size": "1"}}, "public.items has no column size"),
        (GOOD, {"filter": "name = "}, f"`filter` {NOT_SQL} syntax error at or near \")\" (42601)"),
        (GOOD, {"filter": "size > 1"},
         f"`filter` {NOT_SQL} column \"size\" does not exist (42703)"),
        (GOOD, {"set": {"id": "id", "name": "lower(id)"}},
         f"`set` of name {NOT_SQL} function lower(integer) does not exist (42883)"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_errors(
    database: Database, create: str, options: dict[str, Any], problem: str
) -> None:
    database.execute(create)
    assert problems(database, options) == [f"error table public.items of b0: {problem}"]


# Texts that would be more than an expression, or leave something out after them.
NOT_ONE = (
    "true); CREATE TABLE pwned (i int); SELECT (true", "true; CREATE TABLE pwned (i int)",
    "true) OR (true", "true), (true", "true) FROM (SELECT true", "true, true", "SELECT true",
    "true) --", "true --", "true /*", "true END, CASE WHEN true THEN true",
    "true) AS boolean), CAST((true", "'true",
)  # fmt: skip


def test_an_expression_is_one_expression(database: Database) -> None:
    database.execute(GOOD)
    for text in NOT_ONE:
        for options in ({"filter": text}, {"set": {"id": "id", "name": text}}):
            (found,) = problems(database, options)
            assert NOT_SQL in found, text
    assert not database.execute("SELECT 1 FROM pg_class WHERE relname = 'pwned'")


@pytest.mark.parametrize("text", ["id % 2 = 0", "(SELECT true) -- all\n AND true", "'%s;' <> '{}'"])
def test_an_expression_may_be_any(database: Database, text: str) -> None:
    database.execute(GOOD)
    assert problems(database, {"filter": text}) == []


@pytest.mark.parametrize(
    ("policy", "what"),
    [(None, "left out are name"), ("ignore", "left out are name"), ("ask", "it waits for name")],
)
def test_columns_that_the_target_lacks_are_named(
    database: Database, policy: str | None, what: str
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    assert problems(database, {"schema_changes": policy}) == [
        f"warning table public.items of b0: public.items lacks columns, and {what}"
    ]
    for options in ({"schema_changes": "add"}, {"columns": ["id"]}):
        assert problems(database, options) == []


def test_another_word_for_what_happens_where_columns_change_is_an_error(database: Database) -> None:
    with pytest.raises(ValidationError, match=r"schema_changes\n.*'add', 'ignore' or 'ask'"):
        sink(database, {"schema_changes": "follow"})


def test_two_sources_of_a_table_need_a_column_for_their_names(database: Database) -> None:
    database.execute(GOOD)
    assert problems(database, {}, {}) == 2 * [
        "error target public.items: several tables of the map go there, and it has no column sid"
    ]
    database.execute(
        "DROP TABLE items; CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))"
    )
    assert problems(database, {}, {}) == []


def test_triggers_and_foreign_keys_are_told(database: Database) -> None:
    database.execute(f"{GOOD}; CREATE TABLE parts (item int REFERENCES items)")
    database.execute(
        "CREATE TRIGGER noted BEFORE UPDATE ON items FOR EACH ROW"
        " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    assert problems(database) == [
        "warning target public.items: changes run a foreign key, the trigger noted"
    ]
    assert problems(database, replica_role=True) == []


def test_a_role_without_rights_is_told_which(database: Database, postgres: Postgres) -> None:
    database.execute(GOOD)
    database.execute("DROP ROLE IF EXISTS consolidator; CREATE ROLE consolidator LOGIN")
    database.execute("GRANT SELECT, INSERT ON items TO consolidator")
    checked = sink(database, {}, connection=database.url.replace("postgres@", "consolidator@"))
    found = {each.subject: each for each in checked.check() if each.level == "error"}
    assert found["schema penstock"].remedy == 'CREATE SCHEMA "penstock" AUTHORIZATION <role>;'
    assert found["target public.items"].message == "the role may not UPDATE, DELETE, TRUNCATE"
    database.execute("DROP OWNED BY consolidator; DROP ROLE consolidator")


def test_a_server_that_is_away_is_an_error_without_the_password(database: Database) -> None:
    (found,) = sink(database, {}, connection="postgresql://me:s3cret@127.0.0.1:1/nowhere").check()
    assert found.level == "error"
    assert "s3cret" not in str(found)


def test_a_history_has_its_columns_its_key_and_an_index_of_open_versions(
    database: Database,
) -> None:
    lacks = "error table public.items of b0: public.items: a history needs a column kvsz_deleted"
    columns = "id int, name text, kvsz_start timestamptz, kvsz_end timestamptz"
    database.execute(f"CREATE TABLE items ({columns})")
    history = {"type": "history"}
    key = "no unique index of public.items has exactly (id, kvsz_start)"
    assert problems(database, history) == [lacks, f"error table public.items of b0: {key}"]
    database.execute("ALTER TABLE items ADD kvsz_deleted boolean")
    assert problems(database, history) == [f"error table public.items of b0: {key}"]
    database.execute("ALTER TABLE items ADD PRIMARY KEY (id, kvsz_start)")
    (found,) = [
        each for each in sink(database, history).check_tables("b0", [ITEMS]) if each.level != "ok"
    ]
    assert (found.level, found.message) == (
        "warning", "public.items has no index of its open versions: TRUNCATE, and reading what is"
        " current, take as long as there are old ones",
    )  # fmt: skip
    database.execute(found.remedy)
    assert problems(database, history) == []


@pytest.mark.parametrize("url", ["postgre://u:s3cret@h/d", "postgresql://u:%zzs3cret@h/d", ""])
def test_a_connection_that_is_no_url_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresSinkSettings.model_validate({
            "connection": url, "map": [{"backend": "b", "tables": {"items": None}}],
        })  # fmt: skip
    assert "s3cret" not in str(caught.value)


def test_rows_that_are_there_before_the_first_load_are_an_error(database: Database) -> None:
    database.execute("CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))")
    database.execute("INSERT INTO items VALUES ('eu', 1, 'a')")
    partitions = [PartitionId("eu"), PartitionId("us")]

    def found(**options: Any) -> list[str]:
        checked = sink(database, options).check_tables("b0", [ITEMS], partitions)
        return [f"{each.level} {each.message}" for each in checked if each.level != "ok"]

    there = "error public.items of b0/eu: public.items has rows already"
    assert found() == [there]
    assert found(existing="keep") == []
    assert list(sink(database, {}).check_tables("b0", [ITEMS])) == []
    started = sink(database, {})
    started.enter("b0", PartitionId("eu"), initial=True)
    assert found() == [there]
    database.execute("UPDATE penstock.ledger SET is_ours = true")
    assert found() == []


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"filter": "length(name) > id"}, ["name"]),
        ({"set": {"id": "id", "name": "upper(name)"}}, ["name"]),
        ({"set": {"id": "id * 2", "name": "name"}}, []),
        ({"set": {"id": "id", "name": "_sid"}, "filter": "id > 1"}, []),
    ],
)
def test_expressions_over_values_that_may_not_be_sent_are_a_warning(
    database: Database, options: dict[str, Any], columns: list[str]
) -> None:
    database.execute(GOOD)
    expected = [
        f"warning table public.items of b0: `set` or `filter` needs {name}: a change without a"
        " large value that stayed as it was becomes a dead letter (unsent-value)"
        for name in columns
    ]
    assert problems(database, options) == expected
    whole = replace(ITEMS, sends_all=True)
    assert [*sink(database, options).check_tables("b0", [whole])] == []


def test_a_role_that_may_not_leave_triggers_out_is_an_error(database: Database) -> None:
    role = f"role_{database.name}"
    database.execute(GOOD)
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        url = database.url.replace("postgres@", f"{role}@")
        plain = PostgresSinkSettings(
            connection=url, replica_role=True, map=[{"backend": "b0", "tables": {"items": None}}]
        )
        (found,) = PostgresSink(plain).check()
        assert found.level == "error"
        assert found.message == "the role may not set session_replication_role at the destination"
        assert "GRANT SET ON PARAMETER" in found.remedy
        with pytest.raises(SettingsError, match="session_replication_role"):
            PostgresSink(plain).prepare()
    finally:
        database.execute(f"DROP ROLE {role}")
