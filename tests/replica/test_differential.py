"""Random writers, and a mirror that is killed: whenever the writers pause, it equals the tables.

Each round writes while a mirror runs in a process of its own. The mirror is killed, the service
that takes snapshots and what publishes changes are stopped and started, and messages are lost, as a
seed says. PENSTOCK_MIRROR_SEED tries another one, PENSTOCK_MIRROR_SECONDS for longer.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random

import psycopg
import pytest

from tests.replica.world import World, same
from tests.servers import Database

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

CREATE = """
CREATE TABLE plain (id int PRIMARY KEY, note text, n int);
CREATE TABLE pairs (a int, b text, large text, n int, PRIMARY KEY (a, b));
ALTER TABLE pairs ALTER COLUMN large SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, large text, n int);
ALTER TABLE whole ALTER COLUMN large SET STORAGE EXTERNAL;
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE bag (a int, b text);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO plain SELECT n, 'there before', 0 FROM generate_series(1, 3000) n;
INSERT INTO pairs SELECT n, 'b', repeat('x', 3000) || n, 0 FROM generate_series(1, 200) n;
INSERT INTO whole SELECT n, repeat('y', 3000) || n, 0 FROM generate_series(1, 200) n;
INSERT INTO bag SELECT n % 20, 'there before' FROM generate_series(1, 200) n;
"""
TABLES = ("plain", "pairs", "whole", "bag")
_ONE = "ctid = (SELECT ctid FROM {} OFFSET floor(random() * {}) LIMIT 1)"
# How often, and what.
STATEMENTS = (
    (8, "INSERT INTO plain (id, note, n) VALUES ({new}, 'new', {k}) ON CONFLICT DO NOTHING"),
    (8, "UPDATE plain SET n = n + 1 WHERE id % 97 = {k} % 97"),
    (4, "UPDATE plain SET id = {new} WHERE id = {k} AND NOT EXISTS"
        " (SELECT FROM plain WHERE id = {new})"),
    (4, "DELETE FROM plain WHERE id % 101 = {k} % 101"),
    (6, "UPDATE pairs SET n = n + 1 WHERE a % 11 = {k} % 11"),
    (4, "UPDATE pairs SET b = b || '{k}' WHERE a = {k} % 200 AND length(b) < 40"),
    (3, "UPDATE pairs SET large = repeat('z', 3000) || {k} WHERE a = {k} % 200"),
    (3, "DELETE FROM pairs WHERE a = {k} % 200"),
    (3, "INSERT INTO pairs VALUES ({new}, 'new', repeat('w', 3000), 0) ON CONFLICT DO NOTHING"),
    (5, "UPDATE whole SET n = n + 1 WHERE id % 13 = {k} % 13"),
    (3, "UPDATE whole SET id = {new} WHERE id = {k} % 200 AND NOT EXISTS"
        " (SELECT FROM whole WHERE id = {new})"),
    (6, "INSERT INTO bag SELECT {k} % 20, 'x' FROM generate_series(1, 3)"),
    (4, "UPDATE bag SET b = b || 'y' WHERE a = {k} % 20 AND length(b) < 20"),
    (4, f"DELETE FROM bag WHERE {_ONE.format('bag', 50)}"),
    (1, "TRUNCATE bag"),
    (1, "TRUNCATE plain"),
)  # fmt: skip
DDL = (
    "ALTER TABLE plain ADD COLUMN c{k} text",
    "ALTER TABLE plain ADD COLUMN c{k} int NOT NULL DEFAULT {k}",
    "ALTER TABLE pairs ADD COLUMN c{k} text; ALTER TABLE pairs DROP COLUMN c{k}",
    "ALTER TABLE pairs ALTER COLUMN n TYPE bigint; ALTER TABLE whole RENAME n TO n{k};"
    " ALTER TABLE whole RENAME n{k} TO n",
    "ALTER TABLE bag ADD COLUMN c{k} int",
)  # fmt: skip


class Writer:
    """Transactions of a seed, some of which are rolled back."""

    def __init__(self, url: str, random: Random) -> None:
        self.connection = psycopg.connect(url)
        self.random = random

    def transaction(self) -> None:
        weights = [weight for weight, _ in STATEMENTS]
        for _ in range(self.random.choice([1, 1, 2, 5])):
            _, statement = self.random.choices(STATEMENTS, weights)[0]
            self._run(statement)
        if self.random.random() < 0.1:
            self.connection.rollback()
        self.connection.commit()

    def ddl(self) -> None:
        self._run(self.random.choice(DDL))
        self.connection.commit()

    def _run(self, statement: str) -> None:
        k, new = self.random.randint(0, 5000), self.random.randint(5000, 9000)
        self.connection.execute(statement.format(k=k, new=new).encode())


class Mirror:
    """`penstock mirror` in a process of its own."""

    def __init__(self, url: str, target: str) -> None:
        self._command = [sys.executable, "-m", "penstock", "mirror", url, "--to", target, "--quiet"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)


def play(world: World, target: str, *, seed: int, seconds: float, rounds: int) -> None:
    random = Random(seed)
    writer, mirror = Writer(world.database.url, random), Mirror(world.nats.url, target)
    deadline, played = time.monotonic() + seconds, 0
    try:
        while played < rounds or time.monotonic() < deadline:
            played += 1
            mirror.start()
            until = time.monotonic() + random.uniform(1.0, 3.0)
            while time.monotonic() < until:
                writer.transaction()
            if random.random() < 0.5:
                writer.ddl()
            chosen = random.choice(["kill", "kill", "service", "pump", "lose", "none"])
            if chosen == "service":  # and with it any snapshot that is being taken
                world.stop_service()
                world.start_service()
            elif chosen == "pump":
                world.stop_pump()
                writer.transaction()
                world.start_pump()
            elif chosen == "lose":
                world.published()
                world.api.purge("CDC", ">")
            for _ in range(20):
                writer.transaction()
            mirror.kill()
            world.mirror(target)
            for table in TABLES:
                try:
                    same(world.database, target, table)
                except BaseException as error:
                    raise AssertionError(f"seed {seed}, round {played}, {chosen}") from error
    finally:
        mirror.kill()
        writer.connection.close()


def run(world_of: Callable[..., World], database: Database, target: str, **limits: float) -> None:
    database.execute(CREATE)
    seed = int(os.environ.get("PENSTOCK_MIRROR_SEED", "1"))
    encodings = ({"encoding": "msgpack"}, {"encoding": "json", "messages": "batch"})
    world = world_of(**encodings[seed % 2]).start()
    play(world, target, seed=seed, seconds=limits["seconds"], rounds=int(limits["rounds"]))


def test_a_mirror_that_is_killed_equals_its_source_whenever_writers_pause(
    database: Database, world_of: Callable[..., World], tmp_path: object
) -> None:
    run(world_of, database, f"sqlite:///{tmp_path}/mirror.db", seconds=15, rounds=3)


@pytest.mark.thorough
def test_a_mirror_in_each_target_for_minutes(
    database: Database, world_of: Callable[..., World], target: str
) -> None:
    seconds = float(os.environ.get("PENSTOCK_MIRROR_SECONDS", "120"))
    run(world_of, database, target, seconds=seconds, rounds=3)
