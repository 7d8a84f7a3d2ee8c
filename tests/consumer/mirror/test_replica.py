"""A replica on real servers: the same claims on every target. The pipeline is without Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.consumer.mirror.bootstrap import Bootstrap
from penstock.consumer.training import trained
from penstock.nats.buckets import Bucket
from penstock.nats.compression import DictionaryBucket
from tests.consumer.mirror.world import World, same
from tests.servers import Database

pytestmark = pytest.mark.live

ZSTD = {"compression": "zstd"}
# Times that texts.py knows in the form of messages.
EVERYTHING = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE things (
    id bigint PRIMARY KEY, name varchar(80), ok boolean, price numeric(12, 2),
    score double precision, small real, tags text[], sizes integer[][], document jsonb,
    photo bytea, born date, token uuid, seen timestamptz, local timestamp, mood mood,
    lasts interval, large text
);
ALTER TABLE things ALTER COLUMN large SET STORAGE EXTERNAL;
INSERT INTO things
SELECT n, 'Ünïque ' || n || E'\\n\\t\\\\', n % 2 = 0, n / 7.0,
       CASE WHEN n % 5 = 0 THEN 'NaN' ELSE n / 3.0::float8 END,
       0.1, ARRAY['a', NULL, 'a "quoted", one', ''], ARRAY[[1, 2], [3, n]],
       jsonb_build_object('n', n, 'list', ARRAY[1, 2]), decode('00ff' || '5c', 'hex'),
       '2020-02-29', gen_random_uuid(), '12000-01-01 00:00:00+00', '12000-01-01 00:00:00.5',
       'good', 'P1Y2M3DT4H5M6.789S', repeat('x', 9000)
FROM generate_series(1, 300) n;
INSERT INTO things (id) VALUES (1000);
"""


@pytest.mark.parametrize(
    "sink",
    [
        {"encoding": "msgpack"},
        {"encoding": "json", "messages": "batch", "snapshot": ZSTD},
        {"encoding": "arrow", "messages": "batch", "snapshot": ZSTD},
        {"encoding": "msgpack", "compression": "zstd", "snapshot": ZSTD},
        {"encoding": "json", "layout": "debezium"},
        {"encoding": "json", "layout": "cloudevents", "messages": "batch"},
    ],
    ids=lambda sink: "-".join(map(str, sink.values())),
)
def test_rows_that_were_there_and_all_changes_after_them(
    sink: dict[str, Any], database: Database, world_of: Callable[..., World], target: str
) -> None:
    database.execute(EVERYTHING)
    world = world_of(**sink).start()
    database.execute("INSERT INTO things (id, name) VALUES (2000, 'before the snapshot')")
    world.mirror(target)
    same(database, target, "things")
    database.execute("UPDATE things SET name = 'other' WHERE id % 3 = 0")  # large is unchanged
    database.execute("UPDATE things SET id = id + 5000 WHERE id % 10 = 1")
    database.execute("DELETE FROM things WHERE id % 10 = 2")
    database.execute("INSERT INTO things (id, name, photo) VALUES (3000, 'new', 'abc')")
    database.execute("UPDATE things SET id = 4000, large = 'y' WHERE id = 3000")
    mirror = world.mirror(target)
    same(database, target, "things")
    assert mirror.status.snapshots == 0
    assert mirror.status.changes > 0


def test_chunks_of_few_rows_have_the_tables_dictionary(
    database: Database, world_of: Callable[..., World], tmp_path: Path
) -> None:
    database.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO people SELECT n, 'person ' || n FROM generate_series(1, 30) n")
    world = world_of(
        snapshot={"compression": "zstd", "chunk_rows": 10}, encoding="json", compression="zstd",
        dictionaries=True,
    )  # fmt: skip
    world.connection.open()
    bodies = [orjson.dumps({"id": n, "name": f"person {n}", "operation": "INSERT"})
              for n in range(2000)]  # fmt: skip
    found = trained(("default", "public", "people"), bodies, 4096)
    DictionaryBucket(world.connection).put(world.settings.stream, [found])
    world.start()
    target = f"sqlite:///{tmp_path}/mirror.db"
    world.mirror(target)
    same(database, target, "people")
    meta = world.api.last("INIT", "init.meta.people")
    chunk = world.api.last("INIT", "init.snap.people.>")
    assert meta is not None and chunk is not None
    assert orjson.loads(meta.payload)["dictionary"] == found[0].id
    assert chunk.headers["Penstock-Dictionary"] == found[0].id
    Bucket(world.connection, "dictionaries").delete(f"id.{found[0].id}")
    other = f"sqlite:///{tmp_path}/other.db"
    world.mirror(
        other
    )  # of a snapshot without it: tests/consumer/mirror/test_chunks.py has the error
    same(database, other, "people")
    meta = world.api.last("INIT", "init.meta.people")
    assert meta is not None and orjson.loads(meta.payload)["dictionary"] is None


def test_the_first_run_once_applies_what_was_published_while_it_loaded(
    database: Database, world_of: Callable[..., World], tmp_path: Path, monkeypatch: Any
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)")
    world = world_of().start()
    step = Bootstrap.step

    def loads(bootstrap: Bootstrap, wait: float) -> Any:
        table = step(bootstrap, wait)
        if table is not None:  # more than the mirror takes at a time
            for n in range(3):
                database.execute(f"INSERT INTO t SELECT {n} * 1000 + k, {n} FROM"
                                 " generate_series(2, 1001) k")  # fmt: skip
            world.published()
        return table

    monkeypatch.setattr(Bootstrap, "step", loads)
    target = f"sqlite:///{tmp_path}/mirror.db"
    mirror = world.mirror(target)
    assert mirror.status.snapshots == 1
    same(database, target, "t")
