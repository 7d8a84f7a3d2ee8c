"""The bucket of schemas, on a real server."""

import uuid
from typing import Any

import orjson
import ormsgpack
import pytest

from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.schemas import BUCKET, SchemaBucket
from penstock.table_schema import TableSchema
from tests.servers import Nats

pytestmark = pytest.mark.live

COLUMNS = (
    {
        "name": "id", "position": 1, "data_type": "integer", "is_nullable": False,
        "column_default": None, "key": True,
    },
)  # fmt: skip


def schema(table: str, version: str) -> TableSchema:
    return TableSchema(
        schema="public", table=table, name=(table,), version=version, columns=COLUMNS
    )


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_version_is_stored_once(encoding: Any, nats: Nats) -> None:
    settings = JetStreamSettings(url=nats.url, encoding=encoding)
    name = f"t-{uuid.uuid4().hex}"
    for version in ("one", "one", "two"):
        SchemaBucket(settings).put(schema(name, version))
    connection = Connection(settings)
    connection.open()
    stored = Bucket(connection, BUCKET).history(name)
    connection.close()
    load: Any = orjson.loads if encoding == "json" else ormsgpack.unpackb
    found = [load(one.value) for one in stored]
    assert [one["version"] for one in found] == ["one", "two"]
    assert found[0] == {
        "table": name, "schema": "public", "qualified_name": f"public.{name}", "version": "one",
        "position": None, "timestamp": found[0]["timestamp"], "columns": list(COLUMNS),
    }  # fmt: skip


def test_a_table_that_is_gone_is_deleted(nats: Nats) -> None:
    backend = f"b-{uuid.uuid4().hex}"
    settings = JetStreamSettings(url=nats.url)
    store, other = SchemaBucket(settings, (backend,)), SchemaBucket(settings, (f"{backend}2",))
    for one in (store, other):
        one.put(schema("kept", "v"))
        one.put(schema("töte.x", "v"))
    store.remove(("töte.x",))
    connection = Connection(settings)
    connection.open()
    bucket = Bucket(connection, BUCKET)
    keys = {one.key for one in bucket.entries() if one.key.startswith(backend)}
    connection.close()
    assert keys == {
        f"{backend}.kept", f"{backend}2.kept", f"{backend}2.t=C3=B6te=2Ex",
    }  # fmt: skip
    store.put(schema("töte.x", "v"))  # it was made again
    store.close()
    other.close()
