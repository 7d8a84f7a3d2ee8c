"""The adapter point: a command that drains a slot into a stream."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peer import Peer, parse_peer, run_peer
from bench.stream import stored
from bench.table import PUBLICATION, create, write_backlog
from tests.servers import Database, Nats, Postgres

# What the simplest peer looks like: SQL polling, one message for each row.
ADAPTER = '''
import asyncio, sys
import nats, psycopg

async def main(pg_url, slot, publication, nats_url, stream):
    client = await nats.connect(nats_url)
    js = client.jetstream()
    await js.add_stream(name=stream, subjects=[stream + ".>"])
    query = """SELECT data FROM pg_logical_slot_get_binary_changes(
        %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        for (data,) in connection.execute(query, (slot, publication)):
            if bytes(data[:1]) == b"I":
                await js.publish(stream + ".row", bytes(data))
    await client.close()

asyncio.run(main(*sys.argv[1:]))
'''


@pytest.fixture
def servers() -> Iterator[tuple[Database, Nats]]:
    with Postgres(version=16) as postgres, Nats() as nats, postgres.database() as database:
        create(database)
        database.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        yield database, nats


def drained(peer: Peer, servers: tuple[Database, Nats], rows: int) -> float:
    database, nats = servers
    return run_peer(
        peer, slot="peer", publication=PUBLICATION, pg_url=database.url, nats_url=nats.url,
        stream="PEER", rows=rows,
    )  # fmt: skip


def test_a_peer_drains_a_slot_and_its_rate_is_told(
    servers: tuple[Database, Nats], tmp_path: Path
) -> None:
    script = tmp_path / "adapter.py"
    script.write_text(ADAPTER)
    write_backlog(servers[0], rows=500, per_transaction=100)
    command = (
        f"{sys.executable} {script} {{pg_url}} {{slot}} {{publication}} {{nats_url}} {{stream}}"
    )
    peer = replace(parse_peer(f"tiny={command}"), quiet=60.0)
    assert drained(peer, servers, 500) > 0
    assert stored(servers[1].url, "PEER")[0] == 500


def test_a_peer_that_fails_is_an_error_with_what_it_said(servers: tuple[Database, Nats]) -> None:
    failing = f"bad={sys.executable} -c 'raise SystemExit(\"no such slot\")'"
    with pytest.raises(RuntimeError, match="bad ended with 1: no such slot"):
        drained(parse_peer(failing), servers, 1)


def test_a_peer_that_stores_nothing_is_an_error(servers: tuple[Database, Nats]) -> None:
    with pytest.raises(RuntimeError, match="stored 0 messages"):
        drained(parse_peer(f"idle={sys.executable} -c pass"), servers, 1)


@pytest.mark.parametrize("text", ["", "name", "name=", "=command"])
def test_what_is_no_peer_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="name=command"):
        parse_peer(text)
