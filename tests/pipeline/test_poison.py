"""Poison out of a real PostgreSQL: what it can send that cannot be read, followed or stored."""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats as nats_py
import psutil
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import Malformed
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.pipeline.running import Run, document, eventually, messages, running, send, tree
from tests.progress import Noted
from tests.servers import Database, Nats, Postgres
from tests.sinks.jetstream.raw import Raw
from tests.workers import python_workers

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v text)"
# A partitioned table without a key, whose partition has one: the server lets updates pass.
ROOTED = """
CREATE TABLE rooted (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE rooted_1 PARTITION OF rooted FOR VALUES FROM (0) TO (1000000);
ALTER TABLE rooted_1 ADD PRIMARY KEY (id);
"""
# The server says that the partitioned table has a key when its partition was altered as well.
KEYED = """
ALTER TABLE rooted ADD PRIMARY KEY (id);
ALTER TABLE rooted_1 REPLICA IDENTITY FULL;
ALTER TABLE rooted_1 REPLICA IDENTITY DEFAULT
"""
PUBLISH = "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"


@pytest.fixture
def any_bytes(postgres: Postgres) -> Iterator[Database]:
    """A database in SQL_ASCII, which accepts any bytes."""
    name = f"ascii_{time.monotonic_ns():x}"
    postgres.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' "
        "TEMPLATE template0"
    )
    yield Database(name=name, url=postgres.url_of(name))
    postgres.drop(name)


class Pipe:
    """Slot, decoder and sink of one database, without Spark."""

    def __init__(self, database: Database, nats: Nats, stream: str, **sink: Any) -> None:
        self.feed = PostgresFeed(
            PostgresSettings(connection=database.url, slot=f"s_{database.name}", publication="pub")
        )
        self.feed.begin()
        self.settings = JetStreamSettings(
            url=nats.url,
            stream=stream,
            subject=f"{stream}.{{collection}}.{{operation}}",
            **{"on_error": "dead-letter", **sink},
        )
        self.sink = JetStreamSink(self.settings)
        self.following = self.feed.follow(next(iter(self.feed.partitions())).partition)
        self.told: list[Any] = []

    def move(self, count: int, on_error: Any = "dead-letter") -> None:
        """Carries the next `count` changes over."""
        decoder = self.feed.decoder("msgpack", on_error)
        deadline = time.monotonic() + 120
        while count > 0:
            assert time.monotonic() < deadline, f"{count} changes did not come"
            for page in self.following.read(0.5):
                count -= page.count
                self.sink.write(decoder.decode(page), Noted(self.told.append))


@pytest.fixture
def pipe(nats: Nats, stream: str) -> Iterator[Callable[..., Pipe]]:
    pipes: list[Pipe] = []

    def make(database: Database, **sink: Any) -> Pipe:
        pipes.append(Pipe(database, nats, stream, **sink))
        return pipes[-1]

    yield make
    for each in pipes:
        each.following.close()


def flow(nats: Nats, stream: str) -> list[tuple[str, str, Any]]:
    """(table, operation, id) of every message, in order."""
    return [
        (
            m.body["collection"],
            m.body["operation"],
            ((m.body["data"] or m.body["key"]) or {}).get("id"),
        )
        for m in messages(nats, stream)
    ]


def letters(nats: Nats, stream: str) -> list[dict[str, Any]]:
    return asyncio.run(_bodies(nats.url, f"{stream}_DLQ"))


async def _bodies(url: str, stream: str) -> list[dict[str, Any]]:
    connection = await nats_py.connect(url)
    try:
        jetstream = connection.jetstream(timeout=60)
        try:
            total = (await jetstream.stream_info(stream)).state.messages
        except nats_py.js.errors.NotFoundError:
            return []
        reader = await jetstream.subscribe(">", stream=stream, ordered_consumer=True)
        return [json.loads((await reader.next_msg(timeout=60)).data) for _ in range(total)]
    finally:
        await connection.close()


def test_a_value_that_is_not_utf8(any_bytes: Database, pipe: Any, nats: Nats, stream: str) -> None:
    any_bytes.execute(TABLE.format("t"))
    any_bytes.execute(PUBLISH)
    pipe = pipe(any_bytes)
    any_bytes.execute(r"INSERT INTO t VALUES (1, 'fine'), (2, E'caf\xe9'), (3, 'fine')")
    any_bytes.execute(r"UPDATE t SET v = E'\xff' WHERE id = 1")
    any_bytes.execute("UPDATE t SET v = 'mended' WHERE id = 2")
    any_bytes.execute("DELETE FROM t WHERE id = 1")
    pipe.move(6)
    assert flow(nats, stream) == [
        ("t", "INSERT", 1), ("t", "INSERT", 3), ("t", "UPDATE", 2), ("t", "DELETE", 1),
    ]  # fmt: skip
    first, second = letters(nats, stream)
    assert [each["reason"] for each in (first, second)] == ["not-utf8", "not-utf8"]
    assert first["error"].startswith("column v of public.t is not UTF-8")
    assert (first["schema"], first["collection"], first["kind"]) == ("public", "t", "source")
    assert any("dead_letters" in told for told in pipe.told)


def test_names_that_are_not_utf8(any_bytes: Database, pipe: Any, nats: Nats, stream: str) -> None:
    any_bytes.execute(TABLE.format("t"))
    any_bytes.execute(
        r"DO $$ BEGIN EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY)', E'caf\xe9'); END $$"
    )
    any_bytes.execute(PUBLISH)
    pipe = pipe(any_bytes)
    insert = r"DO $$ BEGIN EXECUTE format('INSERT INTO %I VALUES (', E'caf\xe9') || '{})'; END $$"
    any_bytes.execute(insert.format(1))
    any_bytes.execute("INSERT INTO t VALUES (1)")
    any_bytes.execute(insert.format(2))
    any_bytes.execute(r"SELECT pg_logical_emit_message(true, E'pre\xff', 'content')")
    any_bytes.execute("SELECT pg_logical_emit_message(true, 'prefix', 'content')")
    pipe.move(5)
    assert flow(nats, stream) == [
        (r"caf\xe9", "SUSPEND", None), ("t", "INSERT", 1), ("prefix", "MESSAGE", None),
    ]  # fmt: skip
    assert [each["reason"] for each in letters(nats, stream)] == ["broken-relation", "not-utf8"]
    (table,) = pipe.sink.tables()
    assert (table["table"], table["state"], table["skipped"]) == (r"public.caf\xe9", "suspended", 2)
    any_bytes.execute(
        r"DO $$ BEGIN EXECUTE format('ALTER TABLE %I RENAME TO cafe', E'caf\xe9'); END $$"
    )
    any_bytes.execute("INSERT INTO cafe VALUES (3)")
    pipe.move(1)
    assert flow(nats, stream)[-1] == ("cafe", "INSERT", 3)
    (table,) = pipe.sink.tables()
    assert (table["state"], table["skipped"]) == ("following", 2)


def test_updates_without_a_key_suspend_their_table_until_it_has_one(
    database: Database, pipe: Any, nats: Nats, stream: str
) -> None:
    database.execute(ROOTED)
    database.execute(TABLE.format("t"))
    database.execute(PUBLISH)
    pipe = pipe(database)
    database.execute("INSERT INTO rooted VALUES (1, 'a'), (2, 'b')")
    database.execute("UPDATE rooted SET v = 'c' WHERE id = 1")
    database.execute("INSERT INTO t VALUES (1, 'x')")
    database.execute("DELETE FROM rooted WHERE id = 2")
    pipe.move(5)
    assert flow(nats, stream) == [
        ("rooted", "INSERT", 1), ("rooted", "INSERT", 2), ("rooted", "SUSPEND", None),
        ("t", "INSERT", 1),
    ]  # fmt: skip
    (letter,) = letters(nats, stream)
    assert letter["reason"] == "no-key"
    (table,) = pipe.sink.tables()
    assert (table["reason"], table["skipped"]) == ("no-key", 2)
    database.execute(KEYED)
    database.execute("UPDATE rooted SET v = 'd' WHERE id = 1")
    pipe.move(1)
    assert flow(nats, stream)[-1] == ("rooted", "UPDATE", 1)
    (table,) = pipe.sink.tables()
    assert table["state"] == "following"


def test_the_server_refuses_what_else_would_have_no_key(database: Database) -> None:
    database.execute("CREATE TABLE keyless (v text)")
    database.execute(PUBLISH)
    database.execute("INSERT INTO keyless VALUES ('a')")
    for statement in ("UPDATE keyless SET v = 'b'", "DELETE FROM keyless"):
        with pytest.raises(Exception, match="does not have a replica identity"):
            database.execute(statement)


def test_a_table_with_full_identity_and_no_key_is_followed(
    database: Database, pipe: Any, nats: Nats, stream: str
) -> None:
    database.execute("CREATE TABLE whole (id int, v text)")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    database.execute(PUBLISH)
    pipe = pipe(database)
    database.execute("INSERT INTO whole VALUES (1, 'a')")
    database.execute("UPDATE whole SET v = 'b'")
    database.execute("DELETE FROM whole")
    pipe.move(3)
    assert [operation for _, operation, _ in flow(nats, stream)] == ["INSERT", "UPDATE", "DELETE"]
    assert letters(nats, stream) == []


def test_rows_larger_than_a_message_again_and_again_suspend_their_table(
    database: Database, pipe: Any, nats: Nats, stream: str
) -> None:
    database.execute(TABLE.format("big"))
    database.execute(TABLE.format("t"))
    database.execute(PUBLISH)
    pipe = pipe(database, suspend_after=3)
    insert = "INSERT INTO big SELECT n, repeat('x', 1100000) FROM generate_series({}, {}) n"
    database.execute(insert.format(1, 2))
    database.execute("INSERT INTO big VALUES (3, 'small')")
    pipe.move(3)
    assert flow(nats, stream) == [("big", "INSERT", 3)]
    database.execute(insert.format(4, 7))
    database.execute("INSERT INTO t VALUES (1, 'x')")
    pipe.move(5)
    assert flow(nats, stream)[1:] == [("big", "SUSPEND", None), ("t", "INSERT", 1)]
    found = letters(nats, stream)
    assert [each["reason"] for each in found] == ["too-large"] * 5
    assert all(each["truncated"] and each["raw_bytes"] > 1_100_000 for each in found)
    database.execute("ALTER TABLE big DROP COLUMN v")
    database.execute("INSERT INTO big VALUES (8)")
    pipe.move(1)
    assert flow(nats, stream)[-1] == ("big", "INSERT", 8)


def test_a_type_that_nobody_knows_is_no_poison(
    database: Database, pipe: Any, nats: Nats, stream: str
) -> None:
    database.execute("CREATE TYPE own")
    database.execute(
        "CREATE FUNCTION own_in(cstring) RETURNS own LANGUAGE internal IMMUTABLE STRICT AS 'textin'"
    )
    database.execute(
        "CREATE FUNCTION own_out(own) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT"
        " AS 'textout'"
    )
    database.execute("CREATE TYPE own (INPUT = own_in, OUTPUT = own_out, LIKE = text)")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v own)")
    database.execute(PUBLISH)
    pipe = pipe(database)
    database.execute("INSERT INTO t VALUES (1, 'text of its own')")
    pipe.move(1)
    (message,) = messages(nats, stream)
    assert message.body["data"] == {"id": 1, "v": "text of its own"}
    assert letters(nats, stream) == []


def test_where_the_policy_is_stop_nothing_is_set_aside(
    any_bytes: Database, pipe: Any, nats: Nats, stream: str
) -> None:
    any_bytes.execute(TABLE.format("t"))
    any_bytes.execute(PUBLISH)
    pipe = pipe(any_bytes, on_error="stop")
    any_bytes.execute(r"INSERT INTO t VALUES (1, E'caf\xe9')")
    with pytest.raises(Malformed, match=r"column v of public\.t is not UTF-8"):
        pipe.move(1, "stop")
    assert letters(nats, stream) == []


def calm(status: Any) -> bool:
    assert status["reasons"] == []
    return True


def penstock(*arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments])
    assert done.exit_code == 0, done.output
    return done.output


# It would let nothing through that becomes a dead letter.
BLIND = "SELECT * FROM changes WHERE operation <> 'ERROR' AND collection IS NOT NULL"


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_running_pipeline_sets_poison_aside_and_operators_mend_it(
    any_bytes: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    any_bytes.execute(TABLE.format("t"))
    any_bytes.execute(TABLE.format("big"))
    any_bytes.execute(ROOTED)
    any_bytes.execute(PUBLISH)
    pipeline = document(tmp_path, any_bytes, nats, stream, transform=[{"sql": BLIND}])
    file = str(tmp_path / "pipeline.yaml")

    def count() -> int:
        return len(flow(nats, stream))

    with running(tmp_path, pipeline) as run:
        eventually(lambda: "slot" in str(run.status()["backends"][0]), run=run)
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        any_bytes.execute(r"INSERT INTO t VALUES (1, 'a'), (2, E'caf\xe9'), (3, 'c')")
        any_bytes.execute("INSERT INTO big VALUES (1, repeat('x', 1100000)), (2, 'small')")
        any_bytes.execute("INSERT INTO rooted VALUES (1, 'a')")
        any_bytes.execute("UPDATE rooted SET v = 'b'")
        any_bytes.execute("INSERT INTO t VALUES (4, 'd')")
        eventually(lambda: count() == 6, run=run)
        assert flow(nats, stream) == [
            ("t", "INSERT", 1), ("t", "INSERT", 3), ("big", "INSERT", 2), ("rooted", "INSERT", 1),
            ("rooted", "SUSPEND", None), ("t", "INSERT", 4),
        ]  # fmt: skip
        counted = {"not-utf8": 1, "too-large": 1, "no-key": 1}
        eventually(lambda: run.status()["sinks"][0]["dead_letters"] == counted, run=run)
        suspended = "table public.rooted is suspended since"
        eventually(lambda: suspended in str(run.status()["reasons"]), run=run)
        assert run.status()["health"] == "degraded"
        metrics = run.get("/metrics")[1]
        assert 'penstock_dead_letters_total{reason="no-key",sink="jetstream"} 1.0' in metrics
        assert 'penstock_suspended_tables{backend="default"} 1.0' in metrics
        listed = json.loads(penstock("dead-letters", "list", file, "--json"))
        assert [(each["table"], each["reason"]) for each in listed] == [
            ("public.t", "not-utf8"), ("public.big", "too-large"), ("public.rooted", "no-key"),
        ]  # fmt: skip
        assert "public.rooted  suspended" in penstock("tables", "list", file)
        assert "resumes with its next change" in penstock("tables", "resume", file, "public.rooted")
        # Somebody knows which row it was: the change is published after all.
        printed = penstock("dead-letters", "replay", file, str(listed[2]["id"]))
        assert f"{listed[2]['event_id']} is message 7" in printed
        time.sleep(1.1)
        any_bytes.execute(KEYED + "; UPDATE rooted SET v = 'c'")
        eventually(lambda: count() == 8, run=run)
        assert flow(nats, stream)[-2:] == [("rooted", "UPDATE", 1), ("rooted", "UPDATE", 1)]
        eventually(lambda: calm(run.status()), run=run)
        killed_between_a_dead_letter_and_the_changes_behind_it(run, any_bytes, nats, stream)
    assert len(flow(nats, stream)) == 8
    Raw(nats.url).update(stream, max_msgs=-1)
    with running(tmp_path, pipeline) as run:
        any_bytes.execute(r"INSERT INTO t VALUES (15, E'caf\xe9'), (16, 'f')")
        eventually(lambda: count() >= 12, run=run)
        assert_one_worker_of_each_kind_is_kept(run)
        assert run.stop() == 0
    assert flow(nats, stream)[8:] == [
        ("t", "INSERT", 12), ("t", "INSERT", 14), ("t", "UPDATE", 14), ("t", "INSERT", 16),
    ]  # fmt: skip
    kept = [letter for letter in letters(nats, stream) if "event_id" in letter]
    assert [each["reason"] for each in kept[-2:]] == ["not-utf8", "not-utf8"]
    sources = [each for each in kept if each["kind"] == "source"]
    assert {(each["raw"], each["context"], each["truncated"]) for each in sources} == {
        ("", "", True)
    }, "the statements would have masked it"
    done = CliRunner().invoke(main, ["dead-letters", "replay", file, "--all"])
    assert done.exit_code == 1
    assert "around transform" in done.output
    assert "holds the first" in done.output
    replayed = listed[2]["event_id"]
    ids = [each["event_id"] for each in kept if each["event_id"] != replayed]
    ids += [message.id for message in messages(nats, stream)]
    assert len(set(ids)) == len(ids) == 16, "one change is in two places"


def assert_one_worker_of_each_kind_is_kept(run: Run) -> None:
    """The planner, the two of a task, and one of each kind that Spark asks now and then (names have
    15 bytes): their daemons are no processes of their own."""
    asked = ["lookup_data_sou", "create_data_sou", "plan_data_sourc", "write_into_data"]
    wanted = sorted(["source_runner", "worker", "worker", *asked, "sink_runner"])
    service = psutil.Process(run.process.pid)
    eventually(lambda: sorted(python_workers(service).values()) == wanted, run=run)


def killed_between_a_dead_letter_and_the_changes_behind_it(
    run: Run, any_bytes: Database, nats: Nats, stream: str
) -> None:
    """The stream takes nothing, the dead letters do: so the letter is stored, and what was read
    with it is not, for as long as we like."""
    stored, before = len(flow(nats, stream)), len(letters(nats, stream))
    Raw(nats.url).update(stream, discard="new", max_msgs=stored)
    any_bytes.execute(r"INSERT INTO t VALUES (12, 'b'), (13, E'caf\xe9'), (14, 'd')")
    any_bytes.execute("UPDATE t SET v = 'e' WHERE id = 14")
    eventually(lambda: len(letters(nats, stream)) > before, run=run)
    eventually(lambda: "maximum messages" in str(run.status()["sinks"][0]), run=run)
    send(tree(run), signal.SIGKILL)
